"""Rows in COPY's binary form: PostgreSQL has them as they were, and refuses what is none of its own."""

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row

from headrace.sinks.postgres import postgres
from headrace.sinks.postgres_copy import encode_binary, is_binary_compatible
from headrace.sinks.sink import RowsRejected, SinkContext
from headrace.sinks.staging import StagedBatch

Contexts = Callable[..., SinkContext]
TABLE = (
    "flag boolean, byte smallint, small smallint, whole integer, large bigint, less real, "
    'real double precision, day date, at timestamptz, "local" timestamp, name text, short varchar(5), '
    "raw bytea"
)
SCHEMA = pa.schema(
    {
        "flag": pa.bool_(),
        "byte": pa.int8(),
        "small": pa.int16(),
        "whole": pa.int32(),
        "large": pa.int64(),
        "less": pa.float32(),
        "real": pa.float64(),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us"),
        "name": pa.string(),
        "short": pa.string(),
        "raw": pa.binary(),
    }
)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
ROWS = st.tuples(
    st.booleans(),
    *(st.integers(-(2**bits), 2**bits - 1) for bits in (7, 15, 31, 63)),
    st.floats(width=32, allow_nan=False),
    st.floats(allow_nan=False),
    st.dates(),
    st.datetimes(timezones=st.just(UTC)),
    st.datetimes(),
    NAMES,
    st.text("aß☕", max_size=5),
    st.binary(),
)
WITH_NULLS = ROWS.flatmap(lambda row: st.tuples(*(st.sampled_from([value, None]) for value in row)))


@given(given_rows=st.lists(WITH_NULLS, min_size=1, max_size=20), skipped=st.integers(0, 3))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_postgresql_reads_the_binary_format_unchanged(
    database: str, given_rows: list[Any], skipped: int
) -> None:
    rows = [dict(zip(SCHEMA.names, row, strict=True)) for row in given_rows]
    table = pa.Table.from_pylist([{}] * skipped + rows, schema=SCHEMA).slice(skipped)
    with psycopg.connect(database, row_factory=dict_row) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TEMPORARY TABLE given ({TABLE}); SET TimeZone = 'UTC'")
        with cursor.copy("COPY given FROM STDIN (FORMAT binary)") as copy:
            copy.write(encode_binary(table))
        # As text, the fewest digits of a `real` would come back, which are another number as a `double`.
        assert cursor.execute("SELECT * FROM given", binary=True).fetchall() == rows


def test_a_created_table_is_written_in_the_binary_format(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(f"CREATE TABLE given ({TABLE})")
        kinds = connection.execute(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = 'given'::regclass AND attnum > 0"
        ).fetchall()
    assert all(
        is_binary_compatible(kind, column) for kind, (column,) in zip(SCHEMA.types, kinds, strict=True)
    )


def test_values_outside_of_postgresqls_range_are_rejected_one_by_one(
    database: str, context: Contexts
) -> None:
    times = pa.array([0, np.iinfo(np.int64).min, 1, -(2**62)], pa.timestamp("us", "UTC"))
    days = pa.array([date(1, 1, 1), date(9999, 12, 31), date(1970, 1, 1), None])
    rows = pa.table({"name": ["a", "b", "c\0", "d"], "at": times, "day": days})
    with closing(postgres("given", key="name", url=database).open(context(rows))) as target:
        with pytest.raises(RowsRejected) as refusal:
            target.commit(0, StagedBatch.of(rows))
        assert sorted(refusal.value.rows) == [1, 2, 3]
        assert "out of range" in refusal.value.rows[1]
        target.commit(0, StagedBatch.of(rows.slice(0, 1)))
    with psycopg.connect(database) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        found = connection.execute("SELECT * FROM given").fetchall()
    assert found == [("a", datetime(1970, 1, 1, tzinfo=UTC), date(1, 1, 1))]


def test_rows_of_narrower_types_are_widened(database: str, context: Contexts) -> None:
    declared = pa.table({"id": pa.array([1], pa.int64())})
    with closing(postgres("given", key="id", url=database).open(context(declared))) as target:
        target.commit(0, StagedBatch.of(pa.table({"id": pa.array([7, 8], pa.int32())})))
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT id FROM given ORDER BY id").fetchall() == [(7,), (8,)]
