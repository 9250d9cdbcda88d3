"""Headers of records as columns: each wanted one by its name, as text, bytes or a number.

A record may lack a header, have it without a value, or have it more than once: null, null, and the last one,
as with the `lastHeader` of Kafka's clients. Text that is not UTF-8 is replaced as it is in names of headers,
and what is no number of its column is null: one record stops no reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.arrays import binary_array, text_array, valid_bits
from headrace.columns.header_kernels import find_headers, read_numbers
from headrace.protocol.kernels import octets
from headrace.protocol.records import HEADER_COUNT, HEADERS_START

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from headrace.protocol.kernels import Columns, Octets

    Spans: TypeAlias = NDArray[np.int64]


class HeaderColumn(NamedTuple):
    """A header that is a column, under its own name. Plain data."""

    name: str
    type: str
    """One of `TYPES`."""


class HeaderFinder:
    """Columns of headers from the records that a walk has found."""

    def __init__(self, wanted: Sequence[HeaderColumn]) -> None:
        self._wanted = wanted
        names = [column.name.encode() for column in wanted]
        self._names = octets(b"".join(names))
        self._ends = np.cumsum([len(name) for name in names], dtype=np.int64)

    def arrays(self, data: Octets, columns: Columns, rows: int) -> dict[str, pa.Array]:
        """The wanted headers of the first `rows` records, by their names."""
        if not self._wanted:
            return {}
        starts = np.empty((len(self._wanted), rows), np.int64)
        sizes = np.empty((len(self._wanted), rows), np.int64)
        places, counts = columns[HEADERS_START, :rows], columns[HEADER_COUNT, :rows]
        find_headers(data, places, counts, self._names, self._ends, starts, sizes)
        return {
            column.name: _MAKERS[column.type](data, starts[index], sizes[index])
            for index, column in enumerate(self._wanted)
        }


class HeaderChoice:
    """Which records are wanted: those whose headers have one of the texts that are named for each."""

    def __init__(self, wanted: Mapping[str, Sequence[str]]) -> None:
        self._finder = HeaderFinder([HeaderColumn(name, "binary") for name in wanted])
        self._texts = {
            name: pa.array([text.encode() for text in texts], pa.binary()) for name, texts in wanted.items()
        }

    def mask(self, data: Octets, columns: Columns, rows: int) -> NDArray[np.bool_] | None:
        """Whether each of the first `rows` records is wanted; None where all are."""
        found = self._finder.arrays(data, columns, rows)
        masks = [
            pc.is_in(found[name], value_set=texts).to_numpy(False) for name, texts in self._texts.items()
        ]
        mask: NDArray[np.bool_] | None = np.logical_and.reduce(masks) if masks else None
        return None if mask is None or mask.all() else mask


def _texts(data: Octets, starts: Spans, sizes: Spans) -> pa.Array:
    return text_array(binary_array(data, starts, sizes))


def _longs(data: Octets, starts: Spans, sizes: Spans) -> pa.Array:
    return _numbers(data, starts, sizes, np.dtype(np.int64))


def _ints(data: Octets, starts: Spans, sizes: Spans) -> pa.Array:
    return _numbers(data, starts, sizes, np.dtype(np.int32))


def _numbers(data: Octets, starts: Spans, sizes: Spans, kind: np.dtype[np.signedinteger]) -> pa.Array:
    numbers = np.empty(len(starts), np.int64)
    valid = np.empty(len(starts), np.bool_)
    read_numbers(data, starts, sizes, int(np.iinfo(kind).max), numbers, valid)
    buffers = [valid_bits(valid), pa.py_buffer(numbers.astype(kind, copy=False))]
    return pa.Array.from_buffers(pa.from_numpy_dtype(kind), len(starts), buffers)


TYPES: Final = {"string": pa.string(), "binary": pa.binary(), "int": pa.int32(), "bigint": pa.int64()}
"""The types that a header may have, by Spark's names for them."""
_MAKERS: Final[dict[str, Callable[[Octets, Spans, Spans], pa.Array]]] = {
    "string": _texts,
    "binary": binary_array,
    "int": _ints,
    "bigint": _longs,
}
