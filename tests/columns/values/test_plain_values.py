"""Text, raw bytes and CSV as columns."""

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.columns.values import Parsed, UnsupportedType, value_parser

ROW = pa.struct(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("price", pa.decimal128(6, 2)),
        ("paid", pa.bool_()),
        ("day", pa.date32()),
    ]
)
NAMES = pa.struct([("first", pa.string()), ("last", pa.string())])


def parse_csv(type_: pa.DataType, *values: bytes | None, **options: str) -> Parsed:
    return value_parser("csv", type_, options=options).parse(pa.array(values, pa.binary()))


def csv_error(value: bytes) -> str:
    errors = parse_csv(ROW, value).errors
    assert errors is not None
    return str(errors[0])


def test_text_is_utf8_and_anything_else_an_error() -> None:
    parsed = value_parser("text", pa.string()).parse(
        pa.array(["é".encode(), b"", None, b"ab\xff"], pa.binary())
    )
    assert parsed.values.to_pylist() == ["é", "", None, None]
    assert parsed.errors is not None
    assert parsed.errors.to_pylist() == [None, None, None, "not UTF-8: byte 0xff at byte 3"]


def test_raw_values_stay_as_they_are() -> None:
    values = pa.array([b"\xff", None, b""], pa.binary())
    assert value_parser("raw", pa.binary()).parse(values) == Parsed(values, None)


def test_a_record_becomes_a_struct() -> None:
    parsed = parse_csv(ROW, b"7,anna,12.345,true,2026-01-02", b",,,,", b'007,"",+1,FALSE,2026-1-2\r\n', None)
    assert parsed.errors is None
    rows = [
        None if row is None else [str(field) for field in row.values()] for row in parsed.values.to_pylist()
    ]
    assert rows == [
        ["7", "anna", "12.35", "True", "2026-01-02"],
        ["None"] * 5,
        ["7", "", "1.00", "False", "2026-01-02"],
        None,
    ]


def test_quotes_hold_delimiters_quotes_and_line_breaks() -> None:
    parsed = parse_csv(NAMES, b'"a,b","c""d\ne"', b"'a|b'|c", delimiter=",")
    assert parsed.values.to_pylist() == [{"first": "a,b", "last": 'c"d\ne'}, None]
    parsed = parse_csv(NAMES, b"'a|b'|c", delimiter="|", quote="'")
    assert parsed.values.to_pylist() == [{"first": "a|b", "last": "c"}]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "not a CSV record: the value is empty"),
        (b"1,2", "2 fields instead of 5"),
        (b"1,b,2,true,2026-01-01,6", "6 fields instead of 5"),
        (b"x,b,2,true,2026-01-01", "id: x is not an int"),
        (b"1,b,2,yes,2026-01-01", "paid: yes is not a boolean"),
        (
            b'1,"b,2,true,2026-01-01',
            "not a CSV record: a quote or line break is out of place after character 2",
        ),
        (b"1,b\xff,2,true,2026-01-01", "not UTF-8: byte 0xff at byte 4"),
    ],
)
def test_a_bad_record_says_why(value: bytes, reason: str) -> None:
    assert csv_error(value) == reason


@settings(deadline=None)
@given(st.lists(st.lists(st.one_of(st.none(), st.text(max_size=8)), min_size=2, max_size=2), max_size=8))
def test_any_text_survives_csv(records: list[list[str | None]]) -> None:
    written = [
        ",".join("" if text is None else '"' + text.replace('"', '""') + '"' for text in pair)
        for pair in records
    ]
    parsed = parse_csv(NAMES, *(record.encode() for record in written))
    assert parsed.errors is None
    assert [list(row.values()) for row in parsed.values.to_pylist()] == records


@settings(deadline=None)
@given(st.lists(st.text('ab,"\n\r1 é', max_size=8), max_size=8))
def test_csv_never_raises_and_gives_a_value_or_an_error(texts: list[str]) -> None:
    parsed = parse_csv(NAMES, *(text.encode() for text in texts))
    parsed.values.validate(full=True)
    wrong = parsed.errors.is_valid().to_pylist() if parsed.errors is not None else [False] * len(texts)
    assert [not there for there in parsed.values.is_valid().to_pylist()] == wrong


def test_bytes_of_csv_are_its_text() -> None:
    parsed = parse_csv(pa.struct([("a", pa.binary())]), b"aGVs")
    assert parsed.values.to_pylist() == [{"a": b"aGVs"}]


@pytest.mark.parametrize(
    ("format_", "type_", "options", "reason"),
    [
        ("xml", ROW, {}, "'xml' is not a format of values: use one of json, csv, text, raw"),
        ("json", ROW, {"delimiter": ";"}, "json has no option 'delimiter'"),
        ("csv", ROW, {"delimiter": "ab"}, "one ASCII character"),
        ("csv", pa.struct([("a", pa.list_(pa.int32()))]), {}, "a: a CSV field cannot be read as list"),
    ],
)
def test_what_cannot_be_is_refused_before_any_value(
    format_: str, type_: pa.DataType, options: dict[str, str], reason: str
) -> None:
    with pytest.raises(UnsupportedType, match=reason):
        value_parser(format_, type_, options=options)


def test_an_unknown_time_zone_is_refused() -> None:
    with pytest.raises(UnsupportedType, match="'Mars/Olympus' is not a time zone"):
        value_parser("json", ROW, time_zone="Mars/Olympus")
