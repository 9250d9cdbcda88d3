"""Rows as records: their columns as JSON documents, and some of them as keys.

The text is that of Spark's `to_json`, so that it does not matter which of the two wrote a record: times of
UTC with microseconds, nulls written, bytes as base64. Floating-point numbers have the fewest digits that read
back as the same number, in Java's form (`100.0`, `1.0E10`); Java before 19 writes a digit too many here and
there. What has parts is not written here (`UnfitRows`): Spark does that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.blobs import blobs_of
from headrace.columns.cells import Cells
from headrace.columns.errors import UnfitRows
from headrace.columns.text_kernels import measure_documents, write_documents

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace.columns.blobs import Blobs

KEY: Final = "key"
VALUE: Final = "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordForm:
    """What of a row is the key of its record, and what its value. Rows are taken by the order of columns."""

    columns: tuple[str, ...]
    """The names of the rows' columns."""
    key: tuple[str, ...] = ()
    """One column as its text, several as a document; none for records without a key."""
    is_key_whole: bool = False
    """Whether a key of one column that is null becomes a document, so that no record is without one."""
    deleted: str | None = None
    """The column that says of a row that its value is null; it is no part of the value."""

    def records(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows as columns `value` and, with a key, `key`.

        >>> form = RecordForm(columns=("id", "name"), key=("id",))
        >>> [record] = form.records([pa.record_batch({"_1": [7], "_2": ["Ann"]})])
        >>> record.to_pylist()
        [{'key': b'7', 'value': b'{"id":7,"name":"Ann"}'}]
        """
        cells = Cells()
        for batch in batches:
            # Columns behind those that were declared are left out, as Spark leaves them out.
            rows = batch.select(list(range(len(self.columns)))).rename_columns(list(self.columns))
            yield self._records(rows, cells)

    def _records(self, rows: pa.RecordBatch, cells: Cells) -> pa.RecordBatch:
        value = _documents(rows, [name for name in self.columns if name != self.deleted], cells)
        if self.deleted is not None:
            value = pc.if_else(rows.column(self.deleted).fill_null(False), None, value)
        if not self.key:
            return pa.record_batch({VALUE: value})
        return pa.record_batch({KEY: self._key(rows, cells), VALUE: value})

    def _key(self, rows: pa.RecordBatch, cells: Cells) -> pa.Array:
        if len(self.key) > 1:
            return _documents(rows, self.key, cells)
        column = rows.column(self.key[0])
        text = _text(column)
        if self.is_key_whole and column.null_count:
            return pc.coalesce(text, _documents(rows, self.key, cells))
        return text


def _text(column: pa.Array) -> pa.Array:
    """A column as the text of a key; bytes stay as they are."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        column = column.cast(pa.large_string())
    elif pa.types.is_temporal(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        raise UnfitRows(f"a key of type {kind} is not written here: its text is Spark's affair")
    return column.cast(pa.large_binary())


def _documents(rows: pa.RecordBatch, columns: Sequence[str], cells: Cells) -> pa.LargeBinaryArray:
    texts = cells.write([rows.column(name) for name in columns])
    names = _openings(columns)
    ends = np.zeros(rows.num_rows + 1, np.int64)
    measure_documents(texts.sizes, int(names.sizes.sum()) + 1, ends)
    output = np.empty(int(ends[-1]), np.uint8)
    write_documents(texts.data, texts.starts, texts.sizes, names, ends, output)
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), rows.num_rows, [None, pa.py_buffer(ends), pa.py_buffer(output)]
    )


def _openings(columns: Sequence[str]) -> Blobs:
    """What stands in a document before each value."""
    openings = [f"{',' if index else '{'}{_quoted(name)}:" for index, name in enumerate(columns)]
    return blobs_of(pa.array(openings, pa.string()), "names")


def _quoted(name: str) -> str:
    """A name as a document has it; control characters by capital numbers, as Jackson writes them."""
    quoted = json.dumps(name, ensure_ascii=False)
    for code in range(0x20):
        quoted = quoted.replace(f"\\u{code:04x}", f"\\u{code:04X}")
    return quoted
