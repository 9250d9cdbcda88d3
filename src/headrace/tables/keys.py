"""Keys as bytes, made of columns or read from the keys of records: equal keys are equal bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.columns.values import value_parser
from headrace.tables.kernels import Keys

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from headrace.tables.definition import Definition


def key_bytes(columns: Sequence[pa.Array]) -> pa.LargeBinaryArray:
    """The keys that columns make together, null where a part of one is null.

    The bytes of a single column are its own; of several, each part has its length before it.
    """
    parts = [_column_bytes(column) for column in columns]
    if len(parts) == 1:
        return parts[0]
    pieces = [piece for part in parts for piece in (_sizes(part), part)]
    return pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))


def _column_bytes(column: pa.Array) -> pa.LargeBinaryArray:
    kind = column.type
    if pt.is_string(kind) or pt.is_binary(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind):
        return column.cast(pa.large_binary())
    if pt.is_boolean(kind):
        return _column_bytes(column.cast(pa.int8()))
    return _fixed_bytes(column, kind.bit_width // 8)


def _fixed_bytes(column: pa.Array, width: int) -> pa.LargeBinaryArray:
    offsets = np.arange(len(column) + 1, dtype=np.int64) * width
    data = pa.py_buffer(b"")
    if len(column):
        data = column.buffers()[1].slice(column.offset * width, len(column) * width)
    valid = None
    if column.null_count:
        bits = np.packbits(column.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
        valid = pa.py_buffer(bits)
    return pa.Array.from_buffers(pa.large_binary(), len(column), [valid, pa.py_buffer(offsets), data])


def _sizes(part: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    return _fixed_bytes(pc.binary_length(part).cast(pa.int32()), 4)


def keys_of(array: pa.LargeBinaryArray) -> Keys:
    """The bytes of an array as the compiled loops take them; a null has none."""
    if not len(array):
        return Keys(_frozen(b"", np.uint8), _frozen(bytes(8), np.int64))
    _, offsets, data = array.buffers()
    first, end = array.offset, array.offset + len(array) + 1
    return Keys(_frozen(data or b"", np.uint8), _frozen(offsets, np.int64)[first:end])


def _frozen(buffer: pa.Buffer | bytes, kind: type) -> NDArray[Any]:
    # Never writable, wherever it comes from: one type, so that each loop is compiled once.
    array: NDArray[Any] = np.frombuffer(buffer, kind)
    array.flags.writeable = False
    return array


class RecordKeys:
    """Reads the keys of records, as topics are written: one column as its text, several as a JSON document.

    A single column that is no text may be in a JSON document too, as capture writes it.
    """

    def __init__(self, definition: Definition) -> None:
        self._names = definition.key
        kind = pa.struct([definition.row_type.field(name) for name in definition.key])
        (self._single, *others) = definition.key_types
        self._is_bare = not others and (pt.is_string(self._single) or pt.is_binary(self._single))
        self._text = None if others else value_parser("csv", kind)
        self._document = value_parser("json", kind)

    def read(self, keys: pa.BinaryArray) -> pa.LargeBinaryArray:
        """The key that each record key names, null where it names none."""
        if self._is_bare:
            return keys.cast(pa.large_binary())
        read = key_bytes(self._columns(self._document.parse(keys).values))
        if self._text is not None:
            read = pc.coalesce(read, key_bytes(self._columns(self._text.parse(keys).values)))
        return read

    def _columns(self, rows: pa.StructArray) -> list[pa.Array]:
        return [pc.struct_field(rows, [index]) for index in range(len(self._names))]
