"""Fuzzers of the compiled kernels: bytes that are nearly right, from a seed.

    NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=/tmp/fuzz python -m tests.columns.fuzzing json 7 60

runs the fuzzer `json` with the seed 7 for sixty seconds. With bounds checks a kernel that reads or writes
beyond an array raises an IndexError; without them it would read what lies there. Each fuzzer also compares
the kernel with the reference that it has to agree with.
"""

import itertools
import json
import random
import struct
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.columns.documents import RecordForm
from headrace.columns.header_columns import HeaderColumn
from headrace.columns.record_decoder import COLUMNS, RecordDecoder, UnreadableBatch
from headrace.columns.values import value_parser
from headrace.columns.values.assembly import Reference, read_by_reference
from headrace.columns.values.csv_parser import CsvReference
from headrace.columns.values.json_parser import JsonReference
from headrace.columns.values.times import TimeRules
from headrace.protocol.batch import build_batch
from headrace.protocol.compression import compress
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.kernels import octets, walk
from headrace.protocol.records import MIN_RECORD_BYTES, ROWS, NewRecord, encode_records, walk_records
from tests.columns.values.comparing import plain

TIME = 1_700_000_000_000
VARINTS = (
    b"\xff\xff\xff\xff\x0f",
    b"\xfe\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x80",
    b"\xff" * 9 + b"\x01",
    b"\x01",
    b"\x7f",
    b"\x00",
)
JSON = pa.struct(
    {
        "a": pa.int32(),
        "b": pa.string(),
        "c": pa.float64(),
        "d": pa.decimal128(10, 2),
        "e": pa.timestamp("us", "UTC"),
        "f": pa.date32(),
        "g": pa.bool_(),
        "h": pa.binary(),
        "l": pa.list_(pa.int64()),
        "m": pa.map_(pa.string(), pa.string()),
        "s": pa.struct([("x", pa.int16()), ("y", pa.list_(pa.string()))]),
    }.items()
)
JSON_VALUES = (
    b'{"a":1,"b":"x\\u00e9\\ud83d\\ude00","c":1.5e3,"d":"12.345","e":"2026-01-02T03:04:05.123Z","f":"2026-02-28",'
    b'"g":true,"h":"AAEC","l":[1,2,3],"m":{"k":"v"},"s":{"x":1,"y":["a","b"]},"zz":{"deep":[1,{"a":null}]}}',
    b'{"a":null,"c":-0.0,"other":[1,2,{"x":[]}],"e":1700000000}',
    b'{"b":{"raw":[1,2]},"b2":[],"e":1767225600123}',
    b'{"e":"2026-01-02 03:04:05+01:00","f":"0001-01-01"}',
    b' { "x" : [ 1 , true , "s" ] , "a" : 12 } ',
    b"{}",
)
JSON_TOKENS = (
    *(b"[", b"]", b"{", b"}", b",", b":", b'"', b"1", b"null", b"true", b"-", b"1e5", b"\\u", b"\\ud800"),
    *(
        b"\xc3",
        b"\xf0\x9f",
        b" ",
        b"\n",
        b'"a":',
        b"[,]",
        b"[1,]",
        b'{"a":}',
        b"99999999999999",
        b"[]",
        b"{}",
    ),
)
CSV = pa.struct(
    {
        "a": pa.int32(),
        "b": pa.string(),
        "c": pa.float64(),
        "d": pa.decimal128(10, 2),
        "e": pa.timestamp("us", "UTC"),
        "g": pa.bool_(),
    }.items()
)
CSV_VALUES = (
    b"1,abc,1.5,12.34,2026-01-02T03:04:05Z,true",
    b'"1","a,b","1e5","","2026-01-02",false',
    b'-5,"a""b",-0.0,9,1767225600123,',
    b"1,x,2,3,4,null",
    b",,,,,",
)
CSV_TOKENS = (b",", b'"', b"\n", b"\r", b"1", b"-", b"e", b".", b"\xc3", b"", b"1700000000")


def changed_bytes(chance: random.Random, data: bytes, tokens: Sequence[bytes]) -> bytes:
    """`data` with a few bytes changed, left out, or replaced by tokens."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        start = chance.randrange(len(changed) + 1)
        stop = min(len(changed), start + chance.choice((0, 0, 1, 1, 3, 8)))
        kind = chance.random()
        if kind < 0.3:
            changed[start:stop] = bytes([chance.randrange(256)])
        elif kind < 0.4:
            changed[start:stop] = b""
        else:
            changed[start:stop] = chance.choice(tokens)
    return bytes(changed)


def fuzz_json(chance: random.Random, rounds: Iterable[int]) -> int:
    """JSON values: the fast parser and the reference give the same values and the same errors."""
    return _compare(chance, rounds, "json", JSON, JsonReference(JSON, TimeRules()), JSON_VALUES, JSON_TOKENS)


def fuzz_csv(chance: random.Random, rounds: Iterable[int]) -> int:
    """CSV records: the fast parser and the reference give the same values and the same errors."""
    reference = CsvReference(CSV, TimeRules(), ",", '"')
    return _compare(chance, rounds, "csv", CSV, reference, CSV_VALUES, CSV_TOKENS)


def _compare(
    chance: random.Random,
    rounds: Iterable[int],
    format_: str,
    type_: pa.DataType,
    reference: Reference,
    samples: Sequence[bytes],
    tokens: Sequence[bytes],
) -> int:
    parser = value_parser(format_, type_)
    count = 0
    for _ in rounds:
        values = [
            changed_bytes(chance, chance.choice(samples), tokens) for _ in range(chance.choice((1, 5, 40)))
        ]
        parsed = parser.parse(pa.array(values, pa.binary()))
        parsed.values.validate(full=True)
        errors = [None] * len(values) if parsed.errors is None else parsed.errors.to_pylist()
        expected = [read_by_reference(reference, value) for value in values]
        column = pa.array([each.value for each in expected], type_)
        for index, value in enumerate(values):
            assert errors[index] == expected[index].error, (value, errors[index], expected[index].error)
            assert plain(parsed.values[index]) == plain(column[index]), value
        count += len(values)
    return count


def fuzz_cut(chance: random.Random, rounds: Iterable[int]) -> int:
    """Record batches: each is cut into sound columns, or named as unreadable; nothing else is raised."""
    count = 0
    for _ in rounds:
        data, base = b"", 0
        for _ in range(chance.choice((1, 1, 2, 4))):
            batch, size = _batch(chance, base)
            data, base = data + batch, base + size
        decoder = RecordDecoder(
            ("t", 0),
            chance.choice((0, 0, 1, 3)),
            chance.choice((1 << 62, 5, 2)),
            columns=COLUMNS,
            headers=[HeaderColumn("a", "string"), HeaderColumn("n", "bigint"), HeaderColumn("b", "binary")],
            where_headers=chance.choice(({}, {}, {"a": ["12", "x"]})),
        )
        for part in decoder.readable_parts(data, chance.choice(((), ((5, 0),)))):
            if not isinstance(part, UnreadableBatch):
                part.validate(full=True)
        count += 1
    return count


def _records(chance: random.Random) -> list[NewRecord]:
    values = (None, b"", b"12", b"-5", b"x" * 7, b"9223372036854775808")
    return [
        NewRecord(
            chance.choice((None, b"", b"key")),
            chance.choice((None, b"", b"v" * 39)),
            TIME + chance.choice((0, 1, -5, 10**6)),
            tuple((chance.choice("anbz"), chance.choice(values)) for _ in range(chance.choice((0, 0, 1, 4)))),
        )
        for _ in range(chance.randrange(1, 6))
    ]


def _batch(chance: random.Random, base: int) -> tuple[bytes, int]:
    """A batch that is right or nearly so, and how many offsets it takes."""
    records = _records(chance)
    section, count = encode_records(records, TIME), len(records)
    if chance.random() < 0.7:
        section = changed_bytes(chance, section, VARINTS)
    if chance.random() < 0.2:
        count = chance.choice((0, 1, count + 1, count - 1, len(section) // 7 + 1, -1, 2**31 - 1))
    codec = chance.choice((0, 0, 0, 2, 3, 4))
    section = bytes(compress(codec, section))
    if chance.random() < 0.1:
        section = changed_bytes(chance, section, VARINTS)
    batch = build_batch(
        section,
        count,
        base_timestamp=chance.choice((TIME, -1, -(2**63), 2**63 - 1)),
        max_timestamp=TIME,
        attributes=codec | chance.choice((0, 0, 0, 8, 16, 32, 48)),
        base_offset=base,
        last_offset_delta=chance.choice((None, None, count - 1, 5, -7, 2**31 - 1)),
        producer_id=chance.choice((-1, 5)),
    )
    return bytes(batch), max(count, 1) if count < 1_000 else 5


def fuzz_walk(chance: random.Random, rounds: Iterable[int]) -> int:
    """The records of a batch: the compiled walk and the one in Python find the same, or both refuse."""
    count = 0
    for _ in rounds:
        records = _records(chance)
        section, size = encode_records(records, TIME), len(records)
        if chance.random() < 0.7:
            section = changed_bytes(chance, section, VARINTS)
        assert _walked(lambda: walk(octets(section), size)) == _walked(lambda: _slow_walk(section, size)), (  # noqa: B023
            section
        )
        count += 1
    return count


def _slow_walk(section: bytes, size: int) -> np.typing.NDArray[np.int64]:
    if size > len(section) // MIN_RECORD_BYTES:
        raise CorruptBatch("more records than bytes")
    return np.array(list(walk_records(section, size)), np.int64).reshape(size, ROWS).T


def _walked(find: Callable[[], np.typing.NDArray[np.int64]]) -> list[list[int]] | None:
    try:
        return [row.tolist() for row in find()]
    except CorruptBatch:
        return None


def fuzz_documents(chance: random.Random, rounds: Iterable[int]) -> int:
    """Rows as JSON: whatever the values, each document is sound and has them all."""
    letters = '"\\\n\0\x1fAé😀'
    doubles = (0.0, -0.0, 1e-5, 1e20, 5e-324, -1.7976931348623157e308, float("inf"), float("nan"), 1e7, 0.001)
    count = 0
    for _ in rounds:
        size = chance.choice((1, 3, 50))

        def column(make: Callable[[], Any], kind: pa.DataType, size: int = size) -> pa.Array:
            return pa.array([None if chance.random() < 0.1 else make() for _ in range(size)], kind)

        wide = pa.timestamp("us", "UTC")
        rows = pa.record_batch(
            {
                "long": column(
                    lambda: chance.choice((0, -(2**63), 2**63 - 1, chance.getrandbits(63))), pa.int64()
                ),
                "double": column(
                    lambda: chance.choice((*doubles, struct.unpack("d", chance.randbytes(8))[0])),
                    pa.float64(),
                ),
                "float": column(lambda: struct.unpack("f", chance.randbytes(4))[0], pa.float32()),
                "time": column(lambda: chance.choice((0, -(2**62), chance.getrandbits(62))), wide),
                "date": column(lambda: chance.choice((0, -(2**31), chance.getrandbits(31))), pa.date32()),
                "text": column(lambda: "".join(chance.choices(letters, k=chance.randrange(12))), pa.string()),
                "bytes": column(lambda: chance.randbytes(chance.randrange(9)), pa.binary()),
                "flag": column(lambda: chance.random() < 0.5, pa.bool_()),
            }
        )
        for records in RecordForm(columns=tuple(rows.schema.names), key=("long",)).records([rows]):
            records.validate(full=True)
            documents = [json.loads(value) for value in records.column("value").to_pylist()]
            assert [document["text"] for document in documents] == rows["text"].to_pylist()
            assert all(set(document) == set(rows.schema.names) for document in documents)
        count += size
    return count


FUZZERS = {
    "json": fuzz_json,
    "csv": fuzz_csv,
    "cut": fuzz_cut,
    "walk": fuzz_walk,
    "documents": fuzz_documents,
}


def until(deadline: float) -> Iterator[int]:
    """Numbers, until it is that late."""
    return itertools.takewhile(lambda _: time.monotonic() < deadline, itertools.count())


if __name__ == "__main__":
    name, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    FUZZERS[name](random.Random(seed), range(1))  # compiles
    done = FUZZERS[name](random.Random(seed), until(time.monotonic() + seconds))
    print(f"{name}: {done} inputs from seed {seed}")
