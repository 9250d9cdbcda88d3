"""The kernels of hopping windows: events into panes, and panes into windows.

A pane is the stretch of time that no window cuts: with windows of a minute every second a pane is a second.
An event counts in one pane instead of in sixty windows, and a window is put together when it closes, from its
first pane to its last.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from headrace.columns.keyed import Outcome, changes, key_codes
from headrace.columns.measures import ROWS, Ranges, decimal_sums, merge_parts, part_names, parts_of
from headrace.columns.range_kernels import find_hops

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from headrace.columns.keyed import Times
    from headrace.columns.measures import Measure, Parts

PANE: Final = "_headrace_pane"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hops:
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
        """The columns that say where a pane is."""
        return (PANE,)

    def sums(self, time: str, keys: tuple[str, ...], measures: tuple[Measure, ...]) -> PaneSums:
        """What makes panes of rows."""
        return PaneSums(time=time, keys=keys, measures=measures, hops=self)

    def kernel(self, keys: tuple[str, ...], measures: tuple[Measure, ...], output: pa.Schema) -> PanesKernel:
        """What makes windows of panes."""
        return PanesKernel(keys=keys, measures=measures, hops=self, output=output)

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
        """The first window that has each pane."""
        return -((self.span - 1 - panes) // self.step)

    def last_windows(self, panes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The last window that has each pane."""
        return panes // self.step


@dataclass(frozen=True, slots=True, kw_only=True)
class PaneSums:
    """Rows of time, keys and values as one row for each key and pane: keys, pane, parts."""

    time: str
    keys: tuple[str, ...]
    measures: tuple[Measure, ...]
    hops: Hops

    def __call__(self, batches: Iterable[pa.RecordBatch], _times: Times) -> Iterator[pa.RecordBatch]:
        """What a task has read, summed up; rows without a time are in no window.

        Which panes are late is seen when they are put together.
        """
        names = part_names(self.measures)
        summed = [self._sum_up(batch, names) for batch in batches if batch.num_rows]
        if summed:
            together = summed[0] if len(summed) == 1 else merged(pa.concat_tables(summed), self.keys, names)
            yield from together.to_batches()

    def _sum_up(self, batch: pa.RecordBatch, names: tuple[str, ...]) -> pa.Table:
        rows = pa.Table.from_batches([batch])
        if rows[self.time].null_count:
            rows = rows.filter(rows[self.time].is_valid())
        panes = self.hops.panes(rows[self.time].cast(pa.int64()).to_numpy())
        return _merged(rows, self.keys, panes, parts_of(rows, names))


def merged(panes: pa.Table, keys: tuple[str, ...], names: tuple[str, ...]) -> pa.Table:
    """One row for each key and pane, in order of both."""
    parts = {name: panes[name].to_numpy() for name in names}
    return _merged(panes, keys, panes[PANE].to_numpy(), parts)


def _merged(rows: pa.Table, keys: tuple[str, ...], panes: NDArray[np.int64], parts: Parts) -> pa.Table:
    codes = key_codes(rows, keys)
    # Sums decide last: a shuffle brings parts in another order each time.
    order = np.lexsort((*decimal_sums(parts), panes, codes))
    codes, panes = codes[order], panes[order]
    starts = np.flatnonzero(changes(codes, panes)) if len(codes) else np.empty(0, np.int64)
    if len(starts):
        parts = merge_parts({name: values[order] for name, values in parts.items()}, starts)
    columns = {key: rows[key].take(order[starts]) for key in keys}
    return pa.table({**columns, PANE: panes[starts], **parts})


@dataclass(frozen=True, slots=True, kw_only=True)
class PanesKernel:
    """Panes of keys; what comes out has window_start, window_end, keys and aggregates."""

    keys: tuple[str, ...]
    measures: tuple[Measure, ...]
    hops: Hops
    output: pa.Schema

    def __call__(self, rows: pa.Table, state: pa.Table | None, times: Times) -> Outcome:
        """The windows that the watermark closes; what is kept are panes that later windows have too."""
        closed = self.hops.last_closed(times.late_us)
        fresh, late = self._without_late(rows, closed)
        until = self.hops.last_closed(times.watermark_us)
        if not fresh.num_rows and (state is None or until == closed):
            return Outcome(self.output.empty_table(), state, late)
        names = part_names(self.measures)
        held = merged(fresh if state is None else pa.concat_tables([state, fresh]), self.keys, names)
        output = self._combine(held, closed, until, names)
        last = self.hops.last_windows(held[PANE].to_numpy())
        return Outcome(output, held.filter(pa.array(last > until)), late)

    def _without_late(self, rows: pa.Table, closed: int) -> tuple[pa.Table, int]:
        """Without panes of which all windows are closed; and how many rows missed a window."""
        panes = rows[PANE].to_numpy()
        missed = self.hops.first_windows(panes) <= closed
        late = int(rows[ROWS].to_numpy()[missed].sum())
        return (rows.filter(pa.array(self.hops.last_windows(panes) > closed)) if late else rows), late

    def _combine(self, held: pa.Table, closed: int, until: int, names: tuple[str, ...]) -> pa.Table:
        codes, panes = key_codes(held, self.keys), np.array(held[PANE].to_numpy())
        nothing = np.empty(0, np.int64)
        scope = (codes, panes, self.hops.step, self.hops.span, closed, until)
        count = find_hops(*scope, nothing, nothing, nothing)
        windows, firsts, lasts = (np.empty(count, np.int64) for _ in range(3))
        find_hops(*scope, windows, firsts, lasts)
        # Every pane by itself: a sum goes from the first pane of a window to the last.
        ranges = Ranges(firsts=firsts, lasts=lasts, blocks=np.arange(len(panes)))
        parts = {name: np.array(held[name].to_numpy()) for name in names}
        starts = self.hops.starts_us(windows)
        columns = [pa.array(starts), pa.array(starts + self.hops.size_us)]
        columns += [held[key].take(firsts) for key in self.keys]
        columns += [ranges.measure(measure, parts) for measure in self.measures]
        made = [column.cast(field.type) for column, field in zip(columns, self.output, strict=True)]
        return pa.Table.from_arrays(made, schema=self.output)
