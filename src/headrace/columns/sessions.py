"""The kernels of sessions: events into stretches, and stretches into sessions.

A stretch is what some events of a key come to that belong together already, as far as one task has seen:
none of them is further from the others than the gap. Stretches that another brings together become one, and a
session is a stretch that nothing can reach any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from headrace.columns.keyed import Outcome, key_codes
from headrace.columns.measures import ROWS, Ranges, decimal_sums, merge_parts, part_names, parts_of
from headrace.columns.range_kernels import find_stretches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from headrace.columns.keyed import Times
    from headrace.columns.measures import Measure, Parts
    from headrace.columns.range_kernels import Positions

FIRST: Final = "_headrace_first"
LAST: Final = "_headrace_last"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Sessions by what parts them: an event further than this from the last one begins another."""

    gap_us: int

    @property
    def places(self) -> tuple[str, ...]:
        """The columns that say where a stretch is."""
        return FIRST, LAST

    def sums(self, time: str, keys: tuple[str, ...], measures: tuple[Measure, ...]) -> StretchSums:
        """What makes stretches of rows."""
        return StretchSums(time=time, keys=keys, measures=measures, gap_us=self.gap_us)

    def kernel(
        self, keys: tuple[str, ...], measures: tuple[Measure, ...], output: pa.Schema
    ) -> SessionKernel:
        """What makes sessions of stretches."""
        return SessionKernel(keys=keys, measures=measures, gap_us=self.gap_us, output=output)


@dataclass(frozen=True, slots=True, kw_only=True)
class StretchSums:
    """Rows of time, keys and values as one row for each stretch: keys, first and last time, parts.

    An event is late or not by itself, whatever comes with it: so late ones have stretches of their own.
    """

    time: str
    keys: tuple[str, ...]
    measures: tuple[Measure, ...]
    gap_us: int

    def __call__(self, batches: Iterable[pa.RecordBatch], times: Times) -> Iterator[pa.RecordBatch]:
        """What a task has read, summed up; rows without a time are in no session."""
        made: dict[bool, list[pa.Table]] = {False: [], True: []}
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            rows = rows.filter(rows[self.time].is_valid()) if rows[self.time].null_count else rows
            at_us = rows[self.time].cast(pa.int64()).to_numpy()
            late = at_us + self.gap_us <= times.late_us
            for is_late, chosen in ((False, ~late), (True, late)):
                if chosen.any():
                    some = rows if chosen.all() else rows.filter(pa.array(chosen))
                    made[is_late].append(self._sum_up(some, at_us[chosen]))
        for some in filter(None, made.values()):
            yield from self._together(some).to_batches()

    def _sum_up(self, rows: pa.Table, at_us: Positions) -> pa.Table:
        return _stretched(rows, self.keys, (at_us, at_us), parts_of(rows, self._names), self.gap_us)

    def _together(self, made: list[pa.Table]) -> pa.Table:
        return made[0] if len(made) == 1 else stretched(made, self.keys, self._names, self.gap_us)

    @property
    def _names(self) -> tuple[str, ...]:
        return part_names(self.measures)


def stretched(pieces: list[pa.Table], keys: tuple[str, ...], names: tuple[str, ...], gap_us: int) -> pa.Table:
    """One row for each stretch, in order of key and time."""
    rows = pa.concat_tables(pieces)
    parts = {name: rows[name].to_numpy() for name in names}
    return _stretched(rows, keys, (rows[FIRST].to_numpy(), rows[LAST].to_numpy()), parts, gap_us)


def _stretched(
    rows: pa.Table, keys: tuple[str, ...], spans: tuple[Positions, Positions], parts: Parts, gap_us: int
) -> pa.Table:
    codes = key_codes(rows, keys)
    # Sums decide last: a shuffle brings parts in another order each time.
    order = np.lexsort((*decimal_sums(parts), *reversed(spans), codes))
    firsts, lasts = (span[order] for span in spans)
    starts = np.empty(len(order), np.int64)
    starts = starts[: find_stretches(codes[order], firsts, lasts, gap_us, starts)]
    if len(starts):
        lasts = np.maximum.reduceat(lasts, starts)
        parts = merge_parts({name: values[order] for name, values in parts.items()}, starts)
    columns = {key: rows[key].take(order[starts]) for key in keys}
    return pa.table({**columns, FIRST: firsts[starts], LAST: lasts, **parts})


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKernel:
    """Stretches of keys; what comes out has window_start, window_end, keys and aggregates."""

    keys: tuple[str, ...]
    measures: tuple[Measure, ...]
    gap_us: int
    output: pa.Schema

    def __call__(self, rows: pa.Table, state: pa.Table | None, times: Times) -> Outcome:
        """The sessions that the watermark closes; what is kept are those that may go on."""
        fresh, late = self._without_late(rows, times.late_us)
        if not fresh.num_rows and (state is None or not self._ended(state, times.watermark_us).any()):
            return Outcome(self.output.empty_table(), state, late)
        pieces = [fresh] if state is None else [state, fresh]
        held = stretched(pieces, self.keys, part_names(self.measures), self.gap_us)
        ended = self._ended(held, times.watermark_us)
        return Outcome(self._results(held.filter(pa.array(ended))), held.filter(pa.array(~ended)), late)

    def _ended(self, stretches: pa.Table, time_us: int) -> NDArray[np.bool_]:
        return np.asarray(stretches[LAST].to_numpy() + self.gap_us <= time_us)

    def _without_late(self, rows: pa.Table, late_us: int) -> tuple[pa.Table, int]:
        missed = self._ended(rows, late_us)
        late = int(rows[ROWS].to_numpy()[missed].sum())
        return (rows.filter(pa.array(~missed)) if late else rows), late

    def _results(self, sessions: pa.Table) -> pa.Table:
        each = np.arange(sessions.num_rows)
        ranges = Ranges(firsts=each, lasts=each, blocks=each)
        parts = {name: np.array(sessions[name].to_numpy()) for name in part_names(self.measures)}
        columns = [sessions[FIRST], pa.array(sessions[LAST].to_numpy() + self.gap_us)]
        columns += [sessions[key] for key in self.keys]
        columns += [ranges.measure(measure, parts) for measure in self.measures]
        made = [column.cast(field.type) for column, field in zip(columns, self.output, strict=True)]
        return pa.Table.from_arrays(made, schema=self.output)
