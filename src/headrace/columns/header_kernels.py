"""Compiled loops that look for headers of records by name, and read numbers in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.protocol.kernels import borrowing, read_varint

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.protocol.kernels import Octets

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
    """Note for each name and record where the last header of that name has its value; −1 where there is none.

    `names` are one behind the other, each up to its place in `ends`; the walk found all headers sound.
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
    """Which of the names it is, −1 for none.

    Most writers keep an order, so the name after the last one that was found is looked at first.
    """
    for step in range(len(ends)):
        index = (following + step) % len(ends)
        begin = ends[index - 1] if index else 0
        if ends[index] - begin == size and _is_same(data, start, names, begin, size):
            return index
    return -1


@borrowing
def _is_same(data: Octets, start: int, names: Octets, begin: int, size: int) -> bool:
    # From the end: names that begin alike are common, ce_type and ce_time.
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
    """The decimal numbers in spans of `data`, with or without a sign; not valid is what is none.

    Nor is what is larger than `largest`, or less than −`largest` − 1.
    """
    for row in range(len(starts)):
        position = starts[row]
        end = position + sizes[row]
        is_negative = position < end and data[position] == _MINUS
        if position < end and (is_negative or data[position] == _PLUS):
            position += 1
        # Counted downwards: there is one negative number more than there are positive ones.
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
