"""Headers of records as columns: each requested one by its name, as text, bytes or a number.

A header that is missing or has no value is null; of several with one name the last one counts, as with the
`lastHeader` of Kafka's clients. Invalid UTF-8 is replaced, and a number that does not parse or fit is null,
so that no record stops a reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.buffers import binary_array, text_array, valid_bits
from headrace.protocol.kernels import borrowing, octets, read_varint
from headrace.protocol.records import HEADER_COUNT, HEADERS_START

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from headrace.protocol.kernels import Columns, Octets

    Spans: TypeAlias = NDArray[np.int64]

_PLUS: Final = 43
_MINUS: Final = 45
_ZERO: Final = 48


@borrowing
def find_headers(
    data: Octets,
    places: NDArray[np.int64],
    counts: NDArray[np.int64],
    names: Octets,
    ends: NDArray[np.int64],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
) -> None:
    """Find the value of the last header of each name in each record; −1 if a record has no such header.

    `names` are concatenated, each up to its position in `ends`; the walk has checked all headers.
    """
    for row in range(len(places)):
        for index in range(len(ends)):
            starts[index, row] = 0
            sizes[index, row] = -1
        position = places[row]
        following = 0
        for _ in range(counts[row]):
            name_size, name = read_varint(data, position, len(data), 32)
            size, start = read_varint(data, name + name_size, len(data), 32)
            position = start + max(size, 0)
            found = _find_name(data, name, name_size, names, ends, following)
            if found >= 0:
                starts[found, row] = start
                sizes[found, row] = size
                following = found + 1


@borrowing
def _find_name(
    data: Octets, start: int, size: int, names: Octets, ends: NDArray[np.int64], following: int
) -> int:
    """The index of the name, or −1.

    Most writers keep an order, so the name after the last one found is compared first.
    """
    for step in range(len(ends)):
        index = (following + step) % len(ends)
        begin = ends[index - 1] if index else 0
        if ends[index] - begin == size and _is_same(data, start, names, begin, size):
            return index
    return -1


@borrowing
def _is_same(data: Octets, start: int, names: Octets, begin: int, size: int) -> bool:
    # From the end: names with equal beginnings are common, such as ce_type and ce_time.
    for index in range(size - 1, -1, -1):  # noqa: SIM110  numba would make a generator of `all`
        if data[start + index] != names[begin + index]:
            return False
    return True


@borrowing
def read_numbers(
    data: Octets,
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    largest: int,
    numbers: NDArray[np.int64],
    valid: NDArray[np.bool_],
) -> None:
    """The decimal numbers in spans of `data`, with or without a sign; other text is not valid.

    Numbers larger than `largest`, or less than −`largest` − 1, are not valid either.
    """
    for row in range(len(starts)):
        position = starts[row]
        end = position + sizes[row]
        is_negative = position < end and data[position] == _MINUS
        if position < end and (is_negative or data[position] == _PLUS):
            position += 1
        # Counted downwards: there is one more negative number than positive ones.
        least = -largest - 1 if is_negative else -largest
        number = np.int64(0)
        good = position < end
        while good and position < end:
            digit = np.int64(data[position]) - _ZERO
            good = 0 <= digit <= 9 and number >= (least + digit + 9) // 10
            if good:
                number = number * 10 - digit
            position += 1
        numbers[row] = number if is_negative else -number
        valid[row] = good


class HeaderColumn(NamedTuple):
    """A header that is a column of the same name. Plain data."""

    name: str
    type: str
    """One of `TYPES`."""


class HeaderFinder:
    """Builds columns of headers from decoded records."""

    def __init__(self, wanted: Sequence[HeaderColumn]) -> None:
        self._wanted = wanted
        names = [column.name.encode() for column in wanted]
        self._names = octets(b"".join(names))
        self._ends = np.cumsum([len(name) for name in names], dtype=np.int64)

    def arrays(self, data: Octets, columns: Columns, rows: int) -> dict[str, pa.Array]:
        """The requested headers of the first `rows` records, by name."""
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
    """Selects the records whose headers each have one of the accepted texts."""

    def __init__(self, wanted: Mapping[str, Sequence[str]]) -> None:
        self._finder = HeaderFinder([HeaderColumn(name, "binary") for name in wanted])
        self._texts = {
            name: pa.array([text.encode() for text in texts], pa.binary()) for name, texts in wanted.items()
        }

    def mask(self, data: Octets, columns: Columns, rows: int) -> NDArray[np.bool_] | None:
        """Whether each of the first `rows` records is selected; None if all are."""
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
