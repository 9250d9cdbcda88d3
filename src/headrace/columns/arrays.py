"""Arrow arrays from spans of bytes: where each of many pieces begins in one buffer, and how long it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import HEADER_COUNT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.protocol.kernels import Columns, Octets

MAX_COLUMN_BYTES: Final = (1 << 31) - 1
"""What a column of binary values can hold: its offsets have 32 bits."""


def binary_array(data: Octets, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> pa.Array:
    """The spans of `data` as binary values; a size of −1 is null."""
    total = int(np.maximum(sizes, 0).sum())
    if total > MAX_COLUMN_BYTES:
        raise CorruptBatch(f"{total} bytes of keys or values in one piece: fetch less at a time")
    offsets, output = _room(4 * (len(starts) + 1)), _room(total)
    gather(data, starts, sizes, np.frombuffer(offsets, np.int32), np.frombuffer(output, np.uint8))
    return pa.Array.from_buffers(pa.binary(), len(starts), [valid_bits(sizes >= 0), offsets, output])


def time_array(times_us: NDArray[np.int64]) -> pa.Array:
    """Times in UTC; null where a producer set one that microseconds cannot express."""
    kind = pa.timestamp("us", "UTC")
    buffers = [valid_bits(times_us != NO_TIME), pa.py_buffer(times_us.copy())]
    return pa.Array.from_buffers(kind, len(times_us), buffers)


def headers_array(data: Octets, columns: Columns, rows: int, kind: pa.ListType) -> pa.Array:
    """The headers of each record as a list of names and values, null for a record that has none."""
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
    """As many bytes from Arrow's own pool, which keeps what was freed.

    The system takes back what numpy frees, and to ask for it again costs more than to fill it.
    """
    return pa.allocate_buffer(size)


def text_array(values: pa.Array) -> pa.Array:
    """Binary values as text; what is not UTF-8 is replaced, as the Java client does: one stops no reader."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if each is None else each.decode(errors="replace") for each in values.to_pylist()]
        return pa.array(texts, pa.string())


def valid_bits(valid: NDArray[np.bool_]) -> pa.Buffer | None:
    """Which values are not null, as Arrow keeps it; nothing where all are."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
