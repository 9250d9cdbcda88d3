"""Kernels are compiled once: no input causes another compilation."""

import pyarrow as pa
from numba.core.dispatcher import Dispatcher

from headrace.columns import encoding, record_kernels
from headrace.columns.encoding import Encoder
from headrace.columns.preparation import prepare
from headrace.columns.record_decoder import COLUMNS, RecordDecoder
from headrace.protocol.batch import LOG_APPEND_TIME
from headrace.protocol.records import NewRecord, encode_batch

ENTRIES = [
    record_kernels.count_batches,
    record_kernels.find_batches,
    record_kernels.walk_sections,
    record_kernels.gather,
    record_kernels.walk_headers_of,
    encoding.measure_rows,
    encoding.place_rows,
    encoding.order_rows,
    encoding.plan_batches,
    encoding.write_batches,
]


def signatures() -> list[int]:
    assert all(isinstance(entry, Dispatcher) for entry in ENTRIES)
    return [len(entry.signatures) for entry in ENTRIES]


def test_everything_is_compiled_by_the_preparation_and_nothing_after_it():
    prepare()
    assert signatures() == [1] * len(ENTRIES)
    cut_all_kinds()
    encode_all_kinds()
    assert signatures() == [1] * len(ENTRIES)


def cut_all_kinds() -> None:
    record = NewRecord(b"k", b"v", 0, (("a", None),))
    batches = [
        encode_batch([record]),
        encode_batch([NewRecord(None, None, -1)], codec=4, base_offset=1),
        encode_batch([record, record], base_offset=2, attributes=LOG_APPEND_TIME),
    ]
    for data in (b"", batches[0], bytes(batches[1]), memoryview(b"".join(batches))):
        for start, end in ((0, 9), (2, 3), (5, 9)):
            for columns in (COLUMNS, ("value",)):
                RecordDecoder(("orders", 0), start, end, columns=columns).decode(data)


def encode_all_kinds() -> None:
    table = {"topic": ["orders", "users"], "value": ["v", None]}
    headers = pa.array([None, [{"key": "a", "value": b""}]])
    for more in ({}, {"key": [None, b"k"]}, {"headers": headers}, {"partition": pa.array([0, None])}):
        for kind in (pa.string(), pa.large_binary(), pa.binary_view()):
            rows = pa.record_batch(
                {**table, **more, "value": pa.array(table["value"], pa.string()).cast(kind)}
            )
            for part in (rows, rows.slice(1), rows.slice(2)):
                encoder = Encoder({"orders": 1, "users": 2})
                encoder.encode(part)
                encoder.flush()
