"""Rows that are written at once, as of one kind: just as value by value, or not at all."""

import struct

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
from headrace.capture.postgres.row_templates import PATIENCE, RowTemplates, TableColumns
from headrace.capture.postgres.values import Converter, boolean, bytea, text, timestamp, timestamptz

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
