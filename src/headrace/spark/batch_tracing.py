"""The traceparent headers of the records that a micro-batch reads and writes."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.client.fetch import committed_records, fetch_batches, skip_unreadable
from headrace.client.partition import TopicPartition
from headrace.errors import HeadraceError
from headrace.tracing import HEADER, MAX_LINKS, traceparent_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.client.cluster import Cluster

MAX_PARTITIONS: Final = 8
MAX_RECORDS: Final = 256
"""Records of a partition whose headers are read for links."""
_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def input_traceparents(
    cluster: Cluster, start: Mapping[str, Mapping[str, int]], end: Mapping[str, Mapping[str, int]]
) -> list[str]:
    """The distinct traceparents of the first records of a batch, at most `MAX_LINKS`.

    A batch may have millions of records: only the first ones of a few partitions are read again, by the
    driver. Links are for people; if they cannot be read, the batch runs without.
    """
    ends = {
        TopicPartition(topic, int(number)): offset
        for topic, partitions in end.items()
        for number, offset in partitions.items()
    }
    starts = {
        partition: int(start.get(partition.topic, {}).get(str(partition.partition), 0)) for partition in ends
    }
    wanted = dict(islice(((p, offset) for p, offset in starts.items() if offset < ends[p]), MAX_PARTITIONS))
    found: dict[str, None] = {}
    if not wanted:
        return []
    try:
        for fetched in fetch_batches(cluster, wanted, max_wait_ms=0):
            records = skip_unreadable(committed_records(*fetched[:3]))
            for record in islice(records, MAX_RECORDS):
                if wanted[fetched.partition] <= record.offset < ends[fetched.partition]:
                    traceparent = traceparent_of(record.headers)
                    if traceparent is not None:
                        found[traceparent] = None
    except HeadraceError:
        return list(found)[:MAX_LINKS]
    return list(found)[:MAX_LINKS]


def with_traceparent(traceparent: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with one more header each."""
    header = pa.array([[{"key": HEADER, "value": traceparent.encode()}]], _HEADERS).flatten()
    if "headers" not in rows.schema.names:
        repeated = pa.ListArray.from_arrays(
            pa.array(np.arange(rows.num_rows + 1, dtype=np.int32)),
            header.take(pa.array(np.zeros(rows.num_rows, np.int64))),
        )
        return rows.append_column("headers", repeated)
    column = rows.column("headers")
    position = rows.schema.get_field_index("headers")
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0)).astype(np.int64)
    given = column.flatten().cast(_HEADERS.value_type)
    ends = np.cumsum(lengths + 1)
    order = np.empty(len(given) + rows.num_rows, np.int64)
    is_added = np.zeros(len(order), bool)
    is_added[ends - 1] = True
    order[is_added] = len(given)
    order[~is_added] = np.arange(len(given))
    values = pa.concat_arrays([given, header]).take(pa.array(order))
    offsets = pa.array(np.concatenate(([0], ends)).astype(np.int32))
    return rows.set_column(position, "headers", pa.ListArray.from_arrays(offsets, values))
