"""JSON documents of all types, good and bad, and the type that they are read as."""

import json

import pyarrow as pa
from hypothesis import strategies as st

DDL = (
    "flag boolean, tiny tinyint, small smallint, number int, big bigint, single float, real double, "
    "price decimal(10,2), exact decimal(38,18), name string, bytes binary, "
    "day date, at timestamp, local timestamp_ntz, times array<timestamp>, "
    "inner struct<name string, list array<int>, more struct<real double>>, "
    "rows array<struct<number int, tags map<string,string>>>, counts map<string,bigint>, "
    "lists array<array<string>>"
)
_ROW = pa.struct([("number", pa.int32()), ("tags", pa.map_(pa.string(), pa.string()))])
_INNER = pa.struct(
    [("name", pa.string()), ("list", pa.list_(pa.int32())), ("more", pa.struct([("real", pa.float64())]))]
)
TYPE = pa.struct(
    {
        "flag": pa.bool_(),
        "tiny": pa.int8(),
        "small": pa.int16(),
        "number": pa.int32(),
        "big": pa.int64(),
        "single": pa.float32(),
        "real": pa.float64(),
        "price": pa.decimal128(10, 2),
        "exact": pa.decimal128(38, 18),
        "name": pa.string(),
        "bytes": pa.binary(),
        "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us"),
        "times": pa.list_(pa.timestamp("us", "UTC")),
        "inner": _INNER,
        "rows": pa.list_(_ROW),
        "counts": pa.map_(pa.string(), pa.int64()),
        "lists": pa.list_(pa.list_(pa.string())),
    }.items()
)


def _edge(bits: int) -> st.SearchStrategy[str]:
    limit = 1 << bits - 1
    return st.one_of(
        st.integers(-limit, limit - 1), st.sampled_from([limit, -limit - 1, limit * 10, limit - 1])
    ).map(str)


# Spark takes a byte up to 255 and turns it into a negative one.
_tiny = _edge(8).filter(lambda text: not 128 <= int(text) <= 255)
_plain_numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,11})(\.[0-9]{1,9})?", fullmatch=True)
_numbers = st.one_of(
    _plain_numbers,
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_strings = st.one_of(_texts.map(json.dumps), _texts.map(lambda text: json.dumps(text, ensure_ascii=False)))
_days = st.one_of(
    st.dates().map(str),
    st.from_regex(r"[12][0-9]{3}-[01]?[0-9]-[0-3]?[0-9]", fullmatch=True),
    st.from_regex(r"[0-9]{4}(-[0-9]{1,2})?", fullmatch=True),
)
_clocks = st.one_of(
    st.from_regex(r"[0-2][0-9]:[0-5][0-9]:[0-5][0-9](\.[0-9]{0,10})?", fullmatch=True),
    st.from_regex(r"[0-9]{1,2}(:[0-9]{1,2}(:[0-9]{1,2}(\.[0-9]{0,10})?)?)?", fullmatch=True),
)
_zones = st.one_of(
    st.sampled_from(
        ["", "", "Z", "z", "UTC", " Europe/Berlin", "America/New_York", "GMT+2", "+1:00", "Nowhere/Land"]
    ),
    st.from_regex(r"[+-]([0-9]{1,2}|[0-1][0-9]:?[0-9]{2}|[0-1][0-9]:[0-9]{2}:[0-9]{2})", fullmatch=True),
)
_times = st.one_of(
    st.builds(
        lambda day, mark, clock, zone: f'"{day}{mark}{clock}{zone}"',
        _days,
        st.sampled_from("T "),
        _clocks,
        _zones,
    ),
    st.datetimes().map(lambda time: f'"{time.isoformat()}Z"'),
    _days.map(lambda day: f'"{day}"'),
    st.integers(-(10**10), 10**11).map(str),
)
_base64 = st.from_regex(
    r'"([A-Za-z0-9+/]{4}){0,3}([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]?)"', fullmatch=True
)
_bools = st.sampled_from(["true", "false"])
# Text that is written as Spark writes it, for it rewrites what it finds where a string should be.
_written = st.one_of(
    _strings, _bools, st.integers().map(str), st.just('{"x":[1,null,{"y":"z"}],"w":true}'), st.just("[]")
)
_infinite = st.sampled_from(
    ["NaN", "Infinity", "-Infinity", '"NaN"', '"Infinity"', '"+INF"', '"-INF"', '"INF"', '""']
)
# Anything, but no number that Spark would write otherwise, and no text that is dated to today.
_OTHER = ["1", "true", "null", '"x"', '""', "{}", "[]", "[null]", '{"a":1}', '"2026-01-01"', '"1"']
_other = st.sampled_from(_OTHER)
# Spark takes the number in a text where a date should be for days since 1970.
_other_day = st.sampled_from([text for text in _OTHER if text != '"1"'])


def _lists(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(items, max_size=3).map(lambda parts: "[" + ",".join(parts) + "]")


def _maps(items: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.dictionaries(_texts, items, max_size=3).map(_object)


def _object(members: dict[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in members.items()) + "}"


def _objects(members: dict[str, st.SearchStrategy[str]]) -> st.SearchStrategy[str]:
    return st.fixed_dictionaries({}, optional={**members, "unknown": _other}).map(_object)


_row = _objects({"number": _edge(32), "tags": _maps(_written)})
_FIELDS: dict[str, st.SearchStrategy[str]] = {
    "flag": _bools,
    "tiny": _tiny,
    "small": _edge(16),
    "number": _edge(32),
    "big": _edge(64),
    "single": st.one_of(_numbers, _infinite),
    "real": st.one_of(_numbers, _infinite),
    "price": st.one_of(_plain_numbers, _numbers, _plain_numbers.map(lambda text: f'"{text}"')),
    "exact": _numbers,
    "name": _written,
    "bytes": _base64,
    "day": st.one_of(_days.map(lambda day: f'"{day}"'), _times.filter(lambda text: text[0] == '"')),
    "at": _times,
    "local": _times,
    "inner": _objects({"name": _written, "list": _lists(_edge(32)), "more": _objects({"real": _numbers})}),
    "times": _lists(_times),
    "rows": _lists(_row),
    "counts": _maps(_edge(64)),
    "lists": _lists(_lists(_written)),
}
_members = st.one_of(
    *(
        st.tuples(st.just(name), st.one_of(field, field, field, st.just("null"), other))
        for name, field in _FIELDS.items()
        for other in [_other_day if name == "day" else _other]
    )
)
_spaces = st.sampled_from(["", "", "", " ", "\n", "\t\r\n"])


def _written_out(members: list[tuple[str, str]], space: str) -> str:
    inside = f"{space},{space}".join(f"{json.dumps(name)}{space}:{space}{text}" for name, text in members)
    return f"{space}{{{space}{inside}{space}}}{space}"


def _damaged(document: str, place: int, insertion: str, size: int) -> str:
    place %= len(document)
    return document[:place] + insertion + document[place + size :]


documents = st.builds(_written_out, st.lists(_members, max_size=4), _spaces)
damaged_documents = st.builds(
    _damaged,
    documents,
    st.integers(0, 200),
    st.sampled_from(["", *'{}[],:"\\0e.-+\x00\x1f é\n']),
    st.integers(0, 2),
)
