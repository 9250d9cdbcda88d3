"""Rows in order of key, time and values, when most of them have been in order before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from headrace.columns.range_kernels import Numbers

LARGEST: Final = 1 << 62


def order_of(
    codes: NDArray[np.int64], at: NDArray[np.int64], values: Sequence[Numbers], kept: int
) -> NDArray[np.int64]:
    """Which row is where in order of code, time and values, the last value first.

    The first `kept` rows are in order already, if their codes go upwards: the others are sorted and put in
    between, which takes a third of the time of sorting all.
    """
    places = _places(codes, at)
    if places is None:
        return np.lexsort((*values, at, codes))
    if not kept or not _is_ascending(places[:kept]):
        order = stable_order(places)
        return _with_ties_in_order(order, places, values) if values else order
    fresh = stable_order(places[kept:])
    between = np.searchsorted(places[:kept], places[kept:][fresh], side="right")
    order = np.insert(np.arange(kept), between, fresh + kept)
    return _with_ties_in_order(order, places, values) if values else order


def stable_order(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Which row is where in order of numbers that are not negative; equal ones stay in their order.

    Numbers and rows are sorted as one number each if one has room for both: that is a third of the work, for
    processors have instructions for sorting numbers, and none that keep equal ones in their order.

    >>> stable_order(np.array([7, 0, 7, 3])).tolist()
    [1, 3, 0, 2]
    """
    bits = max(1, (len(numbers) - 1).bit_length())
    if not len(numbers) or int(numbers.max()) >> (62 - bits):
        return np.argsort(numbers, kind="stable")
    return np.sort(numbers << bits | np.arange(len(numbers))) & ((1 << bits) - 1)


def _places(codes: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Code and time as one number, if one has room for both."""
    if not len(codes):
        return codes
    span = int(at.max()) - int(at.min()) + 1
    if span * (int(codes.max()) + 1) > LARGEST:
        return None
    return np.asarray(codes * span + (at - at.min()))


def _is_ascending(places: NDArray[np.int64]) -> bool:
    return bool(np.all(places[1:] >= places[:-1]))


def _with_ties_in_order(
    order: NDArray[np.int64], places: NDArray[np.int64], values: Sequence[Numbers]
) -> NDArray[np.int64]:
    """The order, with rows of one place sorted by their values; rows of different places stay."""
    sorted_places = places[order]
    equal = sorted_places[1:] == sorted_places[:-1]
    tied = np.flatnonzero(np.concatenate([[False], equal]) | np.concatenate([equal, [False]]))
    if len(tied):
        rows = order[tied]
        order[tied] = rows[np.lexsort((*(each[rows] for each in values), places[rows]))]
    return order
