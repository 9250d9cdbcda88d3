"""Rows that a join keeps, in pieces that never change: each in order of key and time.

A micro-batch adds a segment with its own rows; what was kept is not written again. When there are `FAN`
segments of about one size they become one, so that a row is copied a few times in its life, and there are
never many segments to look into.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

CODE: Final = "code"
"""A number that is the same for rows of the same key."""
AT: Final = "at"
"""When a row happened."""
FAN: Final = 8
SMALLEST: Final = 1024
"""Segments up to this are of one size."""


@dataclass(frozen=True, kw_only=True, eq=False)
class JoinSegment:
    """Rows of one side in order of code and time. All rows of a code have the same key."""

    rows: pa.Table
    """With `CODE` and `AT`, neither of which is null."""
    matched: NDArray[np.bool_] | None = None
    """Which rows have had a match; None where nobody asks."""
    name: str = ""
    """What it is stored as; empty as long as it is not."""

    @cached_property
    def codes(self) -> NDArray[np.int64]:
        """The rows' codes."""
        return whole_numbers(self.rows[CODE])

    @cached_property
    def times(self) -> NDArray[np.int64]:
        """The rows' times, in microseconds since 1970."""
        return whole_numbers(self.rows[AT])

    @cached_property
    def first_us(self) -> int:
        """The earliest time."""
        return int(self.times.min())

    @cached_property
    def last_us(self) -> int:
        """The latest time."""
        return int(self.times.max())

    def __len__(self) -> int:
        return int(self.rows.num_rows)


def whole_numbers(column: pa.ChunkedArray) -> NDArray[np.int64]:
    """A column without nulls as numbers; times as microseconds."""
    numbers = column.cast(pa.int64())
    return np.asarray((numbers.chunk(0) if numbers.num_chunks == 1 else numbers).to_numpy())


def make_segments(
    rows: pa.Table, keys: Sequence[str], matched: NDArray[np.bool_] | None = None
) -> list[JoinSegment]:
    """The rows in segments: one, or none if there are no rows.

    Where two keys have the same code, which happens once in many years, the rows of the second one are a
    segment of their own. `keys` are the columns to tell that by; there are none if the code is the key.
    """
    if not rows.num_rows:
        return []
    order = np.lexsort((whole_numbers(rows[AT]), whole_numbers(rows[CODE])))
    ordered = rows.take(order).combine_chunks()
    marks = None if matched is None else matched[order]
    return list(_told_apart(JoinSegment(rows=ordered, matched=marks), keys))


def _told_apart(segment: JoinSegment, keys: Sequence[str]) -> Iterator[JoinSegment]:
    codes = segment.codes
    begins = np.concatenate([[True], codes[1:] != codes[:-1]])
    places = np.arange(len(codes))
    previous = np.maximum(places - 1, 0)
    if not keys or (begins | same_keys(segment.rows, places, segment.rows, previous, keys)).all():
        yield segment
        return
    firsts = np.flatnonzero(begins)[np.cumsum(begins) - 1]
    same = same_keys(segment.rows, places, segment.rows, firsts, keys)
    yield _part(segment, same)
    yield from _told_apart(_part(segment, ~same), keys)


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


def _part(segment: JoinSegment, which: NDArray[np.bool_]) -> JoinSegment:
    matched = None if segment.matched is None else segment.matched[which]
    return JoinSegment(rows=segment.rows.filter(pa.array(which)).combine_chunks(), matched=matched)


def merge_segments(segments: Iterable[JoinSegment], keys: Sequence[str], over_us: int) -> list[JoinSegment]:
    """As few segments as there have to be; what is merged loses the rows whose time is over."""
    made = list(segments)
    while group := _crowd(made):
        rest = [segment for segment in made if segment not in group]
        made = rest + _merged(group, keys, over_us)
    return made


def _crowd(segments: Sequence[JoinSegment]) -> list[JoinSegment]:
    """The segments of one size, the smallest that there are too many of."""
    by_size: dict[int, list[JoinSegment]] = {}
    for segment in segments:
        by_size.setdefault(_size(len(segment)), []).append(segment)
    return next((by_size[size] for size in sorted(by_size) if len(by_size[size]) >= FAN), [])


def _size(rows: int) -> int:
    """About how large: each size is `FAN` times the one before.

    >>> [_size(rows) for rows in (1, 1023, 1024 * 8, 1024 * 64)]
    [0, 0, 1, 2]
    """
    return max(0, (rows // SMALLEST).bit_length() - 1) // (FAN.bit_length() - 1)


def _merged(group: Sequence[JoinSegment], keys: Sequence[str], over_us: int) -> list[JoinSegment]:
    parts = [_part(segment, segment.times > over_us) for segment in group]
    marks = [part.matched for part in parts if part.matched is not None]
    rows = pa.concat_tables([part.rows for part in parts])
    return make_segments(rows, keys, np.concatenate(marks) if marks else None)
