"""Segments: rows of one side of a join in order of code and time, in pieces that never change."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

CODE: Final = "code"
"""A number that is the same for rows of the same key."""
AT: Final = "at"
"""When a row happened."""


class JoinSegment:
    """Rows of one side in order of code and time. All rows of a code have the same key."""

    def __init__(self, load: Callable[[], pa.Table], *, count: int, first_us: int, last_us: int) -> None:
        self._load = load
        self._count = count
        self.first_us = first_us
        """The earliest time."""
        self.last_us = last_us
        """The latest time."""

    @classmethod
    def of(cls, rows: pa.Table) -> Self:
        """The segment of rows that are in order."""
        at = whole_numbers(rows[AT])
        return cls(lambda: rows, count=rows.num_rows, first_us=int(at.min()), last_us=int(at.max()))

    @cached_property
    def rows(self) -> pa.Table:
        """The rows, with `CODE` and `AT`, neither of which is null."""
        return self._load()

    @cached_property
    def codes(self) -> NDArray[np.int64]:
        """The rows' codes."""
        return whole_numbers(self.rows[CODE])

    @cached_property
    def times(self) -> NDArray[np.int64]:
        """The rows' times, in microseconds since 1970."""
        return whole_numbers(self.rows[AT])

    @cached_property
    def matched(self) -> NDArray[np.bool_]:
        """Which rows have a match among the rows of their own batch: to be filled in."""
        return np.zeros(len(self), np.bool_)

    def between(self, after_us: int, until_us: int) -> NDArray[np.int64]:
        """The rows of after < time <= until."""
        return np.flatnonzero((self.times > after_us) & (self.times <= until_us))

    def __len__(self) -> int:
        return self._count


def whole_numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """A column without nulls as numbers; times as microseconds."""
    numbers = column.cast(pa.int64())
    return np.asarray((numbers.chunk(0) if numbers.num_chunks == 1 else numbers).to_numpy())


def make_segments(rows: pa.Table, keys: Sequence[str]) -> list[JoinSegment]:
    """The rows in segments: one, or none if there are no rows.

    Where two keys have the same code, which happens once in many years, the rows of the second one are a
    segment of their own. `keys` are the columns to tell that by; there are none if the code is the key.
    """
    if not rows.num_rows:
        return []
    order = np.lexsort((whole_numbers(rows[AT]), whole_numbers(rows[CODE])))
    return [JoinSegment.of(part) for part in _told_apart(rows.take(order).combine_chunks(), keys)]


def _told_apart(rows: pa.Table, keys: Sequence[str]) -> Iterator[pa.Table]:
    codes = whole_numbers(rows[CODE])
    begins = np.concatenate([[True], codes[1:] != codes[:-1]])
    places = np.arange(len(codes))
    previous = np.maximum(places - 1, 0)
    if not keys or (begins | same_keys(rows, places, rows, previous, keys)).all():
        yield rows
        return
    firsts = np.flatnonzero(begins)[np.cumsum(begins) - 1]
    same = same_keys(rows, places, rows, firsts, keys)
    yield rows.filter(pa.array(same)).combine_chunks()
    yield from _told_apart(rows.filter(pa.array(~same)).combine_chunks(), keys)


def same_keys(
    one: pa.Table,
    ones: NDArray[np.int64],
    other: pa.Table,
    others: NDArray[np.int64],
    keys: Sequence[str],
) -> NDArray[np.bool_]:
    """Whether rows of two tables have the same keys, pair by pair."""
    same = np.ones(len(ones), np.bool_)
    for key in keys:
        same &= pc.equal(one[key].take(ones), other[key].take(others)).to_numpy()
    return same
