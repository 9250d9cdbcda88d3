"""Rows of Arrow columns as record batches, ready to be produced: partitioned, ordered, compressed.

Rows with a key go where the Java client would send them. Rows without one stay together: one partition
until it has 64 KiB of them, then the next. Rows of one partition keep their order.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.columns.blobs import blobs_of, header_blobs_of, no_headers, null_blobs
from headrace.columns.encoding_kernels import (
    COUNT,
    END,
    MAX_RECORD_BYTES,
    PLAN_ROWS,
    SLOT,
    START,
    measure_rows,
    order_rows,
    plan_batches,
    write_batches,
)
from headrace.columns.errors import UnfitRows
from headrace.columns.placement import Placement
from headrace.protocol.batch import HEADER_BYTES, build_batch, seal_batch, stamp_producer
from headrace.protocol.compression import CODECS, NONE, compress

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.columns.blobs import Blobs, HeaderBlobs
    from headrace.protocol.compression import Bytes

HOLD_BYTES: Final = 4 * 1024 * 1024
"""Rows are held until they are so many bytes, so that many small Arrow batches make few record batches."""


class Encoded(NamedTuple):
    """A whole record batch for one partition; it bears no producer's identity yet."""

    topic: str
    partition: int
    records: int
    batch: bytes


class Encoder:
    """Record batches from rows with a column `value` and, as there are, key, headers, topic and partition.

    `partition_counts` names the topics that may be written and how many partitions each has. With `topic`
    all rows go there, and a column of that name is not looked at. No batch is larger than `max_batch_bytes`,
    unless one record alone is. Rows are held back until they are worth a batch: `flush` gives what is left.

    >>> encoder = Encoder({"greetings": 3}, topic="greetings")
    >>> encoder.encode(pa.record_batch({"key": ["a"], "value": ["hello"]}))
    []
    >>> [(each.topic, each.records) for each in encoder.flush()]
    [('greetings', 1)]
    """

    def __init__(
        self,
        partition_counts: Mapping[str, int],
        *,
        topic: str | None = None,
        compression: str = "none",
        max_batch_bytes: int = 1_000_000,
        hold_bytes: int = HOLD_BYTES,
    ) -> None:
        self._placement = Placement(partition_counts, topic)
        self._codec = _codec(compression)
        self._max_batch_bytes = max_batch_bytes
        self._hold_bytes = hold_bytes
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        # Where batches are written, kept from call to call: new memory costs more than the writing.
        self._output = np.empty(0, np.uint8)

    def encode(self, rows: pa.RecordBatch, *, now_ms: int | None = None) -> list[Encoded]:
        """The batches that are ready with these rows, or `UnfitRows`; `now_ms` is their records' time."""
        if rows.num_rows == 0:
            return []
        if rows.nbytes >= self._hold_bytes:
            return self.flush(now_ms=now_ms) + self._encode(rows, _time_ms(now_ms))
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        return self.flush(now_ms=now_ms) if self._held_bytes >= self._hold_bytes else []

    def flush(self, *, now_ms: int | None = None) -> list[Encoded]:
        """The batches of all rows that are still held, or `UnfitRows`."""
        held, self._held, self._held_bytes = self._held, [], 0
        if not held:
            return []
        return self._encode(held[0] if len(held) == 1 else pa.concat_batches(held), _time_ms(now_ms))

    def _encode(self, rows: pa.RecordBatch, now_ms: int) -> list[Encoded]:
        key, value, headers = _blobs(rows, "key"), _blobs(rows, "value", required=True), _headers(rows)
        bare = np.empty(rows.num_rows, np.int64)
        largest = measure_rows(key, value, *headers, bare)
        if largest > MAX_RECORD_BYTES:
            raise UnfitRows(f"a row makes a record of {largest} bytes, and Kafka's records end before 2 GiB")
        slots = self._placement.slots(rows, key, bare)
        order = np.empty(rows.num_rows, np.int64)
        order_rows(slots, np.zeros(self._placement.slot_count + 1, np.int64), order)
        plan = np.empty((PLAN_ROWS, rows.num_rows), np.int64)
        plan = plan[:, : plan_batches(order, slots, bare, self._max_batch_bytes, plan)].copy()
        if plan[END, -1] > len(self._output):
            self._output = np.empty(int(plan[END, -1]), np.uint8)
        write_batches(key, value, *headers, bare, order, plan, self._output)
        return [
            self._finished(slot, count, self._output.data[start:end], now_ms)
            for slot, count, start, end in plan[[SLOT, COUNT, START, END]].T.tolist()
        ]

    def _finished(self, slot: int, count: int, batch: memoryview, now_ms: int) -> Encoded:
        """The batch whose records are written, with its header and checksum, compressed if that helps."""
        topic, partition = self._placement.partition(slot)
        if self._codec != NONE:
            records = compress(self._codec, batch[HEADER_BYTES:])
            # What cannot be compressed would grow, past the limit of a batch perhaps.
            if len(records) < len(batch) - HEADER_BYTES:
                smaller = build_batch(
                    records, count, base_timestamp=now_ms, max_timestamp=now_ms, attributes=self._codec
                )
                return Encoded(topic, partition, count, bytes(smaller))
        seal_batch(batch, count, base_timestamp=now_ms, max_timestamp=now_ms)
        return Encoded(topic, partition, count, bytes(batch))


def stamp(
    batch: Bytes, *, producer_id: int, epoch: int, base_sequence: int, transactional: bool = True
) -> bytearray:
    """A copy of `batch` that bears the identity of a producer and the sequence of its first record."""
    stamped = bytearray(batch)
    stamp_producer(stamped, producer_id, epoch, base_sequence, transactional=transactional)
    return stamped


def _blobs(rows: pa.RecordBatch, name: str, *, required: bool = False) -> Blobs:
    if name in rows.schema.names:
        return blobs_of(rows.column(name), name)
    if required:
        raise UnfitRows(f"rows have no column {name}, only {', '.join(rows.schema.names)}: call one {name}")
    return null_blobs(rows.num_rows)


def _headers(rows: pa.RecordBatch) -> HeaderBlobs:
    if "headers" in rows.schema.names:
        return header_blobs_of(rows.column("headers"))
    return no_headers(rows.num_rows)


def _time_ms(now_ms: int | None) -> int:
    return time.time_ns() // 1_000_000 if now_ms is None else now_ms


def _codec(compression: str) -> int:
    for codec, name in CODECS.items():
        if name == compression:
            return codec
    raise UnfitRows(f"compression {compression} is unknown: choose one of {', '.join(CODECS.values())}")
