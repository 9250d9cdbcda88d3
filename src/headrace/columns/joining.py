"""The kernel of the join of two streams: rows of equal keys whose times are near each other.

New rows of each side look into what the other side kept, and the new rows of both into each other: so each
pair is found once. Rows are kept, as segments, until the watermark says that no match can come any more; in
an outer join those that never had one come out then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.join_kernels import fill_pairs, find_ranges, mark_ranges
from headrace.columns.segments import AT, CODE, JoinSegment, make_segments, merge_segments, same_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from headrace.columns.keyed import Times

    Numbers: TypeAlias = NDArray[np.int64]
    Marks: TypeAlias = NDArray[np.bool_]

LEFT: Final = 0
RIGHT: Final = 1
SIDE: Final = "side"
"""The column that says which of the two a row is of."""
MILLISECOND_US: Final = 1000
PAIRS_AT_ONCE: Final = 500_000

Sides: TypeAlias = tuple[tuple[JoinSegment, ...], tuple[JoinSegment, ...]]


class JoinState(NamedTuple):
    """What a join keeps of a partition."""

    sides: Sides = ((), ())
    watermark_us: int = 0
    """Rows whose time was over by then have come out, if they had to."""


class JoinResult(NamedTuple):
    """What the kernel gives."""

    output: Iterator[pa.Table]
    kept: JoinState | None
    """None if nothing changed."""
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

    def mark(self) -> None:
        """Note in both segments which rows have a match."""
        marks = [_marks(segment) for segment in (self.one, self.other)]
        mark_ranges(self.firsts, self.lasts, *marks)

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
        """Pairs of which one row is new, and what has waited in vain."""
        rows = rows.combine_chunks()
        late, loose, fresh = self._sorted_out(rows, times)
        probes = self._probes(fresh, kept.sides)
        for probe in probes:
            if any(self.keeps):
                probe.mark()
        due = list(self._due(kept.sides, kept.watermark_us, times))
        after = self._after(kept, fresh, times)
        # A probe may have marked rows that are kept, though its own rows are over at once.
        has_changed = bool(due or probes) or after.sides != kept.sides
        due += [*loose, *self._due(fresh, None, times)]
        return JoinResult(self._output(probes, due), after if has_changed else None, late)

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
            marks = np.zeros(known.num_rows, np.bool_) if self.keeps[side] else None
            fresh.append(tuple(make_segments(known, self.keys, marks)))
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

    def _over_us(self, side: int, watermark_us: int) -> int:
        """The last time for which no match can come any more; Spark's bound, which counts milliseconds."""
        return watermark_us - (self.after_us if side == LEFT else self.before_us) - MILLISECOND_US

    def _due(self, sides: Sides, watermark_us: int | None, times: Times) -> Iterator[tuple[int, pa.Table]]:
        """Rows without a match whose time has run out since a watermark, or before that if they are new."""
        for side in (LEFT, RIGHT):
            over_us = self._over_us(side, times.watermark_us)
            for segment in sides[side] if self.keeps[side] else ():
                if segment.first_us > over_us:
                    continue
                waits = (segment.times <= over_us) & ~_marks(segment)
                if watermark_us is not None:
                    waits &= segment.times > self._over_us(side, watermark_us)
                if waits.any():
                    yield side, segment.rows.filter(pa.array(waits))

    def _after(self, kept: JoinState, fresh: Sides, times: Times) -> JoinState:
        left, right = (self._next(side, kept.sides[side], fresh[side], times) for side in (LEFT, RIGHT))
        return JoinState((left, right), times.watermark_us)

    def _next(
        self, side: int, kept: Sequence[JoinSegment], fresh: Sequence[JoinSegment], times: Times
    ) -> tuple[JoinSegment, ...]:
        over_us = self._over_us(side, times.watermark_us)
        stays = [segment for segment in (*kept, *fresh) if segment.last_us > over_us]
        return tuple(merge_segments(stays, self.keys, over_us))

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


def _marks(segment: JoinSegment) -> Marks:
    """Where a segment's matches are noted; a place that is thrown away where nobody asks."""
    return np.zeros(len(segment), np.bool_) if segment.matched is None else segment.matched
