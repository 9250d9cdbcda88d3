"""The values of columns as JSON texts, all of them in one piece of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.columns import text_kernels as kernels
from headrace.columns.blobs import NULL, blobs_of
from headrace.columns.errors import UnfitRows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

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
    """Enough bytes for all of them."""


class Cells:
    """Writes columns as texts into memory that is kept from call to call."""

    def __init__(self) -> None:
        self._data = np.empty(0, np.uint8)

    def write(self, columns: Sequence[pa.Array]) -> Texts:
        """The texts of all values; they are there until the next call. `UnfitRows` for what has parts."""
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
    raise UnfitRows(f"a column of type {kind} is not written as JSON here: that is Spark's affair")


def _numbers(column: pa.Array) -> NDArray[np.int64]:
    numbers: NDArray[np.int64] = column.cast(pa.int64()).fill_null(0).to_numpy()
    return numbers


def _valid(column: pa.Array) -> pa.Array:
    """The column as it is, or with U+FFFD for bytes that are no text: Spark lets them pass, JSON does not."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raw = column.cast(pa.binary()).to_pylist()
        return pa.array([None if text is None else text.decode(errors="replace") for text in raw])
    return column
