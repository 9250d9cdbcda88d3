"""Compiled decoding of the records of a batch, without Python objects.

Only the compactor and the conversion to Arrow import this module: numba takes half a second to import, and
the broker does not import it. Compiled code is cached next to this file.

`columns` has a row for each field of `RecordLayout` and a column for each record. Invalid bytes cause an
error, and are never read beyond the section.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

import numpy as np
from numba import njit
from numba.core import cgutils, types
from numba.extending import intrinsic

from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import (
    HEADER_COUNT,
    HEADERS_START,
    KEY_START,
    MIN_RECORD_BYTES,
    OFFSET_DELTA,
    ROWS,
    SIZE,
    START,
    TIMESTAMP_DELTA,
    VALUE_START,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from headrace.protocol.compression import Bytes

    Octets: TypeAlias = NDArray[np.uint8]
    Columns: TypeAlias = NDArray[np.int64]

FAULTS: Final = (
    "",
    "a varint is too long or incomplete",
    "a record has an invalid length",
    "a key, value or header is longer than its record",
    "a record has more headers than bytes",
    "bytes follow the last header or record",
    "offset deltas are not ascending",
)
BAD_VARINT: Final = 1
BAD_RECORD: Final = 2
BAD_LENGTH: Final = 3
BAD_HEADERS: Final = 4
LEFT_OVER: Final = 5
BAD_ORDER: Final = 6

_F = TypeVar("_F", bound="Callable[..., Any]")


def compiled(function: _F) -> _F:
    """Compile `function` to machine code that releases the GIL, with a cache on disk."""
    return cast("_F", njit(cache=True, nogil=True)(function))


def borrowing(function: _F) -> _F:
    """Compile `function` without reference counting of its arrays; it cannot create arrays.

    The atomic reference counts of calls between small functions take as long as the decoding.
    """
    return cast("_F", cast("Any", njit)(cache=True, nogil=True, _nrt=False)(function))


def octets(data: Bytes) -> Octets:
    """`data` as a read-only array: one type, so that each kernel is compiled once."""
    array: Octets = np.frombuffer(data, np.uint8)
    array.flags.writeable = False
    return array


def walk(section: Octets, count: int) -> Columns:
    """The layouts of `count` records in a decompressed section; raises `CorruptBatch`."""
    if not 0 <= count <= len(section) // MIN_RECORD_BYTES:
        raise CorruptBatch(f"a batch has {count} records in {len(section)} bytes")
    columns = np.empty((ROWS, count), np.int64)
    fault = walk_records(section, columns)
    if fault:
        raise CorruptBatch(f"the records of a batch cannot be decoded: {FAULTS[fault]}")
    return columns


@borrowing
def read_varint(data: Octets, position: int, end: int, bits: int) -> tuple[int, int]:
    """The zigzag varint at `position` and the position after it, which is −1 if it is invalid.

    >>> read_varint(octets(bytes([0x83, 0x01])), 0, 2, 32)
    (-66, 2)
    """
    if position < end and data[position] < 0x80:  # the common case
        short = np.int64(data[position])
        return int(short >> 1 ^ -(short & 1)), position + 1
    raw = np.uint64(0)
    shift = np.uint64(0)
    limit = np.uint64(bits)
    while position < end and shift < limit:
        byte = np.uint64(data[position])
        position += 1
        raw |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            # The last byte of the longest varint must not exceed the number of bits.
            if shift + np.uint64(7) > limit and byte >> (limit - shift):
                return 0, -1
            return int(np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1))), position
        shift += np.uint64(7)
    return 0, -1


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
def walk_records(data: Octets, columns: Columns) -> int:
    """Fill `columns` with the layouts of its records; returns 0, or the index of an error in `FAULTS`."""
    position = 0
    last_delta = -1
    for index in range(columns.shape[1]):
        columns[START, index] = position
        length, body = read_varint(data, position, len(data), 32)
        if body < 0:
            return BAD_VARINT
        end = body + length
        if length < MIN_RECORD_BYTES - 1 or end > len(data):
            return BAD_RECORD
        columns[SIZE, index] = end - position
        fault = walk_record(data, body, end, columns, index)
        if fault:
            return fault
        delta = columns[OFFSET_DELTA, index]
        if delta <= last_delta:
            return BAD_ORDER
        last_delta = delta
        position = end
    return 0 if position == len(data) else LEFT_OVER


@borrowing
def walk_record(data: Octets, body: int, end: int, columns: Columns, index: int) -> int:
    """Fill one column from the record with the body from `body` to `end`; returns 0 or an error."""
    columns[TIMESTAMP_DELTA, index], position = read_varint(data, body + 1, end, 64)
    if position < 0:
        return BAD_VARINT
    columns[OFFSET_DELTA, index], position = read_varint(data, position, end, 32)
    if position < 0:
        return BAD_VARINT
    for row in (KEY_START, VALUE_START):
        size, start = read_varint(data, position, end, 32)
        if start < 0:
            return BAD_VARINT
        position = start + max(size, 0)
        if size < -1 or position > end:
            return BAD_LENGTH
        columns[row, index] = start
        columns[row + 1, index] = size
    count, start = read_varint(data, position, end, 32)
    columns[HEADERS_START, index] = start
    columns[HEADER_COUNT, index] = count
    if count == 0 and start == end:
        return 0
    return walk_headers(data, start, end, count)


@borrowing
def walk_headers(data: Octets, position: int, end: int, count: int) -> int:
    """Check that exactly `count` headers are between `position` and `end`; returns 0 or an error."""
    if position < 0:
        return BAD_VARINT
    if count < 0 or count > (end - position) // 2:
        return BAD_HEADERS
    for part in range(2 * count):
        size, start = read_varint(data, position, end, 32)
        if start < 0:
            return BAD_VARINT
        position = start + max(size, 0)
        # A header's value may be null, its name may not.
        if size < (-1 if part & 1 else 0) or position > end:
            return BAD_LENGTH
    return 0 if position == end else LEFT_OVER


def _copy_bytes(
    _: Any, target: Any, target_start: Any, source: Any, source_start: Any, size: Any
) -> tuple[Any, Any]:
    """The types of a copy for numba, and what writes its code."""
    signature = types.void(target, target_start, source, source_start, size)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers = [
            context.cast(builder, arguments[index], signature.args[index], types.intp) for index in (1, 3, 4)
        ]
        arrays = [
            context.make_array(signature.args[index])(context, builder, arguments[index]) for index in (0, 2)
        ]
        places = [builder.gep(array.data, [start]) for array, start in zip(arrays, numbers[:2], strict=True)]
        cast("Any", cgutils).raw_memcpy(builder, *places, numbers[2], 1)
        return context.get_dummy_value()

    return signature, generate


copy_bytes = cast("Callable[[Octets, int, Octets, int, int], None]", intrinsic(_copy_bytes))
"""Copy bytes as memcpy does: target, position in it, source, position in it, number of bytes.

Nothing is checked. A loop over bytes is several times slower, because the arrays may overlap.
"""
