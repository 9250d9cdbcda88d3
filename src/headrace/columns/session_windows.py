"""Session windows: rows are aggregated into stretches, and stretches into sessions.

```text
 one task       ●─●───●            ●──●        stretches: rows that are no further apart than the gap
 another             ●───●──●                  joins the first and the second
 a session      └───────────┘      └──┘        closes when the watermark is a gap behind its last row
```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from headrace.columns.aggregates import (
    ROWS,
    Ranges,
    decimal_sums,
    fitted,
    merge_parts,
    partials_of,
    parts_of_rows,
    parts_of_table,
    with_state,
)
from headrace.columns.keyed import Deadlines, KernelResult, StatefulKernel, key_codes
from headrace.columns.range_kernels import find_stretches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from headrace.columns.aggregates import AggregateSpec, Partial, Parts
    from headrace.columns.keyed import Times
    from headrace.columns.range_kernels import Positions
    from headrace.columns.window_assigners import WindowKernelSettings

FIRST: Final = "_headrace_first"
LAST: Final = "_headrace_last"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAssigner:
    """Sessions by their gap: a row further than this from the last one begins another session."""

    gap_us: int

    @property
    def places(self) -> tuple[str, ...]:
        """The columns that say where a partial aggregate is in time."""
        return FIRST, LAST

    def partial_aggregation(
        self, time: str, keys: tuple[str, ...], specs: tuple[AggregateSpec, ...]
    ) -> StretchAggregation:
        """What makes stretches of rows."""
        return StretchAggregation(time=time, keys=keys, specs=specs, gap_us=self.gap_us)

    def kernel(self, settings: WindowKernelSettings) -> SessionKernel:
        """What makes sessions of stretches."""
        return SessionKernel(settings=settings, gap_us=self.gap_us)


@dataclass(frozen=True, slots=True, kw_only=True)
class StretchAggregation:
    """Rows of time, keys and values as one row for each stretch: keys, its first and last time, partials.

    A row is late or not, whatever arrives with it: so late rows have stretches of their own.
    """

    time: str
    keys: tuple[str, ...]
    specs: tuple[AggregateSpec, ...]
    gap_us: int

    def __call__(self, batches: Iterable[pa.RecordBatch], times: Times) -> Iterator[pa.RecordBatch]:
        """The stretches of what one task has read; rows without a time are in no session."""
        made: dict[bool, list[pa.Table]] = {False: [], True: []}
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            rows = rows.filter(rows[self.time].is_valid()) if rows[self.time].null_count else rows
            at_us = rows[self.time].cast(pa.int64()).to_numpy()
            late = at_us + self.gap_us <= times.late_us
            for is_late, chosen in ((False, ~late), (True, late)):
                if chosen.any():
                    some = rows if chosen.all() else rows.filter(pa.array(chosen))
                    made[is_late].append(self._aggregate(some, at_us[chosen]))
        for some in filter(None, made.values()):
            whole = (
                some[0]
                if len(some) == 1
                else merge_stretches(pa.concat_tables(some), self.keys, self._partials, self.gap_us)
            )
            yield from whole.to_batches()

    def _aggregate(self, rows: pa.Table, at_us: Positions) -> pa.Table:
        partials = self._partials
        return _merged(rows, self.keys, (at_us, at_us), parts_of_rows(rows, partials), partials, self.gap_us)

    @property
    def _partials(self) -> tuple[Partial, ...]:
        return partials_of(self.specs)


def merge_stretches(
    rows: pa.Table, keys: tuple[str, ...], partials: tuple[Partial, ...], gap_us: int
) -> pa.Table:
    """One row for each stretch, in order of key and time."""
    spans = (rows[FIRST].to_numpy(), rows[LAST].to_numpy())
    return _merged(rows, keys, spans, parts_of_table(rows, partials), partials, gap_us)


def _merged(
    rows: pa.Table,
    keys: tuple[str, ...],
    spans: tuple[Positions, Positions],
    parts: Parts,
    partials: tuple[Partial, ...],
    gap_us: int,
) -> pa.Table:
    codes = key_codes(rows, keys)
    # Sums decide last: a shuffle delivers partial sums in another order each time.
    order = np.lexsort((*decimal_sums(parts), *reversed(spans), codes))
    firsts, lasts = (span[order] for span in spans)
    starts = np.empty(len(order), np.int64)
    starts = starts[: find_stretches(codes[order], firsts, lasts, gap_us, starts)]
    if len(starts):
        lasts = np.maximum.reduceat(lasts, starts)
    parts = merge_parts(parts, partials, order, starts)
    columns = {key: rows[key].take(order[starts]) for key in keys}
    return pa.table({**columns, FIRST: firsts[starts], LAST: lasts, **parts})


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionKernel(StatefulKernel):
    """Stretches of keys; the output has window_start, window_end, keys and aggregates."""

    settings: WindowKernelSettings
    gap_us: int

    def __call__(self, rows: pa.Table, state: pa.Table | None, times: Times) -> KernelResult:
        """The sessions that the watermark closes; the state are those that may still grow."""
        settings = self.settings
        fresh, late = self._without_late(rows, times.late_us)
        if not fresh.num_rows and (state is None or not self._ended(state, times.watermark_us).any()):
            return KernelResult(settings.output.empty_table(), state, late)
        held = with_state(state, fresh, settings.partials)
        held = merge_stretches(held, settings.keys, settings.partials, self.gap_us)
        ended = self._ended(held, times.watermark_us)
        return KernelResult(self._results(held.filter(pa.array(ended))), held.filter(pa.array(~ended)), late)

    def deadlines(self, state: pa.Table, times: Times) -> Deadlines:
        """A session is due, and gone, when the watermark is a gap behind its last row."""
        del times
        ends_us = state[LAST].to_numpy() + self.gap_us
        return Deadlines(ends_us, ends_us)

    def upgraded(self, state: pa.Table, schema: pa.Schema) -> pa.Table:
        """The state with the partial aggregates of today's aggregates."""
        return self.settings.upgraded(state, schema)

    def _ended(self, stretches: pa.Table, time_us: int) -> NDArray[np.bool_]:
        return np.asarray(stretches[LAST].to_numpy() + self.gap_us <= time_us)

    def _without_late(self, rows: pa.Table, late_us: int) -> tuple[pa.Table, int]:
        missed = self._ended(rows, late_us)
        late = int(rows[ROWS].to_numpy()[missed].sum())
        return (rows.filter(pa.array(~missed)) if late else rows), late

    def _results(self, sessions: pa.Table) -> pa.Table:
        settings = self.settings
        each = np.arange(sessions.num_rows)
        ranges = Ranges(firsts=each, lasts=each, blocks=each)
        parts = parts_of_table(sessions, settings.partials)
        columns = [sessions[FIRST], pa.array(sessions[LAST].to_numpy() + self.gap_us)]
        columns += [sessions[key] for key in settings.keys]
        columns += [ranges.result(spec, parts) for spec in settings.specs]
        return fitted(columns, settings.output)
