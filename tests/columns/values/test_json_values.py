"""JSON values as typed columns: what comes out, and what is said about a value that is none."""

import json
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.columns.values import Parsed, UnsupportedType, value_parser
from tests.columns.values.comparing import fast, reference

ORDER = pa.struct(
    [
        ("order_id", pa.string()),
        ("amount", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("tags", pa.list_(pa.string())),
    ]
)


def parse(type_: pa.DataType, *values: bytes | None, time_zone: str = "UTC") -> Parsed:
    return value_parser("json", type_, time_zone=time_zone).parse(pa.array(values, pa.binary()))


def parse_field(type_: pa.DataType, *texts: str, time_zone: str = "UTC") -> list[object]:
    """What is read from each text where a field of `type_` is expected; errors as they are."""
    values = [b'{"a":%s}' % text.encode() for text in texts]
    answers = fast(pa.struct([("a", type_)]), values, time_zone)
    return [answer.error or answer.value["a"] for answer in answers]


def error(value: bytes) -> str | None:
    errors = parse(ORDER, value).errors
    return None if errors is None else str(errors[0])


def test_objects_become_structs() -> None:
    parsed = parse(ORDER, b'{"order_id":"o1","amount":12.5,"at":"2026-01-01T00:00:00.25Z","tags":["a",null]}')
    assert parsed.errors is None
    assert parsed.values.type == ORDER
    order = parsed.values[0]
    assert order["amount"].as_py() == 12.5
    assert order["at"].value == 1_767_225_600_250_000
    assert order["tags"].as_py() == ["a", None]


def test_fields_may_be_missing_unknown_or_in_any_order() -> None:
    parsed = parse(ORDER, b'{"amount":1,"new":{"x":[1,{"y":"}"}]},"order_id":"o1"}', b"{}")
    assert parsed.values.to_pylist() == [
        {"order_id": "o1", "amount": 1.0, "at": None, "tags": None},
        {"order_id": None, "amount": None, "at": None, "tags": None},
    ]


def test_a_tombstone_is_null_without_an_error() -> None:
    parsed = parse(ORDER, None, b'{"amount":1}', b"{", None)
    assert parsed.errors is not None
    assert parsed.values.is_valid().to_pylist() == [False, True, False, False]
    assert parsed.errors.is_valid().to_pylist() == [False, False, True, False]


def test_no_values_give_no_values() -> None:
    parsed = parse(ORDER)
    assert len(parsed.values) == 0
    assert parsed.errors is None


def test_a_slice_of_a_column_is_read_from_where_it_starts() -> None:
    values = pa.array([b'{"amount":%d}' % number for number in range(10)] + [None], pa.binary()).slice(3, 8)
    parsed = value_parser("json", ORDER).parse(values)
    assert [value["amount"].as_py() for value in parsed.values if value.is_valid] == [3, 4, 5, 6, 7, 8, 9]


def test_newlines_inside_a_value_are_space() -> None:
    assert error(b'\n{\r\n"amount"\n:\t1\n}\n') is None


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "not JSON: the value is empty"),
        (b" \n", "not JSON: the value is empty"),
        (b"null", "null is not an object"),
        (b"[1]", "[1] is not an object"),
        (b"order", "not JSON: expected a value at character 1"),
        (b'{"amount":"x"}', 'amount: "x" is not a double'),
        (b'{"amount":1}x', "not JSON: expected nothing more at character 13"),
        (b'{"amount":1', "not JSON: expected ',' or '}' at character 12"),
        (b'{"amount":1,}', "not JSON: expected a name in double quotes at character 13"),
        (b'{"amount" 1}', "not JSON: expected ':' at character 11"),
        (b'{"amount":01}', "not JSON: expected ',' or '}' at character 12"),
        (b'{"tags":["a",1,]}', "not JSON: expected a value at character 16"),
        (b'{"tags":{"a":1}}', 'tags: {"a":1} is not an array'),
        (b'{"at":"yesterday"}', 'at: "yesterday" is not a timestamp'),
        (b'{"order_id":"a\nb"}', "not JSON: invalid control character at character 15"),
        (b'{"order_id":"a\\x"}', "not JSON: invalid \\escape at character 15"),
        (b'{"order_id":"\xff"}', "not UTF-8: byte 0xff at byte 14"),
        (b'\xef\xbb\xbf{"amount":1}', "not JSON: expected a value at character 1"),
    ],
)
def test_an_error_says_what_is_wrong_and_where(value: bytes, reason: str) -> None:
    assert error(value) == reason


NOT_JSON = r"""
[1,]   [,1]    [,]      [1_2]    [1        ["a"_"b"]  [1}      [[]   []]   {"a":}  {"a":1,}  {,"a":1}  {"a"_1}
{"a":1 {1:2}   {a:1}    {"a":1_"b":2}      {]         01       -     1.    .5      +1        1e        0x1
nul    True    'a'      "a       "\x"      "\u12"     1_2      {"a":[{"b":[1,]}]}
"""


@pytest.mark.parametrize("value", ["", '"\t"', *(text.replace("_", " ") for text in NOT_JSON.split())])
def test_a_field_that_nobody_reads_is_json_too(value: str) -> None:
    text = f'{{"amount":1,"unread":{value}}}'
    assert str(error(text.encode())).startswith("not JSON: ")
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)


def test_an_error_names_the_place_in_nested_values() -> None:
    rows = pa.struct(
        [
            (
                "rows",
                pa.list_(pa.struct([("price", pa.decimal128(4, 2)), ("m", pa.map_(pa.string(), pa.int8()))])),
            )
        ]
    )
    parsed = parse(rows, b'{"rows":[{"price":1},{"price":100}]}', b'{"rows":[{"m":{"k":true}}]}')
    assert parsed.errors.to_pylist() == [
        "rows[1].price: 100 is not a decimal(4,2)",
        "rows[0].m.k: true is not a byte",
    ]


def test_an_error_is_short_however_long_the_value() -> None:
    long = error(b'{"amount":"%s"}' % (b"x" * 10_000))
    assert long is not None
    assert len(long) <= 300


def test_very_deep_nesting_is_an_error_and_no_crash() -> None:
    assert error(b'{"new":' + b"[" * 500 + b"]" * 500 + b"}") is None
    assert (
        error(b'{"new":' + b"[" * 100_000 + b"]" * 100_000 + b"}")
        == "JSON that is nested too deeply to be read"
    )


def test_the_last_of_two_fields_with_one_name_counts() -> None:
    parsed = parse(ORDER, b'{"amount":1,"amount":2}', b'{"amount":1,"amount":null}', b'{"\\u0061mount":3}')
    assert [value["amount"].as_py() for value in parsed.values] == [2, None, 3]


def test_whole_numbers_reach_to_the_edges_of_their_type() -> None:
    edges = [
        "9223372036854775807",
        "-9223372036854775808",
        "9223372036854775808",
        "-9223372036854775809",
        "1.0",
        "-0",
    ]
    assert parse_field(pa.int64(), *edges) == [
        2**63 - 1,
        -(2**63),
        "a: 9223372036854775808 is not a long",
        "a: -9223372036854775809 is not a long",
        "a: 1.0 is not a long",
        0,
    ]


@settings(deadline=None)
@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_every_double_survives_json(numbers: list[float]) -> None:
    values = [json.dumps({"amount": number}).encode() for number in numbers]
    read = [value["amount"].as_py() for value in parse(ORDER, *values).values]
    assert np.array_equal(read, numbers)
    assert np.array_equal(np.signbit(read), np.signbit(numbers))


def test_numbers_beyond_all_doubles_are_infinite_and_their_neighbors_exact() -> None:
    texts = ["1e400", "0.12345678901234567", "-1e400", "1e-400", "123456789012345678901234567890"]
    assert parse_field(pa.float64(), *texts) == [
        float("inf"),
        0.12345678901234567,
        float("-inf"),
        "0.0",
        1.2345678901234568e29,
    ]


def test_single_precision_is_rounded_once() -> None:
    # By way of a double this number would be rounded up to the next one.
    assert parse_field(pa.float32(), "1.00000005960464477539062", "1e40", "0.1") == [
        1.0,
        float("inf"),
        float(np.float32(0.1)),
    ]


def test_decimals_are_rounded_half_up() -> None:
    texts = ["1.005", "-1.005", "999.994", "999.995", '"12.5"', "1e2"]
    assert parse_field(pa.decimal128(5, 2), *texts) == [
        Decimal("1.01"),
        Decimal("-1.01"),
        Decimal("999.99"),
        "a: 999.995 is not a decimal(5,2)",
        Decimal("12.50"),
        Decimal("100.00"),
    ]


def test_text_keeps_what_was_written_where_it_is_not_a_string() -> None:
    texts = ['"\\u00e9\\n\\ud83d\\ude00"', "1.10", '{"x": [1]}', "true", "null"]
    assert parse_field(pa.string(), *texts) == ["é\n😀", "1.10", '{"x": [1]}', "true", None]


SUMMER, WINTER = 1_782_900_000_000_000, 1_767_265_200_000_000


def test_times_are_instants_or_those_of_the_zone() -> None:
    texts = [
        '"2026-07-01T12:00:00+02:00"',
        '"2026-07-01 12:00:00"',
        '"2026-01-01T12:00:00.000000999"',
        "1782900000",
    ]
    assert parse_field(pa.timestamp("us", "UTC"), *texts, time_zone="Europe/Berlin") == [
        SUMMER,
        SUMMER,
        WINTER,
        SUMMER,
    ]


def test_an_hour_that_clocks_skip_or_repeat_is_that_before_the_change() -> None:
    texts = ['"2026-03-29T02:30:00"', '"2026-10-25T02:30:00"']
    assert parse_field(pa.timestamp("us", "UTC"), *texts, time_zone="Europe/Berlin") == [
        1_774_747_800_000_000,
        1_792_888_200_000_000,
    ]


def test_summer_time_goes_on_after_2037() -> None:
    assert parse_field(pa.timestamp("us", "UTC"), '"2038-04-01"', time_zone="Europe/Berlin") == [
        2_153_685_600_000_000
    ]


def test_in_the_year_0_clocks_go_by_the_sun() -> None:
    texts = ['"0000-01-01T00:00:00"', '"0000"', '"0000-01-01T00:00:00Z"']
    by_the_sun = -62_167_219_200_000_000 - 3_208_000_000  # 53 minutes and 28 seconds before Greenwich
    assert parse_field(pa.timestamp("us", "UTC"), *texts, time_zone="Europe/Berlin") == [
        by_the_sun,
        by_the_sun,
        -62_167_219_200_000_000,
    ]


def test_bytes_are_base64() -> None:
    assert parse_field(pa.binary(), '"aGVsbG8="', '""', "1") == [b"hello", b"", "a: 1 is not a base64 string"]


def test_long_lists_get_the_room_that_they_need() -> None:
    lists = pa.struct([("a", pa.list_(pa.list_(pa.int32())))])
    documents = [{"a": [list(range(size))] * size} for size in (0, 70, 3)]
    answers = fast(lists, [json.dumps(document).encode() for document in documents])
    assert [answer.value for answer in answers] == documents


def test_a_bad_value_among_many_changes_only_itself() -> None:
    chance = random.Random(1)
    values = [json.dumps({"order_id": f"o{n}", "tags": ["t"] * (n % 5)}).encode() for n in range(2_000)]
    bad = sorted(chance.sample(range(2_000), 50))
    for row in bad:
        values[row] = values[row][: chance.randrange(len(values[row]))] + b"\x00"
    answers = fast(ORDER, values)
    assert [row for row, answer in enumerate(answers) if answer.error] == bad
    assert answers == reference(ORDER, values)


@pytest.mark.parametrize(
    ("type_", "reason"),
    [
        (pa.int32(), "read as a struct"),
        (
            pa.struct([("a", pa.struct([("b", pa.duration("us"))]))]),
            r"a\.b: duration\[us\] cannot be read from JSON",
        ),
        (pa.struct([("a", pa.map_(pa.int32(), pa.int32()))]), "a: map"),
        (pa.struct([("a", pa.int32()), ("a", pa.int32())]), "two fields are named 'a'"),
    ],
)
def test_a_type_that_json_cannot_give_is_refused_before_any_value(type_: pa.DataType, reason: str) -> None:
    with pytest.raises(UnsupportedType, match=reason):
        value_parser("json", type_)
