"""Keys of rows, read from the keys of records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.columns.key_hash import key_bytes
from headrace.columns.values import value_parser

if TYPE_CHECKING:
    from headrace.tables.definition import Definition


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
