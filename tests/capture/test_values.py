"""Values of every common type as JSON: the same in snapshots and in changes, by templates or one by one."""

import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.capture.postgres.pgoutput import UNCHANGED, TupleData, Value
from headrace.capture.postgres.relation import (
    NULL_JSON,
    Envelopes,
    KeyFormatter,
    RowFormatter,
    SourceTransaction,
)
from headrace.capture.postgres.values import (
    PATIENCE,
    Converter,
    RowTemplates,
    TableColumns,
    boolean,
    bytea,
    text,
    timestamp,
    timestamptz,
)
from tests.capture.database import Database

ALL = {
    "boolean": ("true", True),
    "smallint": ("-32768", -32768),
    "integer": ("7", 7),
    "bigint": ("9007199254740993", 9007199254740993),
    "real": ("1.5", 1.5),
    "double precision": ("'1e300'", 1e300),
    "double precision[]": ("'{NaN,-Infinity,0.1}'", ["NaN", "-Infinity", 0.1]),
    "numeric": ("123456789012345678901234567890.50", "123456789012345678901234567890.50"),
    "numeric(6,2)": ("'NaN'", "NaN"),
    "text": (
        "E'tab\\t \"quotes\" back\\\\slash \\n line \\u0001 é😀'",
        'tab\t "quotes" back\\slash \n line \x01 é😀',
    ),
    "varchar(5)": ("''", ""),
    "char(4)": ("'ab'", "ab  "),
    "uuid": ("'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "bytea": (r"'\x0001ff'", "AAH/"),
    "date": ("'2026-02-28'", "2026-02-28"),
    "date[]": ("'{infinity,2026-01-01}'", ["infinity", "2026-01-01"]),
    "time": ("'12:34:56.789'", "12:34:56.789"),
    "timetz": ("'12:34:56+02'", "12:34:56+02"),
    "timestamp": ("'2026-01-02 03:04:05.123456'", "2026-01-02T03:04:05.123456"),
    "timestamp[]": (
        '\'{infinity,"2026-01-02 03:04:05","0044-03-15 00:00:00 BC"}\'',
        ["infinity", "2026-01-02T03:04:05", "0044-03-15 00:00:00 BC"],
    ),
    "timestamptz": ("'2026-01-02 03:04:05+02'", "2026-01-02T01:04:05Z"),
    "interval": ("'1 year 2 months 3 days 04:05:06.7'", "P1Y2M3DT4H5M6.7S"),
    "json": ('\'{"b": 1,  "a": [null]}\'', '{"b": 1,  "a": [null]}'),
    "jsonb": ('\'{"b": 1,  "a": "\\""}\'', '{"a": "\\"", "b": 1}'),
    "integer[]": ("'{1,NULL,3}'", [1, None, 3]),
    "text[]": (
        "ARRAY['a,b', 'NULL', NULL, '', 'q\"\\x', '{}', ' s ']",
        ["a,b", "NULL", None, "", 'q"\\x', "{}", " s "],
    ),
    "integer[][]": ("'{{1,2},{3,4}}'", [[1, 2], [3, 4]]),
    "boolean[]": ("'[0:1]={t,f}'", [True, False]),
    "bytea[]": (r"ARRAY['\x00'::bytea, NULL]", ["AA==", None]),
    "jsonb[]": ("""ARRAY['{"a": "x,y"}'::jsonb]""", ['{"a": "x,y"}']),
    "mood": ("'so so'", "so so"),
    "mood[]": ("'{happy,\"so so\"}'", ["happy", "so so"]),
    "cents": ("12", 12),
    "place": ("ROW('x y', 2)", '("x y",2)'),
    "int4range": ("'[1,5]'", "[1,6)"),
    "tstzrange": (
        "'[2026-01-01 00:00+00,)'",
        '["2026-01-01 00:00:00+00",)',
    ),
    "int4multirange": ("'{[1,3),[5,7)}'", "{[1,3),[5,7)}"),
    "inet": ("'10.0.0.1/8'", "10.0.0.1/8"),
    "macaddr": ("'08:00:2b:01:02:03'", "08:00:2b:01:02:03"),
    "bit(4)": ("B'1010'", "1010"),
    "point": ("'(1,2)'", "(1,2)"),
    "tsvector": ("'a b'", "'a' 'b'"),
    "oid": ("42", 42),
    "int2vector": ("'1 2'", "1 2"),
}
AT = SourceTransaction(7, 1_700_000_000_001, 42, 1_700_000_000_002, 1_700_000_000_003)
LSN = 1 << 40
NUMBERS = st.integers(-(10**6), 10**6).map(lambda number: str(number).encode())
# Letters that also are signs of the protocol, lengths that look like letters, and what JSON escapes.
TEXTS = st.one_of(
    st.text('ntu%b"\\\n\x01é', max_size=6).map(str.encode), st.sampled_from([b"n" * 110, b"t" * 0x7400])
)
DAYS = st.sampled_from(
    [b"2026-01-02 03:04:05", b"2026-01-02 03:04:05.25", b"infinity", b"0044-03-15 00:00:00 BC"]
)
VALUES: dict[Converter | None, st.SearchStrategy[bytes]] = {
    None: NUMBERS,
    text: TEXTS,
    timestamp: DAYS,
    timestamptz: DAYS.map(lambda day: day + b"+00"),
    boolean: st.sampled_from([b"t", b"f"]),
    bytea: st.binary(max_size=3).map(lambda value: b"\\x" + value.hex().encode()),
}
CONVERTERS = st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=6)


def columns(values: list[Any]) -> dict[str, Any]:
    return {f"c{index}": value for index, value in enumerate(values)}


def test_values_of_every_type_are_equal_in_snapshots_and_changes(database: Database) -> None:
    database.run(
        "CREATE TYPE mood AS ENUM ('happy', 'so so')",
        "CREATE DOMAIN cents AS int CHECK (value >= 0)",
        "CREATE TYPE place AS (name text, floor int)",
        "CREATE TABLE t (id int PRIMARY KEY, "
        + ", ".join(f"c{index} {kind}" for index, kind in enumerate(ALL))
        + ")",
        "INSERT INTO t VALUES (1, " + ", ".join(literal for literal, _ in ALL.values()) + ")",
        "INSERT INTO t (id) VALUES (2)",
    )
    database.capture("t")
    database.run("INSERT INTO t SELECT 3, " + ", ".join(columns(list(ALL))) + " FROM t WHERE id = 1")
    database.run("INSERT INTO t (id) VALUES (4)")
    database.capture("t")
    table = database.table("shop.public.t")
    wanted = columns([value for _, value in ALL.values()])
    assert {**table["1"], "id": 0} == {**wanted, "id": 0}
    assert {**table["3"], "id": 0} == {**wanted, "id": 0}
    assert set(table["2"].values()) == {2, None}
    assert set(table["4"].values()) == {4, None}


def test_generated_columns_are_not_captured(database: Database) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)",
        "INSERT INTO t VALUES (1)",
    )
    database.capture("t")
    database.run("INSERT INTO t VALUES (2)")
    database.capture("t")
    assert database.table("shop.public.t") == {"1": {"id": 1}, "2": {"id": 2}}


@pytest.mark.parametrize(
    ("kind", "literal", "key"),
    [
        ("boolean", "true", "true"),
        ("text", "'it''s \"x\"'", 'it\'s "x"'),
        ("timestamptz", "'2026-01-02 03:04:05+00'", "2026-01-02T03:04:05Z"),
        ("numeric", "1.50", "1.50"),
        ("bytea", r"'\x6162'", "ab"),
    ],
)
def test_a_key_of_one_column_is_its_text(database: Database, kind: str, literal: str, key: str) -> None:
    database.run(f"CREATE TABLE t (id {kind} PRIMARY KEY)", f"INSERT INTO t VALUES ({literal})")
    database.capture("t")
    ((found, _),) = database.records("shop.public.t")
    assert found == key


@pytest.mark.parametrize(("identity", "after"), [("DEFAULT", "__headrace_unavailable_value"), ("FULL", None)])
def test_an_unchanged_toast_value_is_a_placeholder_or_filled_from_the_old_row(
    database: Database, identity: str, after: str | None
) -> None:
    database.run(
        "CREATE TABLE t (id int PRIMARY KEY, n int, large text)",
        "ALTER TABLE t ALTER large SET STORAGE EXTERNAL",
        f"ALTER TABLE t REPLICA IDENTITY {identity}",
        "INSERT INTO t VALUES (1, 1, repeat('x', 10000))",
    )
    database.capture("t")
    database.run("UPDATE t SET n = 2")
    database.capture("t")
    assert database.table("shop.public.t")["1"] == {"id": 1, "n": 2, "large": after or "x" * 10_000}


def insert(values: TupleData) -> bytes:
    """The message of a new row."""
    parts = [struct.pack(">cqqqcich", b"w", LSN, LSN, 0, b"I", 1, b"N", len(values))]
    for value in values:
        if isinstance(value, bytes):
            parts += [b"t", struct.pack(">i", len(value)), value]
        else:
            parts.append(b"n" if value is None else b"u")
    return b"".join(parts)


class Table:
    """A table whose rows are written in both ways."""

    def __init__(self, converters: list[Converter | None], key: list[int]) -> None:
        names = [f"100% {index}" for index in range(len(converters))]
        self.envelopes = Envelopes(name="50%b", database="d", schema="s", table="t")
        self.kinds = RowTemplates(TableColumns(names, converters, key), self.envelopes)
        self.row = RowFormatter(list(range(len(names))), names, converters)
        self.key = KeyFormatter(key, names, converters)

    def event(self, values: TupleData) -> tuple[bytes | None, bytes]:
        row = self.row.format(values)
        times = {"commit_ms": AT.commit_ms, "xid": AT.xid, "now_ms": AT.now_ms}
        return self.key.format(values), self.envelopes.change(b"c", NULL_JSON, row, lsn=LSN, **times)


@settings(max_examples=150)
@given(data=st.data(), converters=CONVERTERS)
def test_a_template_formats_a_row_as_value_by_value_or_does_not_match(
    data: st.DataObject, converters: list[Converter | None]
) -> None:
    key = data.draw(st.lists(st.sampled_from(range(len(converters))), max_size=2, unique=True))
    table = Table(converters, key)
    values = [st.one_of(VALUES[each], VALUES[each], st.none(), st.just(UNCHANGED)) for each in converters]
    for row in data.draw(st.lists(st.tuples(*values).map(list), min_size=1, max_size=6)):
        found = table.kinds.event(insert(row), AT)
        assert found is None or found == table.event(row)
        table.kinds.learn(row)
        found = table.kinds.event(insert(row), AT)
        assert found is None or found == table.event(row)


def test_a_template_matches_rows_like_the_first() -> None:
    table = Table([None, text, timestamptz, boolean, text], [0])
    day = b"2026-01-02 03:04:05+00"
    rows: list[list[Value]] = [
        [b"1", b"a", day, b"t", b"b"],
        [b"2", None, None, b"f", b"n"],
        [b"3", b'in "quotes"', b"infinity", None, None],
        [b"4", b"\\", day, b"t", b"\n"],
    ]
    for row in rows:
        table.kinds.learn(row)
        assert table.kinds.event(insert(row), AT) == table.event(row)
    # What needs no escape may stand where something did.
    assert table.kinds.event(insert(rows[0]), AT) == table.event(rows[0])


def test_a_null_is_not_mistaken_for_the_end_of_a_text() -> None:
    table = Table([None, text, text, text], [0])
    table.kinds.learn([b"1", b"a", None, b"bn"])
    mistakable: TupleData = [b"1", b"an", b"b", None]
    assert len(insert(mistakable)) == len(insert([b"1", b"a", None, b"bn"]))
    assert table.kinds.event(insert(mistakable), AT) is None


def test_templates_are_disabled_when_they_mostly_miss() -> None:
    table = Table([None, text], [0])
    rows: list[list[Value]] = [[b"1", None], [b"1", b"a"]]
    for number in range(2 * PATIENCE):
        assert table.kinds.event(insert(rows[number % 2]), AT) is None
        table.kinds.learn(rows[number % 2])
    assert table.kinds.event(insert(rows[1]), AT) is None


def test_a_key_that_needs_escapes_has_no_template() -> None:
    table = Table([text, text], [0])
    table.kinds.learn([b'"1"', b"a"])
    assert table.kinds.event(insert([b'"1"', b"a"]), AT) is None
