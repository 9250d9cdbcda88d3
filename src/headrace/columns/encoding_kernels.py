"""Compiled loops that place rows into partitions, order them, and write them as the records of batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.protocol.batch import HEADER_BYTES
from headrace.protocol.kernels import borrowing, copy_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.columns.buffers import Blobs
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
def write_varint(output: Octets, position: int, value: int) -> int:
    """Write a number as a zigzag varint. Returns the position after it."""
    rest = np.uint64(value << 1 ^ value >> 63)
    while rest > np.uint64(0x7F):
        output[position] = np.uint8(rest & np.uint64(0x7F) | np.uint64(0x80))
        rest >>= np.uint64(7)
        position += 1
    output[position] = np.uint8(rest)
    return position + 1


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
