"""Tables of a real PostgreSQL: what they hold after batches, and what they refuse."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headrace.errors import Misuse
from headrace.sinks.postgres import postgres
from headrace.sinks.postgres_writer import StagedTable
from headrace.sinks.sink import (
    IncompatibleTarget,
    RowsRejected,
    Sink,
    SinkContext,
    SinkWriter,
    TargetUnavailable,
    WriterFenced,
)
from headrace.sinks.staging import StagedBatch
from headrace.testing.postgres import PostgresServer

Contexts = Callable[..., SinkContext]
SALES = pa.table({"product": ["tea", "cup"], "revenue": [3.5, 9.0]})


@contextmanager
def opened(sink: Sink, context: SinkContext) -> Iterator[SinkWriter]:
    with closing(sink.open(context)) as target:
        yield target


def asked(database: str, query: str) -> list[Any]:
    with psycopg.connect(database, autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


def test_a_table_is_created_and_each_row_replaces_the_row_with_its_key(
    database: str, context: Contexts
) -> None:
    with opened(postgres("revenue", key="product", url=database), context(SALES)) as target:
        assert target.last_batch() is None
        target.commit(0, StagedBatch.of(SALES))
        target.commit(
            1, StagedBatch.of(pa.table({"product": ["tea", "pot", "tea"], "revenue": [4.0, 1.0, 5.0]}))
        )
        assert target.last_batch() == 1
    assert asked(database, "SELECT product, revenue FROM revenue ORDER BY 1") == [
        ("cup", 9.0),
        ("pot", 1.0),
        ("tea", 5.0),
    ]


def test_a_repeated_batch_is_skipped(database: str, context: Contexts) -> None:
    with opened(postgres("sales", url=database), context(SALES)) as target:
        target.commit(0, StagedBatch.of(SALES))
        target.commit(0, StagedBatch.of(SALES))
    with opened(postgres("sales", url=database), context(SALES)) as target:
        assert target.last_batch() == 0
    assert asked(database, "SELECT count(*) FROM sales") == [(2,)]


def test_a_new_generation_starts_over_and_fences_the_old_one(database: str, context: Contexts) -> None:
    sink = postgres("sales", url=database)
    with opened(sink, context(SALES)) as old, opened(sink, context(SALES, generation=2)) as new:
        old.commit(7, StagedBatch.of(SALES))
        assert new.last_batch() is None
        new.commit(0, StagedBatch.of(SALES))
        with pytest.raises(WriterFenced, match=r"a later generation of the job 'shop\.revenue'"):
            old.commit(8, StagedBatch.of(SALES))
    assert asked(database, "SELECT count(*) FROM sales") == [(4,)]


def test_two_jobs_that_write_one_table_have_separate_markers(database: str, context: Contexts) -> None:
    sink = postgres("sales", url=database)
    with opened(sink, context(SALES)) as one, opened(sink, context(SALES, job="shop.other")) as other:
        one.commit(3, StagedBatch.of(SALES))
        assert other.last_batch() is None
        other.commit(0, StagedBatch.of(SALES))
        assert (one.last_batch(), other.last_batch()) == (3, 0)


def test_mirror_deletes_upsert_ignores_and_append_inserts_deleted_rows(
    database: str, context: Contexts
) -> None:
    changes = pa.table(
        {"product": ["tea", "cup", "pot"], "revenue": [None, 2.0, 1.0], "_deleted": [True, False, None]}
    )
    for mode in ("mirror", "upsert"):
        with opened(postgres(mode, key="product", mode=mode, url=database), context(changes)) as target:
            target.commit(
                0, StagedBatch.of(SALES.append_column("_deleted", pa.array([False, None], pa.bool_())))
            )
            target.commit(1, StagedBatch.of(changes))
    with opened(postgres("log", url=database), context(changes)) as target:
        target.commit(0, StagedBatch.of(changes))
    assert asked(database, "SELECT * FROM mirror ORDER BY 1") == [("cup", 2.0), ("pot", 1.0)]
    assert asked(database, "SELECT * FROM upsert ORDER BY 1") == [("cup", 2.0), ("pot", 1.0), ("tea", 3.5)]
    assert asked(database, "SELECT product, _deleted FROM log ORDER BY 1")[2] == ("tea", True)


def test_values_of_every_type_are_written_unchanged(database: str, context: Contexts) -> None:
    rows = pa.table(
        {
            "text": ['a"b,\n\\', "", None],
            "small": pa.array([1, -(2**15), None], pa.int16()),
            "large": pa.array([2**63 - 1, 0, None], pa.int64()),
            "real": pa.array([1.5, float("-inf"), None], pa.float64()),
            "exact": pa.array([Decimal("1.10"), Decimal("-0.01"), None], pa.decimal128(10, 2)),
            "flag": [True, False, None],
            "day": [date(2026, 2, 28), date(1, 1, 1), None],
            "at": pa.array([datetime(2026, 1, 1, 12, 0, 0, 5, UTC), datetime(1969, 1, 1, tzinfo=UTC), None]),
            "local": pa.array([1_767_225_600_000_000, -1, None], pa.timestamp("us")),
            "span": pa.array([timedelta(seconds=1.5), timedelta(days=-1), None], pa.duration("us")),
            "bytes": [b"\x00tea", b"", None],
            "names": [["a", 'b"'], [], None],
            "parts": [{"x": 1, "y": None}, {"x": 2, "y": "z"}, None],
        }
    )
    with opened(postgres("types", url=database), context(rows)) as target:
        target.commit(0, StagedBatch.of(rows))
        target.commit(1, StagedBatch.of(rows.slice(1, 1)))
    found = asked(database, "SELECT * FROM types")
    assert [dict(zip(rows.column_names, row, strict=True)) for row in found] == [
        *rows.to_pylist(),
        rows.to_pylist()[1],
    ]


def test_rejected_rows_are_named_and_nothing_is_written(database: str, context: Contexts) -> None:
    asked(database, "CREATE TABLE stock (item text PRIMARY KEY, n int CHECK (n >= 0))")
    rows = pa.table({"item": [f"i{n}" for n in range(40)], "n": range(40)})
    bad = rows.set_column(1, "n", pa.array([-1 if n in (7, 30) else n for n in range(40)]))
    bad = bad.set_column(0, "item", pa.array(["a\0b" if n == 12 else f"i{n}" for n in range(40)]))
    with opened(postgres("stock", key="item", url=database), context(rows)) as target:
        with pytest.raises(RowsRejected, match="3 rows were rejected") as refusal:
            target.commit(0, StagedBatch.of(bad))
        assert sorted(refusal.value.rows) == [7, 12, 30]
        assert 'violates check constraint "stock_n_check"' in refusal.value.rows[7]
        assert not refusal.value.retryable
        assert asked(database, "SELECT count(*) FROM stock") == [(0,)]
        assert target.last_batch() is None
        target.commit(0, StagedBatch.of(rows))
    assert asked(database, "SELECT count(*) FROM stock") == [(40,)]


UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"


@pytest.mark.parametrize(
    ("column", "keys", "kind"),
    [
        ("double precision", [0.0, -0.0], pa.float64()),
        ("double precision", [float("nan"), -float("nan")], pa.float64()),
        ("real", [0.0, -0.0], pa.float32()),
        ("uuid", [UUID, UUID.upper()], pa.string()),
        ("timestamptz(0)", [1_000_000, 1_100_000], pa.timestamp("us", "UTC")),
        ("char(8)", ["tea", "tea  "], pa.string()),
        ("varchar(3)", ["tea", "tea  "], pa.string()),
        ("jsonb", ['{"a": 1, "b": 2}', '{"b": 2, "a": 1}'], pa.string()),
        ("numeric(8,1)", [Decimal("1.01"), Decimal("1.02")], pa.decimal128(10, 2)),
    ],
)
@pytest.mark.parametrize("mode", ["upsert", "mirror"])
def test_the_last_row_counts_among_keys_that_the_database_treats_as_equal(
    database: str, context: Contexts, column: str, keys: list[Any], kind: pa.DataType, mode: Any
) -> None:
    asked(database, f"CREATE TABLE t (k {column} PRIMARY KEY, v int)")
    asked(database, f"CREATE TABLE other (k {column} PRIMARY KEY, v int)")
    rows = pa.table({"k": pa.array(keys, kind), "v": pa.array([1, 2], pa.int32())})
    for table, order in (("t", [0, 1]), ("other", [1, 0])):
        with opened(postgres(table, key="k", mode=mode, url=database), context(rows)) as target:
            target.commit(0, StagedBatch.of(rows.take(order)))
    assert asked(database, "SELECT v FROM t UNION ALL SELECT v FROM other") == [(2,), (1,)]


def test_a_delete_uses_the_key_equality_of_the_database(database: str, context: Contexts) -> None:
    asked(database, "CREATE TABLE t (k uuid PRIMARY KEY, v int)")
    rows = pa.table({"k": [UUID, UUID.upper()], "v": pa.array([1, 2], pa.int32()), "_deleted": [False, True]})
    with opened(postgres("t", key="k", mode="mirror", url=database), context(rows)) as target:
        target.commit(0, StagedBatch.of(rows))
        assert asked(database, "SELECT * FROM t") == []
        target.commit(1, StagedBatch.of(rows.take([1, 0])))
    assert asked(database, "SELECT v FROM t") == [(1,)]


def test_keys_that_a_trigger_makes_equal_are_written_in_order(database: str, context: Contexts) -> None:
    asked(database, "CREATE TABLE t (k text PRIMARY KEY, v int)")
    asked(
        database,
        "CREATE FUNCTION lower_key() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN NEW.k = lower(NEW.k); RETURN NEW; END $$; "
        "CREATE TRIGGER low BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION lower_key()",
    )
    rows = pa.table({"k": ["tea", "cup", "TEA"], "v": pa.array([1, 2, 3], pa.int32())})
    with opened(postgres("t", key="k", url=database), context(rows)) as target:
        target.commit(0, StagedBatch.of(rows))
        assert target.last_batch() == 0
    assert asked(database, "SELECT v FROM t ORDER BY v") == [(2,), (3,)]


@pytest.mark.parametrize("constraint", ["PRIMARY KEY", "UNIQUE"])
def test_a_deferrable_key_constraint_is_rejected_before_anything_is_written(
    database: str, context: Contexts, constraint: str
) -> None:
    asked(database, f"CREATE TABLE t (product text {constraint} DEFERRABLE, revenue float8)")
    with pytest.raises(
        IncompatibleTarget, match="is DEFERRABLE, and INSERT … ON CONFLICT does not support that"
    ):
        postgres("t", key="product", url=database).open(context(SALES))


def test_included_columns_of_an_index_are_not_part_of_its_key(database: str, context: Contexts) -> None:
    asked(database, "CREATE TABLE t (product text, revenue float8)")
    asked(database, "CREATE UNIQUE INDEX ON t (product) INCLUDE (revenue)")
    with opened(postgres("t", key="product", url=database), context(SALES)) as target:
        target.commit(0, StagedBatch.of(SALES))
    assert asked(database, "SELECT count(*) FROM t") == [(2,)]


def test_rows_that_violate_a_deferred_constraint_are_found(database: str, context: Contexts) -> None:
    asked(database, "CREATE TABLE product (name text PRIMARY KEY)")
    asked(database, "INSERT INTO product VALUES ('tea')")
    asked(
        database,
        "CREATE TABLE sold (product text PRIMARY KEY REFERENCES product INITIALLY DEFERRED, revenue float8)",
    )
    with (
        opened(postgres("sold", key="product", url=database), context(SALES)) as target,
        pytest.raises(RowsRejected, match="foreign key") as refusal,
    ):
        target.commit(0, StagedBatch.of(SALES))
    assert list(refusal.value.rows) == [1]


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_a_batch_of_only_bad_rows_is_copied_at_most_three_times(
    database: str, context: Contexts, copies: list[Any], mode: Any
) -> None:
    asked(database, "CREATE TABLE stock (item text PRIMARY KEY, n int CHECK (n < 0))")
    rows = pa.table({"item": [f"i{n}" for n in range(500)], "n": pa.array(range(500), pa.int32())})
    key = "item" if mode == "upsert" else ()
    with (
        opened(postgres("stock", key=key, mode=mode, url=database), context(rows)) as target,
        pytest.raises(RowsRejected) as refusal,
    ):
        target.commit(0, StagedBatch.of(rows))
    assert list(refusal.value.rows) == list(range(500))
    assert len(copies) <= 3


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_rows_that_the_columns_cannot_hold_are_found_in_one_pass(
    database: str, context: Contexts, copies: list[Any], mode: Any
) -> None:
    asked(database, "CREATE TYPE size AS ENUM ('small', 'large')")
    asked(
        database, "CREATE TABLE t (k text PRIMARY KEY, s size, name varchar(3), at timestamptz, tags text[])"
    )
    bad = {
        3: ("huge", "tea", "{}"),
        5: ("small", "teapot", "{}"),
        8: ("large", "t\0", "{}"),
        9: ("small", "t", "{"),
    }
    good = ("small", 'a"\\', '{"x y",z}')
    values = [bad.get(n, good) for n in range(12)]
    rows = pa.table(
        {
            "k": [f"k{n}" for n in range(12)],
            "s": [size for size, _, _ in values],
            "name": [name for _, name, _ in values],
            "at": pa.array([datetime(2026, 1, 1, tzinfo=UTC), None] * 6),
            "tags": [tags for *_, tags in values],
        }
    )
    key = "k" if mode == "upsert" else ()
    with opened(postgres("t", key=key, mode=mode, url=database), context(rows)) as target:
        with pytest.raises(RowsRejected) as refusal:
            target.commit(0, StagedBatch.of(rows))
        assert list(refusal.value.rows) == [3, 5, 8, 9]
        assert "value too long for type character varying(3)" in refusal.value.rows[5]
        assert "invalid byte sequence" in refusal.value.rows[8]
        assert len(copies) <= 3
        target.commit(0, StagedBatch.of(rows.filter(pa.array([n not in bad for n in range(12)]))))
    assert asked(database, "SELECT DISTINCT name, tags FROM t") == [('a"\\', ["x y", "z"])]


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list that grows with each COPY of staged rows."""
    copies: list[Any] = []
    copy = StagedTable.copy

    def counted(*arguments: Any) -> None:
        copies.append(arguments)
        copy(*arguments)

    monkeypatch.setattr(StagedTable, "copy", counted)
    return copies


def test_each_row_without_a_key_is_rejected(database: str, context: Contexts) -> None:
    rows = pa.table({"product": ["tea", None, None], "revenue": [1.0, 2.0, 3.0]})
    sink = postgres("revenue", key="product", url=database)
    with opened(sink, context(rows)) as target, pytest.raises(RowsRejected) as refusal:
        target.commit(0, StagedBatch.of(rows))
    assert list(refusal.value.rows) == [1, 2]


def test_a_missing_foreign_key_is_retryable(database: str, context: Contexts) -> None:
    asked(database, "CREATE TABLE product (name text PRIMARY KEY)")
    asked(database, "CREATE TABLE sold (product text PRIMARY KEY REFERENCES product, revenue float8)")
    with opened(postgres("sold", key="product", url=database), context(SALES)) as target:
        with pytest.raises(RowsRejected, match="foreign key") as refusal:
            target.commit(0, StagedBatch.of(SALES))
        assert refusal.value.retryable


def test_a_key_that_another_program_inserts_concurrently_is_updated(database: str, context: Contexts) -> None:
    with (
        opened(postgres("revenue", key="product", url=database), context(SALES)) as target,
        psycopg.connect(database) as other,
        ThreadPoolExecutor() as threads,
    ):
        other.execute("INSERT INTO revenue VALUES ('tea', 1.0), ('pot', 2.0)")
        writing = threads.submit(target.commit, 0, StagedBatch.of(SALES))
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ '^INSERT'"
        while asked(database, waiting) != [(1,)]:
            assert not writing.done()
        other.commit()
        writing.result()
    assert asked(database, "SELECT product, revenue FROM revenue ORDER BY 1") == [
        ("cup", 9.0),
        ("pot", 2.0),
        ("tea", 3.5),
    ]


def test_rows_that_consist_of_their_key_are_inserted_once(database: str, context: Contexts) -> None:
    rows = pa.table({"day": [date(2026, 1, 1), date(2026, 1, 2)], "product": ["tea", "cup"]})
    with opened(postgres("sold", key=["day", "product"], url=database), context(rows)) as target:
        target.commit(0, StagedBatch.of(rows))
        target.commit(1, StagedBatch.of(rows))
        target.commit(2, StagedBatch.of(rows.slice(0, 1)))
    assert asked(database, "SELECT count(*) FROM sold") == [(2,)]


def test_missing_columns_are_added_to_the_table(database: str, context: Contexts) -> None:
    with opened(postgres("revenue", key="product", url=database), context(SALES)) as target:
        target.commit(0, StagedBatch.of(SALES))
    more = SALES.append_column("city", pa.array(["Oslo", None]))
    with opened(postgres("revenue", key="product", url=database), context(more)) as target:
        target.commit(1, StagedBatch.of(more))
    assert asked(database, "SELECT city FROM revenue ORDER BY product") == [(None,), ("Oslo",)]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("product text PRIMARY KEY, revenue boolean", "column revenue is of type boolean, and the rows have"),
        ("product int PRIMARY KEY, revenue float8", "column product is of type integer"),
        ("product text PRIMARY KEY, city text NOT NULL", "city is NOT NULL without a default"),
        ("product text, revenue float8", r"CREATE UNIQUE INDEX ON revenue \(product\)"),
        ("name text PRIMARY KEY, revenue float8", "its key has no column product"),
    ],
)
def test_an_incompatible_table_is_rejected_before_anything_is_written(
    database: str, context: Contexts, table: str, message: str
) -> None:
    asked(database, f"CREATE TABLE revenue ({table})")
    with pytest.raises(IncompatibleTarget, match=message):
        postgres("revenue", key="product", url=database).open(context(SALES))
    assert asked(database, "SELECT to_regclass('headrace_batch_markers')") == [(None,)]


def test_a_table_with_other_compatible_types_is_used_unchanged(database: str, context: Contexts) -> None:
    asked(database, "CREATE SCHEMA shop")
    asked(
        database,
        "CREATE TABLE shop.revenue (id serial, product varchar(10) UNIQUE, revenue numeric(8, 1), "
        "at timestamp(3) with time zone DEFAULT now())",
    )
    rows = SALES.append_column("at", pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 2))
    with opened(postgres("shop.revenue", key="product", url=database), context(rows)) as target:
        target.commit(0, StagedBatch.of(rows))
    assert asked(database, "SELECT product, revenue FROM shop.revenue ORDER BY product") == [
        ("cup", Decimal("9.0")),
        ("tea", Decimal("3.5")),
    ]
    assert asked(database, "SELECT batch FROM shop.headrace_batch_markers") == [(0,)]


def test_an_unreachable_or_stopped_server_is_unavailable(
    postgres_server: PostgresServer, database: str, context: Contexts, closed_port: int
) -> None:
    away = f"postgresql://postgres@127.0.0.1:{closed_port}/shop"
    with pytest.raises(TargetUnavailable, match=r"^postgres sales: .*refused"):
        postgres("sales", url=away).open(context(SALES))
    with opened(postgres("sales", url=database), context(SALES)) as target:
        asked(
            database,
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE application_name = 'headrace shop.revenue' AND datname = current_database()",
        )
        with pytest.raises(TargetUnavailable, match=r"terminat|closed|lost"):
            target.commit(0, StagedBatch.of(SALES))


def test_the_password_is_not_printed(context: Contexts) -> None:
    sink = postgres("sales", url="postgresql://joe:s3cret@127.0.0.1:1/shop")
    assert "s3cret" not in repr(sink) + sink.name
    with pytest.raises(TargetUnavailable) as fault:
        sink.open(context(SALES))
    assert "s3cret" not in str(fault.value)
    with pytest.raises(IncompatibleTarget) as wrong:
        postgres("sales", url="postgresql://joe:s3cret@[host/shop").open(context(SALES))
    assert "s3cret" not in str(wrong.value)
    assert wrong.value.__cause__ is None


def test_the_url_comes_from_the_environment(
    database: str, context: Contexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADRACE_POSTGRES", raising=False)
    with pytest.raises(Misuse, match="set HEADRACE_POSTGRES in the environment"):
        postgres("sales").open(context(SALES))
    monkeypatch.setenv("HEADRACE_POSTGRES", database)
    with opened(postgres("sales"), context(SALES)) as target:
        target.commit(0, StagedBatch.of(SALES))
    assert asked(database, "SELECT count(*) FROM sales") == [(2,)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"table": "a.b.c"}, "write the name of the table"),
        ({"table": "t", "mode": "mirror"}, 'needs a key: name its columns, for example key="id"'),
        ({"table": "t", "mode": "merge"}, "use upsert, append or mirror"),
        ({"table": "t", "key": ["a", "a"]}, "name each column of the key once"),
        ({"table": "t", "max_attempts": 0}, "max_attempts must be at least 1"),
    ],
)
def test_an_invalid_declaration_is_rejected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(Misuse, match=message):
        postgres(**arguments)


def test_a_missing_key_column_is_named(database: str, context: Contexts) -> None:
    with pytest.raises(
        IncompatibleTarget, match="keyed by id, but the job's rows have only the columns product, rev"
    ):
        postgres("sales", key="id", url=database).open(context(SALES))
