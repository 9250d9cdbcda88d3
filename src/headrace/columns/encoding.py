"""Compiled loops that place rows into partitions, order them, and write them as the records of batches.

Rows of Arrow columns as record batches, ready to be produced: partitioned, ordered, compressed.

Rows with a key go where the Java client would send them. Rows without one stay together: one partition
until it has 64 KiB of them, then the next. Rows of one partition keep their order.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.columns.buffers import InvalidRows, blobs_of, header_blobs_of, no_headers, null_blobs
from headrace.protocol.batch import HEADER_BYTES, build_batch, seal_batch, stamp_producer
from headrace.protocol.compression import CODECS, NONE, compress
from headrace.protocol.kernels import borrowing, copy_bytes, write_varint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from headrace.columns.buffers import Blobs, HeaderBlobs
    from headrace.protocol.compression import Bytes
    from headrace.protocol.kernels import Columns, Octets

    Numbers = NDArray[np.int64]

BY_KEY: Final = -(1 << 63)
"""Instead of a partition: the key decides."""
STICKY_BYTES: Final = 64 * 1024
"""Rows without a key go to one partition until it has this many bytes of them, then to the next one."""
MAX_RECORD_BYTES: Final = (1 << 31) - 1 - 128
"""The largest record whose length and batch length fit into 32 bits, with a header."""

SLOT: Final = 0
FIRST: Final = 1
COUNT: Final = 2
START: Final = 3
END: Final = 4
PLAN_ROWS: Final = 5

STICKY_PARTITION: Final = 0
STICKY_FILLED: Final = 1
STICKY_ROWS: Final = 2


@borrowing
def murmur2(data: Octets, start: int, size: int) -> int:
    """The hash by which the Java client partitions keys, as an unsigned 32-bit number."""
    mix = np.uint32(0x5BD1E995)
    value = np.uint32(0x9747B28C) ^ np.uint32(size)
    whole = size & ~3
    for position in range(start, start + whole, 4):
        word = (
            np.uint32(data[position])
            | np.uint32(data[position + 1]) << np.uint32(8)
            | np.uint32(data[position + 2]) << np.uint32(16)
            | np.uint32(data[position + 3]) << np.uint32(24)
        )
        word = np.uint32(word * mix)
        word = np.uint32((word ^ (word >> np.uint32(24))) * mix)
        value = np.uint32(value * mix) ^ word
    for index in range(size - whole - 1, -1, -1):
        value ^= np.uint32(data[start + whole + index]) << np.uint32(8 * index)
    if size != whole:
        value = np.uint32(value * mix)
    value = np.uint32((value ^ (value >> np.uint32(13))) * mix)
    return int(value ^ (value >> np.uint32(15)))


@borrowing
def measure_rows(
    key: Blobs, value: Blobs, header_firsts: Numbers, names: Blobs, values: Blobs, bare: Numbers
) -> int:
    """Fill `bare` with the bytes of each record but for its length and offset delta; the largest of them."""
    largest = 0
    for row in range(len(bare)):
        first, end = header_firsts[row], header_firsts[row + 1]
        size = 2 + blob_size(key.sizes[row]) + blob_size(value.sizes[row]) + varint_size(end - first)
        for header in range(first, end):
            size += blob_size(names.sizes[header]) + blob_size(values.sizes[header])
        bare[row] = size
        largest = max(largest, size)
    return largest


@borrowing
def place_rows(
    key: Blobs,
    topics: Numbers,
    partitions: Numbers,
    first_slots: Numbers,
    bare: Numbers,
    sticky: Columns,
    slots: Numbers,
) -> int:
    """Fill `slots` with each row's partition; returns the first row whose partition does not exist, or −1.

    The partitions of topic `t` are the slots from `first_slots[t]` to `first_slots[t + 1]`. −1 means that
    every row was placed.
    """
    for row in range(len(slots)):
        topic = topics[row]
        count = first_slots[topic + 1] - first_slots[topic]
        partition = partitions[row]
        if partition == BY_KEY:
            if key.sizes[row] >= 0:
                partition = (murmur2(key.data, key.starts[row], key.sizes[row]) & 0x7FFFFFFF) % count
            else:
                partition = _stick(sticky, topic, count, bare[row])
        elif partition < 0 or partition >= count:
            return row
        slots[row] = first_slots[topic] + partition
    return -1


@borrowing
def _stick(sticky: Columns, topic: int, count: int, size: int) -> int:
    """The partition of a row without a key: that of the previous one, until it has `STICKY_BYTES`."""
    if sticky[STICKY_FILLED, topic] >= STICKY_BYTES:
        sticky[STICKY_PARTITION, topic] += 1
        sticky[STICKY_FILLED, topic] = 0
    sticky[STICKY_FILLED, topic] += size
    sticky[STICKY_PARTITION, topic] %= count
    return int(sticky[STICKY_PARTITION, topic])


@borrowing
def order_rows(slots: Numbers, places: Numbers, order: Numbers) -> None:
    """Fill `order` with the rows by slot, and within a slot as they came.

    `places` are zeros, one more than there are slots.
    """
    for row in range(len(slots)):
        places[slots[row] + 1] += 1
    for slot in range(len(places) - 1):
        places[slot + 1] += places[slot]
    for row in range(len(slots)):
        order[places[slots[row]]] = row
        places[slots[row]] += 1


@borrowing
def plan_batches(order: Numbers, slots: Numbers, bare: Numbers, limit: int, plan: Columns) -> int:
    """Fill `plan` with the batches that the ordered rows make, each within `limit` bytes; how many they are.

    A record that is larger than that gets its own batch.
    """
    batch = -1
    position = 0
    for index in range(len(order)):
        row = order[index]
        delta = plan[COUNT, batch] if batch >= 0 else 0
        size = record_size(bare[row], delta)
        if batch < 0 or slots[row] != plan[SLOT, batch] or position + size - plan[START, batch] > limit:
            if batch >= 0:
                plan[END, batch] = position
            batch += 1
            plan[SLOT, batch], plan[FIRST, batch], plan[COUNT, batch] = slots[row], index, 0
            plan[START, batch] = position
            position += HEADER_BYTES
            size = record_size(bare[row], 0)
        plan[COUNT, batch] += 1
        position += size
    if batch >= 0:
        plan[END, batch] = position
    return batch + 1


@borrowing
def write_batches(
    key: Blobs,
    value: Blobs,
    header_firsts: Numbers,
    names: Blobs,
    values: Blobs,
    bare: Numbers,
    order: Numbers,
    plan: Columns,
    output: Octets,
) -> None:
    """Write the records of each planned batch, after space for its header."""
    for batch in range(plan.shape[1]):
        position = plan[START, batch] + HEADER_BYTES
        for delta in range(plan[COUNT, batch]):
            row = order[plan[FIRST, batch] + delta]
            position = write_varint(output, position, bare[row] + varint_size(delta))
            # No attributes, and the time of the batch.
            output[position] = 0
            output[position + 1] = 0
            position = write_varint(output, position + 2, delta)
            position = write_blob(output, position, key.data, key.starts[row], key.sizes[row])
            position = write_blob(output, position, value.data, value.starts[row], value.sizes[row])
            first, end = header_firsts[row], header_firsts[row + 1]
            position = write_varint(output, position, end - first)
            for header in range(first, end):
                position = write_blob(output, position, names.data, names.starts[header], names.sizes[header])
                position = write_blob(
                    output, position, values.data, values.starts[header], values.sizes[header]
                )


@borrowing
def write_blob(output: Octets, position: int, data: Octets, start: int, size: int) -> int:
    """Write a length and that many bytes of `data`, or −1 for null. Returns the position after them."""
    position = write_varint(output, position, size)
    copied = max(size, 0)
    copy_bytes(output, position, data, start, copied)
    return position + copied


@borrowing
def varint_size(value: int) -> int:
    """The size of a number that is not negative as a zigzag varint."""
    size = 1
    while value > 63:
        value >>= 7
        size += 1
    return size


@borrowing
def blob_size(size: int) -> int:
    """The size of a length and that many bytes."""
    return 1 if size < 0 else varint_size(size) + size


@borrowing
def record_size(bare: int, delta: int) -> int:
    """The size of a whole record with offset delta `delta`."""
    body = bare + varint_size(delta)
    return varint_size(body) + body


class Placement:
    """Assigns a partition to each row. The partitions of all topics are numbered as slots.

    The column `partition` decides; if it is null or missing, the hash of the key does, as in the Java client.
    Rows without a key go to one partition at a time.
    """

    def __init__(self, partition_counts: Mapping[str, int], topic: str | None) -> None:
        self._names = list(partition_counts)
        self._numbers = {name: number for number, name in enumerate(self._names)}
        counts = np.array(list(partition_counts.values()), np.int64)
        if (counts < 1).any():
            raise InvalidRows(f"a topic has no partitions: {dict(partition_counts)}")
        self._first_slots: NDArray[np.int64] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._topic = None if topic is None else self._number(topic)
        self._sticky = np.zeros((STICKY_ROWS, len(counts)), np.int64)
        # Tasks begin at different partitions, or the first one would get the rows of every small batch.
        self._sticky[STICKY_PARTITION] = [random.randrange(count) for count in counts.tolist()]

    @property
    def slot_count(self) -> int:
        """The number of partitions of all topics."""
        return int(self._first_slots[-1])

    def partition(self, slot: int) -> tuple[str, int]:
        """The topic and the number of the partition that a slot stands for."""
        topic = int(np.searchsorted(self._first_slots, slot, side="right")) - 1
        return self._names[topic], slot - int(self._first_slots[topic])

    def slots(self, rows: pa.RecordBatch, key: Blobs, bare: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slot of each row; raises `InvalidRows` for a topic or partition that does not exist."""
        topics, partitions = self._topics(rows), _partitions(rows)
        slots = np.empty(rows.num_rows, np.int64)
        refused = place_rows(key, topics, partitions, self._first_slots, bare, self._sticky, slots)
        if refused >= 0:
            topic = int(topics[refused])
            count = self._first_slots[topic + 1] - self._first_slots[topic]
            raise InvalidRows(
                f"a row has partition {partitions[refused]} of topic {self._names[topic]}, which "
                f"has the partitions 0 to {count - 1}: correct the column partition, or leave it null "
                "for the key to decide"
            )
        return slots

    def _topics(self, rows: pa.RecordBatch) -> NDArray[np.int64]:
        """The number of each row's topic."""
        if self._topic is not None:
            return np.full(rows.num_rows, self._topic, np.int64)
        if "topic" not in rows.schema.names:
            raise InvalidRows("rows have no column topic and no topic was named: name one, or add the column")
        column = rows.column("topic").cast(pa.string()).dictionary_encode()
        if column.null_count:
            raise InvalidRows("the topic of a row is null: set it for each row, or name one for all of them")
        numbers = np.array([self._number(str(name)) for name in column.dictionary.to_pylist()], np.int64)
        codes: NDArray[np.int32] = column.indices.to_numpy()
        return numbers[codes]

    def _number(self, topic: str) -> int:
        if topic not in self._numbers:
            known = ", ".join(sorted(self._names)) or "none"
            raise InvalidRows(f"a row has the topic {topic}, which is not one of the output topics {known}")
        return self._numbers[topic]


def _partitions(rows: pa.RecordBatch) -> NDArray[np.int64]:
    """The partition that each row names, `BY_KEY` where it names none."""
    if "partition" not in rows.schema.names:
        return np.full(rows.num_rows, BY_KEY, np.int64)
    column = rows.column("partition")
    if not (pa.types.is_integer(column.type) or pa.types.is_null(column.type)):
        raise InvalidRows(f"the column partition is of type {column.type}: make it an integer column")
    wanted = column.cast(pa.int64()).fill_null(BY_KEY)
    return np.array(wanted.to_numpy(zero_copy_only=False), np.int64)


HOLD_BYTES: Final = 4 * 1024 * 1024
"""Rows are buffered up to this many bytes, so that many small Arrow batches make few record batches."""


class Encoded(NamedTuple):
    """A whole record batch for one partition, without a producer id yet."""

    topic: str
    partition: int
    records: int
    batch: bytes


class Encoder:
    """Record batches from rows with a column `value` and, optionally, key, headers, topic and partition.

    `partition_counts` has the output topics and their numbers of partitions. With `topic` all rows go there,
    and a column of that name is ignored. A batch larger than `max_batch_bytes` has only one record. Rows are
    buffered until they fill a batch: `flush` returns the rest.

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
        # The buffer of batches, kept from call to call: allocating memory costs more than writing.
        self._output = np.empty(0, np.uint8)

    def encode(self, rows: pa.RecordBatch, *, now_ms: int | None = None) -> list[Encoded]:
        """The batches that are full with these rows; `now_ms` is their time. Raises `InvalidRows`."""
        if rows.num_rows == 0:
            return []
        if rows.nbytes >= self._hold_bytes:
            return self.flush(now_ms=now_ms) + self._encode(rows, _time_ms(now_ms))
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        return self.flush(now_ms=now_ms) if self._held_bytes >= self._hold_bytes else []

    def flush(self, *, now_ms: int | None = None) -> list[Encoded]:
        """The batches of all buffered rows; raises `InvalidRows`."""
        held, self._held, self._held_bytes = self._held, [], 0
        if not held:
            return []
        return self._encode(held[0] if len(held) == 1 else pa.concat_batches(held), _time_ms(now_ms))

    def _encode(self, rows: pa.RecordBatch, now_ms: int) -> list[Encoded]:
        key, value, headers = _blobs(rows, "key"), _blobs(rows, "value", required=True), _headers(rows)
        bare = np.empty(rows.num_rows, np.int64)
        largest = measure_rows(key, value, *headers, bare)
        if largest > MAX_RECORD_BYTES:
            raise InvalidRows(f"a row is a record of {largest} bytes: the limit of Kafka is 2 GiB")
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
        """The batch of the written records, with header and checksum, compressed if that makes it smaller."""
        topic, partition = self._placement.partition(slot)
        if self._codec != NONE:
            records = compress(self._codec, batch[HEADER_BYTES:])
            # Incompressible data would grow, perhaps past the limit of a batch.
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
    """A copy of `batch` with the producer's id and epoch, and the sequence of its first record."""
    stamped = bytearray(batch)
    stamp_producer(stamped, producer_id, epoch, base_sequence, transactional=transactional)
    return stamped


def _blobs(rows: pa.RecordBatch, name: str, *, required: bool = False) -> Blobs:
    if name in rows.schema.names:
        return blobs_of(rows.column(name), name)
    if required:
        found = ", ".join(rows.schema.names)
        raise InvalidRows(f"rows have no column {name}, only {found}: rename one to {name}")
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
    raise InvalidRows(f"compression {compression} is unknown: choose one of {', '.join(CODECS.values())}")
