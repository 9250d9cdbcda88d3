"""Tumbling and hopping windows: rows are aggregated into panes, and panes into windows.

```text
every 1       ┌─1─┬─2─┬─3─┬─4─┬─5─┬─6─┐      each row is in one pane
size 5        └───────────────────┘          a window is the aggregate of its five panes
                  └───────────────────┘
```

A pane is the longest stretch of time that no window boundary divides: with windows of a minute every second
it is a second, and a row is aggregated once instead of sixty times. The pane of a tumbling window is the
window. Windows that leave gaps have panes between them, whose rows are in no window.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from headrace.columns.aggregates import (
    ROWS,
    Ranges,
    fitted,
    merge_by_place,
    partials_of,
    parts_of_rows,
    parts_of_table,
    with_state,
)
from headrace.columns.keyed import NEVER, Deadlines, KernelResult, StatefulKernel, key_codes
from headrace.columns.range_kernels import find_hops

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from headrace.columns.aggregates import AggregateSpec, Partial, Parts
    from headrace.columns.keyed import Times
    from headrace.columns.window_assigners import WindowKernelSettings

PANE: Final = "_headrace_pane"
FOREVER: Final = 1 << 62
"""A number beyond that of any window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HoppingAssigner:
    """Windows by number: window n begins at offset + n·every, and pane p at offset + p·pane."""

    size_us: int
    every_us: int
    offset_us: int = 0

    @property
    def pane_us(self) -> int:
        """How long a pane is."""
        return gcd(self.size_us, self.every_us)

    @property
    def step(self) -> int:
        """How many panes lie between the beginnings of two windows."""
        return self.every_us // self.pane_us

    @property
    def span(self) -> int:
        """How many panes a window has."""
        return self.size_us // self.pane_us

    @property
    def places(self) -> tuple[str, ...]:
        """The columns that say where a partial aggregate is in time."""
        return (PANE,)

    def partial_aggregation(
        self, time: str, keys: tuple[str, ...], specs: tuple[AggregateSpec, ...]
    ) -> PaneAggregation:
        """What makes panes of rows."""
        return PaneAggregation(time=time, keys=keys, specs=specs, assigner=self)

    def kernel(self, settings: WindowKernelSettings) -> HoppingKernel:
        """What makes windows of panes."""
        return HoppingKernel(settings=settings, assigner=self)

    def panes(self, at_us: NDArray[np.int64]) -> NDArray[np.int64]:
        """The pane of each time."""
        return (at_us - self.offset_us) // self.pane_us

    def starts_us(self, windows: NDArray[np.int64]) -> NDArray[np.int64]:
        """When windows begin."""
        return windows * self.every_us + self.offset_us

    def last_closed(self, time_us: int) -> int:
        """The last window that has ended by a time."""
        return (time_us - self.offset_us - self.size_us) // self.every_us

    def first_windows(self, panes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first window that has each pane; of a pane in a gap, the window after it."""
        return -((self.span - 1 - panes) // self.step)

    def last_windows(self, panes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The last window that has each pane; of a pane in a gap, the window before it."""
        return panes // self.step


@dataclass(frozen=True, slots=True, kw_only=True)
class PaneAggregation:
    """Rows of time, keys and values as one row for each key and pane: keys, pane, partial aggregates."""

    time: str
    keys: tuple[str, ...]
    specs: tuple[AggregateSpec, ...]
    assigner: HoppingAssigner

    def __call__(self, batches: Iterable[pa.RecordBatch], _times: Times) -> Iterator[pa.RecordBatch]:
        """The panes of what one task has read; rows without a time are in no window.

        Which panes are late is decided when they are merged.
        """
        partials = partials_of(self.specs)
        made = [self._aggregate(batch, partials) for batch in batches if batch.num_rows]
        if made:
            whole = made[0] if len(made) == 1 else merge_panes(pa.concat_tables(made), self.keys, partials)
            yield from whole.to_batches()

    def _aggregate(self, batch: pa.RecordBatch, partials: tuple[Partial, ...]) -> pa.Table:
        rows = pa.Table.from_batches([batch])
        if rows[self.time].null_count:
            rows = rows.filter(rows[self.time].is_valid())
        panes = self.assigner.panes(rows[self.time].cast(pa.int64()).to_numpy())
        return _merged(rows, self.keys, panes, parts_of_rows(rows, partials), partials)


def merge_panes(panes: pa.Table, keys: tuple[str, ...], partials: tuple[Partial, ...]) -> pa.Table:
    """One row for each key and pane, in order of both."""
    return _merged(panes, keys, panes[PANE].to_numpy(), parts_of_table(panes, partials), partials)


def _merged(
    rows: pa.Table,
    keys: tuple[str, ...],
    panes: NDArray[np.int64],
    parts: Parts,
    partials: tuple[Partial, ...],
) -> pa.Table:
    firsts, merged = merge_by_place(rows, keys, panes, parts, partials)
    columns = {key: rows[key].take(firsts) for key in keys}
    return pa.table({**columns, PANE: panes[firsts], **merged})


@dataclass(frozen=True, slots=True, kw_only=True)
class HoppingKernel(StatefulKernel):
    """Panes of keys; the output has window_start, window_end, keys and aggregates."""

    settings: WindowKernelSettings
    assigner: HoppingAssigner

    def __call__(self, rows: pa.Table, state: pa.Table | None, times: Times) -> KernelResult:
        """The results that are due; the state are the panes of windows that the watermark has not passed."""
        settings, assigner = self.settings, self.assigner
        expired = assigner.last_closed(times.late_us)
        fresh, late = self._without_late(rows, expired)
        until = assigner.last_closed(times.watermark_us)
        due = settings.closing(times)
        closes = assigner.last_closed(due.watermark_us) > assigner.last_closed(due.late_us)
        if not fresh.num_rows and (state is None or not (closes or until > expired)):
            return KernelResult(settings.nothing, state, late)
        held = with_state(state, fresh, settings.partials)
        held = merge_panes(held, settings.keys, settings.partials)
        output = self._results(held, fresh, expired, due)
        if settings.retracts:
            output = settings.changes(self._results_before(state, fresh, expired, due), output)
        last = assigner.last_windows(held[PANE].to_numpy())
        return KernelResult(output, held.filter(pa.array(last > until)), late)

    def deadlines(self, state: pa.Table, times: Times) -> Deadlines:
        """A pane is due when the next of its windows closes, and expires with the last one."""
        settings, assigner = self.settings, self.assigner
        panes = state[PANE].to_numpy()
        lasts = assigner.last_windows(panes)
        given = assigner.last_closed(settings.closing(times).watermark_us)
        nexts = np.maximum(assigner.first_windows(panes), given + 1)
        closes_us = assigner.starts_us(nexts) + assigner.size_us - settings.allowed_lateness_us
        waits = (nexts <= lasts) & (not settings.on_update)
        return Deadlines(np.where(waits, closes_us, NEVER), assigner.starts_us(lasts) + assigner.size_us)

    @property
    def deadline_rule(self) -> str:
        """Whether and when results are given."""
        return self.settings.deadline_rule

    def upgraded(self, state: pa.Table, schema: pa.Schema) -> pa.Table:
        """The state with the partial aggregates of today's aggregates."""
        return self.settings.upgraded(state, schema)

    def _without_late(self, rows: pa.Table, expired: int) -> tuple[pa.Table, int]:
        """Without panes that are in no open window; and how many rows missed a window."""
        panes = rows[PANE].to_numpy()
        first, last = self.assigner.first_windows(panes), self.assigner.last_windows(panes)
        is_late = (first <= expired) & (first <= last)
        is_kept = (last > expired) & (first <= last)
        late = int(rows[ROWS].to_numpy()[is_late].sum())
        return (rows if is_kept.all() else rows.filter(pa.array(is_kept))), late

    def _results(self, held: pa.Table, fresh: pa.Table, expired: int, due: Times) -> pa.Table:
        """The windows that close, and those that changed where a change gives another result."""
        settings, assigner = self.settings, self.assigner
        given, now = assigner.last_closed(due.late_us), assigner.last_closed(due.watermark_us)
        until = FOREVER if settings.on_update else now
        windows, firsts, lasts = self._windows(held, expired, until)
        if settings.gives_changes:
            has_changed = self._has_changed(held, fresh, firsts, lasts)
            is_due = has_changed if settings.on_update else has_changed | (windows > given)
            windows, firsts, lasts = windows[is_due], firsts[is_due], lasts[is_due]
        return self._aggregated(held, windows, firsts, lasts)

    def _results_before(
        self, state: pa.Table | None, fresh: pa.Table, expired: int, due: Times
    ) -> pa.Table | None:
        """The results that were given of the keys that this batch has rows of."""
        if state is None:
            return None
        settings = self.settings
        held = with_state(state, fresh.slice(0, 0), settings.partials)
        if settings.keys:
            both = pa.concat_tables([held.select(settings.keys), fresh.select(settings.keys)])
            codes = key_codes(both, settings.keys)
            is_touched = np.isin(codes[: held.num_rows], codes[held.num_rows :])
            held = held.filter(pa.array(is_touched))
        held = merge_panes(held, settings.keys, settings.partials)
        until = FOREVER if settings.on_update else self.assigner.last_closed(due.late_us)
        return self._aggregated(held, *self._windows(held, expired, until))

    def _aggregated(
        self,
        held: pa.Table,
        windows: NDArray[np.int64],
        firsts: NDArray[np.int64],
        lasts: NDArray[np.int64],
    ) -> pa.Table:
        settings = self.settings
        # Every pane is a block: a sum goes from the first pane of a window to the last.
        ranges = Ranges(firsts=firsts, lasts=lasts, blocks=np.arange(held.num_rows))
        starts = self.assigner.starts_us(windows)
        columns = [pa.array(starts), pa.array(starts + self.assigner.size_us)]
        columns += [held[key].take(firsts) for key in settings.keys]
        parts = parts_of_table(held, settings.partials)
        columns += [ranges.result(spec, parts) for spec in settings.specs]
        return fitted(columns, settings.output)

    def _windows(
        self, held: pa.Table, after: int, until: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The windows of numbers after < n <= until that have panes, with the first and the last of these."""
        codes, panes = key_codes(held, self.settings.keys), np.array(held[PANE].to_numpy())
        nothing = np.empty(0, np.int64)
        scope = (codes, panes, self.assigner.step, self.assigner.span, after, until)
        count = find_hops(*scope, nothing, nothing, nothing)
        windows, firsts, lasts = (np.empty(count, np.int64) for _ in range(3))
        find_hops(*scope, windows, firsts, lasts)
        return windows, firsts, lasts

    def _has_changed(
        self, held: pa.Table, fresh: pa.Table, firsts: NDArray[np.int64], lasts: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Whether a window has a pane that rows of this batch are in."""
        names = [*self.settings.keys, PANE]
        both = pa.concat_tables([held.select(names), fresh.select(names)])
        codes = key_codes(both, names)
        is_fresh = np.isin(codes[: held.num_rows], codes[held.num_rows :])
        running = np.concatenate([[0], np.cumsum(is_fresh)])
        return np.asarray(running[lasts + 1] > running[firsts])
