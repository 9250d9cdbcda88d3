"""Compiled loops that find batches and records in fetched bytes and gather their parts for Arrow.

Every length is checked against the available bytes: a wrong one ends a loop with a fault.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.protocol.batch import HEADER_BYTES, LENGTH_OVERHEAD
from headrace.protocol.kernels import (
    BAD_ORDER,
    BAD_RECORD,
    BAD_VARINT,
    LEFT_OVER,
    borrowing,
    copy_bytes,
    read_varint,
    walk_record,
)
from headrace.protocol.records import (
    HEADER_COUNT,
    HEADERS_START,
    MIN_RECORD_BYTES,
    OFFSET_DELTA,
    TIMESTAMP_DELTA,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.protocol.kernels import Columns, Octets

SECTION_START: Final = 0
SECTION_END: Final = 1
COUNT: Final = 2
BASE_OFFSET: Final = 3
BASE_TIMESTAMP: Final = 4
APPEND_TIME: Final = 5
"""1 if the timestamp is the append time of all records, else 0."""
KEPT: Final = 6
"""Filled by the walk: the number of the section's records at requested offsets."""
SECTION_ROWS: Final = 7

OFFSET: Final = OFFSET_DELTA
TIMESTAMP_US: Final = TIMESTAMP_DELTA
"""After `walk_sections` these rows have offsets and times instead of deltas."""
NO_TIME: Final = -(1 << 63)
"""Stands for a time that does not fit into 64 bits of microseconds."""
_LAST_MS: Final = ((1 << 63) - 1) // 1000

NAME_START: Final = 0
NAME_SIZE: Final = 1
VALUE_START: Final = 2
VALUE_SIZE: Final = 3
HEADER_ROWS: Final = 4


@borrowing
def count_batches(data: Octets) -> int:
    """The number of whole batches in `data`, or −1 − the position of the first invalid one."""
    count = 0
    position = 0
    while position < len(data):
        size = _batch_size(data, position)
        if size == 0:
            return -1 - position
        position += size
        count += 1
    return count


@borrowing
def find_batches(data: Octets, starts: NDArray[np.int64]) -> None:
    """Fill `starts` with the positions of as many batches; `count_batches` has found them whole."""
    position = 0
    for index in range(len(starts)):
        starts[index] = position
        position += _batch_size(data, position)


@borrowing
def _batch_size(data: Octets, position: int) -> int:
    """The size of the batch at `position`, 0 if it is incomplete."""
    if len(data) - position < HEADER_BYTES:
        return 0
    length = np.int64(0)
    for index in range(position + 8, position + LENGTH_OVERHEAD):
        length = length << 8 | np.int64(data[index])
    size = int(length) + LENGTH_OVERHEAD
    # A negative length appears as one of more than 2 GiB, which no fetch has.
    return size if HEADER_BYTES <= size <= len(data) - position else 0


@borrowing
def walk_sections(data: Octets, sections: Columns, first: int, end: int, columns: Columns) -> int:
    """Fill `columns` with the records at the offsets [first, end); how many they are, or −(a fault).

    There must be a column for each record that the sections count. The results are offsets, and times in
    microseconds.
    """
    row = 0
    for index in range(sections.shape[1]):
        rows = _walk_section(data, sections[:, index], first, end, columns, row)
        if rows < 0:
            return rows
        sections[KEPT, index] = rows
        row += rows
    return row


@borrowing
def _walk_section(
    data: Octets, section: NDArray[np.int64], first: int, end: int, columns: Columns, row: int
) -> int:
    """Fill columns from `row` on with the wanted records of one section; how many, or −(a fault)."""
    position = section[SECTION_START]
    section_end = section[SECTION_END]
    before = row
    last_delta = -1
    for _ in range(section[COUNT]):
        length, body = read_varint(data, position, section_end, 32)
        if body < 0:
            return -BAD_VARINT
        position = body + length
        if length < MIN_RECORD_BYTES - 1 or position > section_end:
            return -BAD_RECORD
        fault = walk_record(data, body, position, columns, row)
        if fault:
            return -fault
        delta = columns[OFFSET_DELTA, row]
        if delta <= last_delta:
            return -BAD_ORDER
        last_delta = delta
        offset = section[BASE_OFFSET] + delta
        if first <= offset < end:
            columns[OFFSET, row] = offset
            elapsed = 0 if section[APPEND_TIME] else columns[TIMESTAMP_DELTA, row]
            time_ms = section[BASE_TIMESTAMP] + elapsed
            columns[TIMESTAMP_US, row] = time_ms * 1000 if -_LAST_MS <= time_ms <= _LAST_MS else NO_TIME
            row += 1
    return row - before if position == section_end else -LEFT_OVER


@borrowing
def gather(
    data: Octets,
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    offsets: NDArray[np.int32],
    output: Octets,
) -> None:
    """Copy spans of `data` one after the other and record where each begins; a size of −1 is skipped."""
    position = 0
    for index in range(len(starts)):
        offsets[index] = position
        size = max(sizes[index], 0)
        copy_bytes(output, position, data, starts[index], size)
        position += size
    offsets[len(starts)] = position


@borrowing
def walk_headers_of(data: Octets, columns: Columns, rows: int, spans: Columns) -> None:
    """Fill `spans` with where the names and values of all record headers lie; the walk found them sound."""
    header = 0
    for row in range(rows):
        position = columns[HEADERS_START, row]
        for _ in range(columns[HEADER_COUNT, row]):
            size, start = read_varint(data, position, len(data), 32)
            spans[NAME_START, header] = start
            spans[NAME_SIZE, header] = size
            size, start = read_varint(data, start + size, len(data), 32)
            spans[VALUE_START, header] = start
            spans[VALUE_SIZE, header] = size
            position = start + max(size, 0)
            header += 1
