"""Record batches and their records, made up by Hypothesis, and rows as plain tuples."""

from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

from headrace.protocol.batch import LOG_APPEND_TIME, read_header
from headrace.protocol.compression import CODECS
from headrace.protocol.records import NewRecord, decode_batch, encode_batch

TIME = 1_700_000_000_000
LAST_OFFSET = 2**62
LAST_MS = (2**63 - 1) // 1000

blobs = st.none() | st.binary(max_size=150)
headers = st.lists(st.tuples(st.text(max_size=4), blobs), max_size=3).map(tuple)
new_records = st.builds(
    NewRecord, key=blobs, value=blobs, timestamp=st.integers(-1, LAST_MS // 2), headers=headers
)


class Plan(NamedTuple):
    """A batch before it is encoded: offsets are given when it is joined to others."""

    records: list[NewRecord]
    codec: int = 0
    append_time: bool = False
    gap: int = 0


plans = st.lists(
    st.builds(
        Plan,
        records=st.lists(new_records, min_size=1, max_size=70),
        codec=st.sampled_from(sorted(CODECS)),
        append_time=st.booleans(),
        gap=st.integers(0, 3),
    ),
    max_size=4,
)


def encode_plans(plans: list[Plan], first: int = 0) -> list[bytes]:
    """The planned batches, one after the other in a partition, with gaps as compaction leaves them."""
    batches = []
    for plan in plans:
        first += plan.gap
        attributes = LOG_APPEND_TIME if plan.append_time else 0
        batches.append(
            bytes(encode_batch(plan.records, codec=plan.codec, attributes=attributes, base_offset=first))
        )
        first += len(plan.records)
    return batches


def expected_rows(batches: list[bytes], first: int = 0, end: int = LAST_OFFSET) -> list[dict[str, Any]]:
    """What the plain decoder finds at the offsets [first, end), as rows of Spark's columns."""
    return [
        {
            "key": record.key,
            "value": record.value,
            "topic": "orders",
            "partition": 3,
            "offset": record.offset,
            "timestamp": record.timestamp * 1000,
            "timestampType": int(bool(read_header(batch).attributes & LOG_APPEND_TIME)),
            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
        }
        for batch in batches
        for record in decode_batch(batch)
        if first <= record.offset < end
    ]


def plain_rows(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Arrow rows as dicts, times as microseconds: Python's own end with the year 9999."""
    if "timestamp" in rows.schema.names:
        index = rows.schema.get_field_index("timestamp")
        rows = rows.set_column(index, "timestamp", rows.column("timestamp").cast(pa.int64()))
    result: list[dict[str, Any]] = rows.to_pylist()
    return result
