"""Arrow columns of text, bytes and headers as spans of one buffer, which compiled loops read and write.

Whatever the type (`string`, `binary`, their large and view forms), a slice of a larger array or not: a loop
sees the same arrays of numbers, and is compiled once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.columns.record_kernels import (
    HEADER_ROWS,
    NAME_SIZE,
    NAME_START,
    NO_TIME,
    VALUE_SIZE,
    VALUE_START,
    gather,
    walk_headers_of,
)
from headrace.errors import HeadraceError
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.kernels import octets
from headrace.protocol.records import HEADER_COUNT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.protocol.kernels import Columns, Octets


class InvalidRows(HeadraceError):
    """Rows that cannot be written to a topic. Nothing was encoded."""


NULL: Final = -1


class Blobs(NamedTuple):
    """Spans of `data`: the start and the size of each, with size −1 for null."""

    data: Octets
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]


class HeaderBlobs(NamedTuple):
    """The headers of rows: those of row `r` are numbered from `firsts[r]` to `firsts[r + 1]`."""

    firsts: NDArray[np.int64]
    names: Blobs
    values: Blobs


def blobs_of(column: pa.Array, name: str) -> Blobs:
    """The values of a column of text or bytes, without copying them."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return blobs_of(column.dictionary_decode(), name)
    if pa.types.is_null(kind):
        return null_blobs(len(column))
    if not _is_blob(kind):
        raise InvalidRows(
            f"the column {name} is of type {kind}, and a record holds bytes: "
            "make it a string or binary column"
        )
    plain = column.cast(pa.large_binary())
    _, offset_buffer, data = plain.buffers()
    count = len(plain)
    if count == 0:
        return null_blobs(0)
    offsets = np.frombuffer(offset_buffer, np.int64)[plain.offset : plain.offset + count + 1]
    sizes = np.diff(offsets)
    if plain.null_count:
        sizes[plain.is_null().to_numpy(zero_copy_only=False)] = NULL
    return Blobs(octets(data if data is not None else b""), offsets[:-1].copy(), sizes)


def null_blobs(count: int) -> Blobs:
    """`count` nulls."""
    return Blobs(octets(b""), np.zeros(count, np.int64), np.full(count, NULL, np.int64))


def header_blobs_of(column: pa.Array) -> HeaderBlobs:
    """The headers in a column of lists of names and values; null and the empty list both mean no headers."""
    kind = column.type
    if not (_is_list(kind) and pa.types.is_struct(kind.value_type) and kind.value_type.num_fields == 2):
        raise InvalidRows(
            f"the column headers is of type {kind}: make it a list of structs of a key (string) "
            "and a value (binary)"
        )
    counts = column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    firsts = np.zeros(len(column) + 1, np.int64)
    np.cumsum(counts, out=firsts[1:])
    pairs = column.flatten()
    names, values = pairs.flatten()
    if pairs.null_count or names.null_count:
        raise InvalidRows("a row has a header without a name: set its key, or remove the header")
    return HeaderBlobs(firsts, blobs_of(names, "headers.key"), blobs_of(values, "headers.value"))


def no_headers(count: int) -> HeaderBlobs:
    """`count` rows without headers."""
    return HeaderBlobs(np.zeros(count + 1, np.int64), null_blobs(0), null_blobs(0))


def _is_blob(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_string,
        pa.types.is_binary,
        pa.types.is_large_string,
        pa.types.is_large_binary,
        pa.types.is_string_view,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    )
    return any(test(kind) for test in tests)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


MAX_COLUMN_BYTES: Final = (1 << 31) - 1
"""The most bytes of a column of binary values: its offsets have 32 bits."""


def binary_array(data: Octets, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> pa.Array:
    """The spans of `data` as binary values; a size of −1 is null."""
    total = int(np.maximum(sizes, 0).sum())
    if total > MAX_COLUMN_BYTES:
        raise CorruptBatch(f"{total} bytes of keys or values in one piece: fetch less at a time")
    offsets, output = _room(4 * (len(starts) + 1)), _room(total)
    gather(data, starts, sizes, np.frombuffer(offsets, np.int32), np.frombuffer(output, np.uint8))
    return pa.Array.from_buffers(pa.binary(), len(starts), [valid_bits(sizes >= 0), offsets, output])


def time_array(times_us: NDArray[np.int64]) -> pa.Array:
    """Times in UTC; null if a time is beyond the range of microseconds."""
    kind = pa.timestamp("us", "UTC")
    buffers = [valid_bits(times_us != NO_TIME), pa.py_buffer(times_us.copy())]
    return pa.Array.from_buffers(kind, len(times_us), buffers)


def headers_array(data: Octets, columns: Columns, rows: int, kind: pa.ListType) -> pa.Array:
    """The headers of each record as a list of names and values, null for a record without headers."""
    counts = columns[HEADER_COUNT, :rows]
    total = int(counts.sum())
    if total == 0:
        return pa.nulls(rows, kind)
    spans = np.empty((HEADER_ROWS, total), np.int64)
    walk_headers_of(data, columns, rows, spans)
    names = text_array(binary_array(data, spans[NAME_START], spans[NAME_SIZE]))
    values = binary_array(data, spans[VALUE_START], spans[VALUE_SIZE])
    pairs = pa.StructArray.from_arrays([names, values], fields=list(kind.value_type))
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    return pa.Array.from_buffers(
        kind, rows, [valid_bits(counts > 0), pa.py_buffer(offsets)], children=[pairs]
    )


def _room(size: int) -> pa.Buffer:
    """A buffer of `size` bytes from Arrow's memory pool, which keeps what was freed.

    The operating system reclaims what numpy frees, and allocating it again costs more than filling it.
    """
    return pa.allocate_buffer(size)


def text_array(values: pa.Array) -> pa.Array:
    """Binary values as text; invalid UTF-8 is replaced, as in the Java client."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if each is None else each.decode(errors="replace") for each in values.to_pylist()]
        return pa.array(texts, pa.string())


def valid_bits(valid: NDArray[np.bool_]) -> pa.Buffer | None:
    """The validity bitmap of Arrow; None when no value is null."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
