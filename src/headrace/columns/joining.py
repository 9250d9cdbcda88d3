"""The kernel of the join of two streams: rows of equal keys whose times are near each other.

New rows of each side are matched with the rows that the other side kept, and the new rows of both sides with
each other: so each pair is found once. Rows are kept, as segments, until the watermark says that no match can
come any more; in an outer join those that never had one come out then. Which rows had a match is kept apart
from the rows, by their ids, so that no segment changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.join_kernels import fill_pairs, find_matched, find_ranges
from headrace.columns.segments import AT, CODE, make_segments, same_keys, whole_numbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from headrace.columns.keyed import Times
    from headrace.columns.segments import JoinSegment

    Numbers: TypeAlias = NDArray[np.int64]
    Marks: TypeAlias = NDArray[np.bool_]

LEFT: Final = 0
RIGHT: Final = 1
SIDE: Final = "side"
"""The column that says which of the two a row is of."""
MILLISECOND_US: Final = 1000
PAIRS_AT_ONCE: Final = 500_000

ID: Final = "_headrace_id"
"""The column by which a kept row of a side that comes out without a match is known."""
MATCHED: Final = "_headrace_matched"
"""The column that says of such a row whether it had a match in its own batch."""
BEGINNING: Final = -(1 << 62)
"""Before every time."""

Sides: TypeAlias = "tuple[Sequence[JoinSegment], Sequence[JoinSegment]]"


def _no_matches(side: int, ids: Numbers) -> Marks:
    del side
    return np.zeros(len(ids), np.bool_)


class JoinState(NamedTuple):
    """What a join kept of a partition."""

    sides: Sides = ((), ())
    watermark_us: int = BEGINNING
    """Rows whose time was over by then have come out, if they had to."""
    has_match: Callable[[int, Numbers], Marks] = _no_matches
    """Which of the kept rows of a side, by their ids, were matched by a later batch."""


class Matches(NamedTuple):
    """Kept rows of a side that were matched for the first time, and their times; in order of id."""

    ids: Numbers
    times_us: Numbers


class JoinResult(NamedTuple):
    """What the kernel gives."""

    output: Iterator[pa.Table]
    added: Sides
    """The new rows to keep."""
    matches: tuple[Matches, Matches]
    late: int


class From(NamedTuple):
    """Where a column of the result comes from: a column of a side; keys are on both, and have none."""

    column: str
    side: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Rows of a segment of one side, each with the range of rows that match it in a segment of the other."""

    side: int
    one: JoinSegment
    other: JoinSegment
    firsts: Numbers
    lasts: Numbers

    def matched(self) -> Numbers:
        """The rows of the other segment that have a match."""
        rows = np.empty(find_matched(self.firsts, self.lasts, np.empty(0, np.int64)), np.int64)
        find_matched(self.firsts, self.lasts, rows)
        return rows

    def pairs(self) -> Iterator[tuple[Numbers, Numbers]]:
        """The positions of rows that match, some at a time."""
        ends = np.cumsum(self.lasts - self.firsts)
        begin = done = 0
        while begin < len(ends) and done < ends[-1]:
            end = max(begin + 1, int(np.searchsorted(ends, done + PAIRS_AT_ONCE, side="right")))
            count = int(ends[end - 1]) - done
            ones, others = np.empty(count, np.int64), np.empty(count, np.int64)
            fill_pairs(self.firsts, self.lasts, begin, end, ones, others)
            if count:
                yield ones, others
            begin, done = end, int(ends[end - 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinKernel:
    """Rows of both sides, with `SIDE`, `CODE`, `AT`, the keys, and the columns of each side."""

    keys: tuple[str, ...]
    """The columns of the key; none where the code is the key itself."""
    columns: tuple[tuple[str, ...], tuple[str, ...]]
    """The other columns of the left and of the right."""
    keeps: tuple[bool, bool]
    """Whether rows of the left, and of the right, come out if they have no match."""
    before_us: int
    after_us: int
    result: tuple[From, ...]
    output: pa.Schema

    def __call__(self, rows: pa.Table, kept: JoinState, times: Times) -> JoinResult:
        """Pairs of which one row is new, and rows whose time ran out without a match."""
        rows = rows.combine_chunks()
        late, loose, fresh = self._sorted_out(rows, times)
        probes = self._probes(fresh, kept.sides)
        matches = self._matches(probes, kept)
        due = [*self._due(kept, matches, times), *loose, *self._due_at_once(fresh, times)]
        added = tuple(
            [segment for segment in fresh[side] if segment.last_us > self.over_us(side, times.watermark_us)]
            for side in (LEFT, RIGHT)
        )
        return JoinResult(self._output(probes, due), (added[LEFT], added[RIGHT]), matches, late)

    def _sorted_out(self, rows: pa.Table, times: Times) -> tuple[int, list[tuple[int, pa.Table]], Sides]:
        """How many rows are late, those that can have no match, and segments of the others."""
        at, has_time = _filled(rows[AT])
        has_key = _filled(rows[CODE])[1]
        is_right = _filled(rows[SIDE])[0] == RIGHT
        is_late = has_time & (at <= times.late_us)
        can_match = has_time & has_key & ~is_late
        loose, fresh = [], []
        for side, here in ((LEFT, ~is_right), (RIGHT, is_right)):
            columns = rows.select([CODE, AT, *self.keys, *self.columns[side]])
            alone = here & ~can_match & ~is_late
            if self.keeps[side] and alone.any():
                loose.append((side, columns.filter(pa.array(alone))))
            known = columns.take(np.flatnonzero(here & can_match))
            fresh.append(make_segments(known, self.keys))
        return int(np.count_nonzero(is_late)), loose, (fresh[LEFT], fresh[RIGHT])

    def _probes(self, fresh: Sides, kept: Sides) -> list[Probe]:
        made = [
            self._probe(LEFT, one, other) for one in fresh[LEFT] for other in (*kept[RIGHT], *fresh[RIGHT])
        ]
        made += [self._probe(RIGHT, one, other) for one in fresh[RIGHT] for other in kept[LEFT]]
        return [probe for probe in made if probe is not None]

    def _probe(self, side: int, one: JoinSegment, other: JoinSegment) -> Probe | None:
        before, after = (self.before_us, self.after_us)[:: 1 if side == LEFT else -1]
        if other.last_us < one.first_us - before or other.first_us > one.last_us + after:
            return None
        firsts, lasts = np.empty(len(one), np.int64), np.empty(len(one), np.int64)
        find_ranges(one.codes, one.times, other.codes, other.times, before, after, firsts, lasts)
        if self.keys:
            found = np.flatnonzero(lasts > firsts)
            same = same_keys(one.rows, found, other.rows, firsts[found], self.keys)
            lasts[found[~same]] = firsts[found[~same]]
        return Probe(side=side, one=one, other=other, firsts=firsts, lasts=lasts)

    def over_us(self, side: int, watermark_us: int) -> int:
        """The last time for which no match can come any more; Spark's bound, which counts milliseconds."""
        return watermark_us - (self.after_us if side == LEFT else self.before_us) - MILLISECOND_US

    def _matches(self, probes: Sequence[Probe], kept: JoinState) -> tuple[Matches, Matches]:
        """Mark the new rows that have a match, and find the kept ones that had none before."""
        found: tuple[list[pa.Table], list[pa.Table]] = ([], [])
        for probe in probes:
            other = RIGHT if probe.side == LEFT else LEFT
            if self.keeps[probe.side]:
                probe.one.matched[probe.lasts > probe.firsts] = True
            if self.keeps[other]:
                rows = probe.matched()
                if ID in probe.other.rows.column_names:
                    known = probe.other.rows.select([ID, AT, MATCHED]).take(rows)
                    found[other].append(known.filter(pc.invert(known[MATCHED])))
                else:
                    probe.other.matched[rows] = True
        left, right = (self._first_matches(side, found[side], kept) for side in (LEFT, RIGHT))
        return left, right

    def _first_matches(self, side: int, found: Sequence[pa.Table], kept: JoinState) -> Matches:
        if not found:
            return Matches(np.empty(0, np.int64), np.empty(0, np.int64))
        rows = pa.concat_tables(found)
        ids, firsts = np.unique(whole_numbers(rows[ID]), return_index=True)
        is_new = ~kept.has_match(side, ids)
        return Matches(ids[is_new], whole_numbers(rows[AT])[firsts[is_new]])

    def _due(
        self, kept: JoinState, matches: tuple[Matches, Matches], times: Times
    ) -> Iterator[tuple[int, pa.Table]]:
        """Kept rows without a match whose time has run out since the batch before."""
        for side in (LEFT, RIGHT):
            until_us = self.over_us(side, times.watermark_us)
            after_us = self.over_us(side, kept.watermark_us)
            for segment in kept.sides[side] if self.keeps[side] else ():
                if segment.first_us > until_us or segment.last_us <= after_us:
                    continue
                places = segment.between(after_us, until_us)
                rows = segment.rows.take(places)
                ids = whole_numbers(rows[ID])
                order = np.argsort(ids)
                has_match = np.array(rows[MATCHED].to_numpy(zero_copy_only=False), np.bool_)
                has_match[order] |= kept.has_match(side, ids[order])
                waits = ~has_match & ~np.isin(ids, matches[side].ids)
                if waits.any():
                    yield side, rows.filter(pa.array(waits))

    def _due_at_once(self, fresh: Sides, times: Times) -> Iterator[tuple[int, pa.Table]]:
        """New rows without a match whose time has run out already."""
        for side in (LEFT, RIGHT):
            until_us = self.over_us(side, times.watermark_us)
            for segment in fresh[side] if self.keeps[side] else ():
                waits = (segment.times <= until_us) & ~segment.matched
                if waits.any():
                    yield side, segment.rows.filter(pa.array(waits))

    def _output(self, probes: Sequence[Probe], due: Sequence[tuple[int, pa.Table]]) -> Iterator[pa.Table]:
        for probe in probes:
            for ones, others in probe.pairs():
                tables = (probe.one.rows, probe.other.rows)
                places = (ones, others)
                turn = 1 if probe.side == LEFT else -1
                yield self._rows(tables[::turn], places[::turn])
        for side, rows in due:
            yield self._alone(side, rows)

    def _rows(self, tables: Sequence[pa.Table], places: Sequence[Numbers]) -> pa.Table:
        made = []
        for source, field in zip(self.result, self.output, strict=True):
            side = LEFT if source.side is None else source.side
            made.append(tables[side][source.column].take(places[side]).cast(field.type))
        return pa.Table.from_arrays(made, schema=self.output)

    def _alone(self, side: int, rows: pa.Table) -> pa.Table:
        made = [
            rows[source.column].cast(field.type)
            if source.side in (None, side)
            else pa.nulls(rows.num_rows, field.type)
            for source, field in zip(self.result, self.output, strict=True)
        ]
        return pa.Table.from_arrays(made, schema=self.output)


def _filled(column: pa.ChunkedArray) -> tuple[Numbers, Marks]:
    """The numbers of a column, 0 where there is none, and where there is one."""
    numbers = column.cast(pa.int64()).combine_chunks()
    filled = pc.fill_null(numbers, 0) if numbers.null_count else numbers
    return np.asarray(filled.to_numpy()), np.asarray(pc.is_valid(numbers).to_numpy(zero_copy_only=False))
