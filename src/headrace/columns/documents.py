"""Rows as records: their columns as JSON documents, and some of them as keys.

The text is that of Spark's `to_json`, so that it does not matter which of the two wrote a record: times of
UTC with microseconds, nulls written, bytes as base64. Floating-point numbers have the fewest digits that read
back as the same number, in Java's form (`100.0`, `1.0E10`); Java before 19 writes a digit too many here and
there. Nested types are not written here (`InvalidRows`): Spark writes those.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns import text_kernels as kernels
from headrace.columns.buffers import NULL, InvalidRows, blobs_of
from headrace.columns.text_kernels import measure_documents, write_documents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from headrace.columns.buffers import Blobs
    from headrace.protocol.kernels import Columns, Octets


class Texts(NamedTuple):
    """Where in `data` the text of each value is, a row of numbers for each column; null has the size −1."""

    data: Octets
    starts: Columns
    sizes: Columns


class Writing(NamedTuple):
    """How the values of one column are written."""

    kernel: Callable[..., int]
    values: Any
    room: int
    """The most bytes that all of them take."""


class Cells:
    """Writes columns as texts into a buffer that is kept from call to call."""

    def __init__(self) -> None:
        self._data = np.empty(0, np.uint8)

    def write(self, columns: Sequence[pa.Array]) -> Texts:
        """The texts of all values, valid until the next call. Raises `InvalidRows` for nested types."""
        writings = [_writing(column) for column in columns]
        room = sum(writing.room for writing in writings)
        if room > len(self._data):
            self._data = np.empty(room, np.uint8)
        shape = (len(columns), len(columns[0]) if columns else 0)
        starts, sizes = np.empty(shape, np.int64), np.zeros(shape, np.int64)
        position = 0
        for index, (column, writing) in enumerate(zip(columns, writings, strict=True)):
            _set_sizes(sizes[index], column, writing.values)
            position = writing.kernel(writing.values, self._data, position, starts[index], sizes[index])
        return Texts(self._data, starts, sizes)


def _set_sizes(sizes: NDArray[np.int64], column: pa.Array, values: Any) -> None:
    if not isinstance(values, np.ndarray):
        sizes[:] = values.sizes
    elif column.null_count:
        sizes[column.is_null().to_numpy(zero_copy_only=False)] = NULL


def _writing(column: pa.Array) -> Writing:
    kind, count = column.type, len(column)
    if pa.types.is_integer(kind):
        return Writing(kernels.write_wholes, _numbers(column), kernels.WHOLE_BYTES * count)
    if pa.types.is_boolean(kind):
        flags = column.fill_null(False).cast(pa.uint8()).to_numpy()
        return Writing(kernels.write_flags, flags, kernels.FLAG_BYTES * count)
    if pa.types.is_timestamp(kind):
        times = _numbers(column.cast(pa.timestamp("us", kind.tz)))
        return Writing(kernels.write_times, times, kernels.TIME_BYTES * count)
    if pa.types.is_date32(kind):
        days = _numbers(column.cast(pa.int32()))
        return Writing(kernels.write_dates, days, kernels.DATE_BYTES * count)
    if pa.types.is_floating(kind):
        texts = blobs_of(column.cast(pa.large_string()), "number")
        return Writing(kernels.write_fractions, texts, kernels.FRACTION_BYTES * count)
    return _writing_of_bytes(column)


def _writing_of_bytes(column: pa.Array) -> Writing:
    kind = column.type
    if pa.types.is_decimal(kind):
        texts = blobs_of(column.cast(pa.string()), "decimal")
        return Writing(kernels.write_plain, texts, int(texts.sizes.clip(0).sum()))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        blobs = blobs_of(column, "binary")
        return Writing(kernels.write_base64, blobs, int((blobs.sizes.clip(0) * 4 // 3 + 6).sum()))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = blobs_of(_valid(column), "text")
        return Writing(kernels.write_quoted, texts, kernels.measure_quoted(texts))
    raise InvalidRows(f"a column of type {kind} cannot be encoded as JSON here: use Spark's to_json")


def _numbers(column: pa.Array) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = column.cast(pa.int64()).fill_null(0).to_numpy()
    return numbers


def _valid(column: pa.Array) -> pa.Array:
    """The column, with U+FFFD for bytes that are not UTF-8: Spark accepts them, JSON does not."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raw = column.cast(pa.binary()).to_pylist()
        return pa.array([None if text is None else text.decode(errors="replace") for text in raw])
    return column


KEY: Final = "key"
VALUE: Final = "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordForm:
    """The columns of a row that are the key and the value of its record, by position."""

    columns: tuple[str, ...]
    """The names of the rows' columns."""
    key: tuple[str, ...] = ()
    """One column is written as its text, several as a document; empty for records without a key."""
    is_key_whole: bool = False
    """Whether a null key of one column is written as a document, so that every record has a key."""
    deleted: str | None = None
    """The flag column of rows whose value is null (tombstones); it is not part of the value."""

    def records(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows as columns `value` and, with a key, `key`.

        >>> form = RecordForm(columns=("id", "name"), key=("id",))
        >>> [record] = form.records([pa.record_batch({"_1": [7], "_2": ["Ann"]})])
        >>> record.to_pylist()
        [{'key': b'7', 'value': b'{"id":7,"name":"Ann"}'}]
        """
        cells = Cells()
        for batch in batches:
            # Columns after the declared ones are left out, as Spark does.
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
    """A column as the text of a key; bytes are not changed."""
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        column = column.cast(pa.large_string())
    elif pa.types.is_temporal(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        raise InvalidRows(f"a key of type {kind} cannot be encoded here: cast it to a string")
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
    """The text of a document before each value: its name."""
    openings = [f"{',' if index else '{'}{_quoted(name)}:" for index, name in enumerate(columns)]
    return blobs_of(pa.array(openings, pa.string()), "names")


def _quoted(name: str) -> str:
    """A name in quotes; control characters have upper-case hexadecimal digits, as Jackson writes them."""
    quoted = json.dumps(name, ensure_ascii=False)
    for code in range(0x20):
        quoted = quoted.replace(f"\\u{code:04x}", f"\\u{code:04X}")
    return quoted
