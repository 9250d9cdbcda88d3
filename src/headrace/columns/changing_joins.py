"""Joins and deduplication of rows that can be retracted: operations of `ChangelogKernel`.

Both compute their results from the rows that are there. So a row without a match comes at once, is retracted
when a match comes, and comes back when the last match is retracted; and the next row of a key passes when the
one that passed is retracted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.changelog import WEIGHT, comparable, row_codes, weighted, weights_of
from headrace.columns.first_rows import passing_rows
from headrace.columns.join_kernels import fill_pairs, find_ranges
from headrace.columns.joining import LEFT, MILLISECOND_US, RIGHT, SIDE
from headrace.columns.segments import AT, CODE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.columns.joining import From
    from headrace.columns.keyed import Times

    Numbers = NDArray[np.int64]
    Marks = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangingJoin:
    """Rows of both sides, with `SIDE`, `CODE`, `AT`, the keys, and the columns of each side."""

    name: str
    keys: tuple[str, ...]
    """The columns of the key; none where the code is the key itself."""
    keeps: tuple[bool, bool]
    """Whether rows of the left, and of the right, come out if they have no match."""
    before_us: int
    after_us: int
    result: tuple[From, ...]
    output: pa.Schema
    """Without a weight."""

    @property
    def groups(self) -> tuple[str, ...]:
        """The rows that can match."""
        return (CODE, *self.keys)

    def times_us(self, rows: pa.Table) -> Numbers:
        """The time of each row."""
        return _microseconds(rows[AT])

    def closes_us(self, rows: pa.Table) -> Numbers:
        """When no row can come any more that changes the matches of one that a row matches."""
        return self.times_us(rows) + self.before_us + self.after_us + MILLISECOND_US

    def expires_us(self, rows: pa.Table) -> Numbers:
        """The same: until then a row tells whether those that it matches have a match."""
        return self.closes_us(rows)

    def closing(self, rows: pa.Table, times: Times) -> Marks:
        """No result is closed: each is given at once."""
        del times
        return np.zeros(rows.num_rows, np.bool_)

    def kept(self, rows: pa.Table, times: Times) -> Marks:
        """The rows that new ones, or those that match new ones, can match."""
        return np.asarray(self.closes_us(rows) > times.watermark_us)

    def lone(self, rows: pa.Table) -> Marks:
        """Rows without a key or a time."""
        return np.asarray(
            pc.or_(pc.is_null(rows[CODE]), pc.is_null(rows[AT])).to_numpy(zero_copy_only=False), np.bool_
        )

    def lone_results(self, rows: pa.Table) -> pa.Table:
        """Those of them that come out, with their weights."""
        return pa.concat_tables(
            [
                self._alone(side, rows.filter(pc.equal(rows[SIDE], side)))
                for side in (LEFT, RIGHT)
                if self.keeps[side]
            ]
            or [weighted(self.output.empty_table(), 0)]
        )

    def results(self, rows: pa.Table) -> pa.Table:
        """All pairs, and rows without a match."""
        codes, at = row_codes(rows, self.groups), self.times_us(rows)
        order = np.lexsort((at, codes))
        codes, at, rows = codes[order], at[order], rows.take(pa.array(order))
        sides = np.asarray(rows[SIDE].to_numpy())
        places = [np.flatnonzero(sides == side) for side in (LEFT, RIGHT)]
        left, right = (rows.take(pa.array(place)) for place in places)
        firsts, lasts = (np.empty(len(places[LEFT]), np.int64) for _ in range(2))
        find_ranges(
            *(codes[places[LEFT]], at[places[LEFT]], codes[places[RIGHT]], at[places[RIGHT]]),
            *(self.before_us, self.after_us, firsts, lasts),
        )
        count = int((lasts - firsts).sum())
        ones, others = np.empty(count, np.int64), np.empty(count, np.int64)
        fill_pairs(firsts, lasts, 0, len(firsts), ones, others)
        made = [self._pairs(left.take(pa.array(ones)), right.take(pa.array(others)))]
        if self.keeps[LEFT]:
            made.append(self._alone(LEFT, left.filter(pa.array(lasts == firsts))))
        if self.keeps[RIGHT]:
            has_match = np.zeros(right.num_rows, np.bool_)
            has_match[others] = True
            made.append(self._alone(RIGHT, right.filter(pa.array(~has_match))))
        return pa.concat_tables(made)

    def _pairs(self, left: pa.Table, right: pa.Table) -> pa.Table:
        sides = (left, right)
        columns = [
            sides[source.side or LEFT][source.column].cast(field.type)
            for source, field in zip(self.result, self.output, strict=True)
        ]
        made = pa.Table.from_arrays(columns, schema=self.output)
        return weighted(made, weights_of(left) * weights_of(right))

    def _alone(self, side: int, rows: pa.Table) -> pa.Table:
        columns = [
            rows[source.column].cast(field.type)
            if source.side in (None, side)
            else pa.nulls(rows.num_rows, field.type)
            for source, field in zip(self.result, self.output, strict=True)
        ]
        return weighted(pa.Table.from_arrays(columns, schema=self.output), weights_of(rows))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangingFirstRows:
    """The first rows by key: first by time, and of rows of one time by their columns from left to right."""

    name: str
    keys: tuple[str, ...]
    time: str
    within_us: int

    @property
    def groups(self) -> tuple[str, ...]:
        """The rows of one key."""
        return self.keys

    def times_us(self, rows: pa.Table) -> Numbers:
        """The time of each row."""
        return _microseconds(rows[self.time])

    def closes_us(self, rows: pa.Table) -> Numbers:
        """When no row can come any more that a row is near."""
        return self.times_us(rows) + self.within_us

    def expires_us(self, rows: pa.Table) -> Numbers:
        """The same."""
        return self.closes_us(rows)

    def closing(self, rows: pa.Table, times: Times) -> Marks:
        """No result is closed: each is given at once."""
        del times
        return np.zeros(rows.num_rows, np.bool_)

    def kept(self, rows: pa.Table, times: Times) -> Marks:
        """Rows that can still be retracted, and those that passed and that a row to come can be near."""
        at = self.times_us(rows)
        is_open = at > times.watermark_us
        return np.asarray(is_open | (self._passes(rows) & (at + self.within_us > times.watermark_us)))

    def lone(self, rows: pa.Table) -> Marks:
        """Rows in which a column of the key, or the time, is null: they are like no other row."""
        missing = np.zeros(rows.num_rows, np.bool_)
        for name in (*self.keys, self.time):
            missing |= np.asarray(pc.is_null(rows[name]).to_numpy(zero_copy_only=False), np.bool_)
        return missing

    def lone_results(self, rows: pa.Table) -> pa.Table:
        """All of them pass."""
        return rows

    def results(self, rows: pa.Table) -> pa.Table:
        """The rows that pass."""
        return weighted(rows.filter(pa.array(self._passes(rows))), 1)

    def _passes(self, rows: pa.Table) -> Marks:
        others = [name for name in rows.column_names if name not in (*self.keys, self.time, WEIGHT)]
        columns = [rows[self.time], *(comparable(rows[name]) for name in others)]
        names = [f"by{number}" for number in range(len(columns))]
        keys = [(name, "ascending") for name in names]
        order = pc.sort_indices(pa.table(columns, names=names), sort_keys=keys).to_numpy()
        passes = np.empty(rows.num_rows, np.bool_)
        passes[order] = passing_rows(
            row_codes(rows, self.keys)[order], self.times_us(rows)[order], 0, self.within_us
        )
        return passes


def _microseconds(column: pa.ChunkedArray) -> Numbers:
    return np.asarray(column.cast(pa.int64()).to_numpy())
