"""Windows over a changelog: hours of minutes that still change.

Aggregates cannot take back a row in general: the second largest value is not known when the largest one is
retracted, and sums of fractions drift. So the state of such windows are their rows, of which there are few:
they are results of other windows or of joins. The results are computed from them each time that they change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from headrace.columns.aggregates import (
    Ranges,
    fitted,
    merge_by_place,
    partials_of,
    parts_of_rows,
)
from headrace.columns.changelog import Grouped, consolidated, repeated, row_codes, weighted
from headrace.columns.zoned_windows import WINDOW_END, WINDOW_START

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from headrace.columns.aggregates import AggregateSpec
    from headrace.columns.hopping_windows import HoppingAssigner
    from headrace.columns.keyed import Times

    Numbers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRows:
    """What a task does with its rows before the shuffle: each row once for each window that it is in.

    Rows without a time are in no window. Sessions, and windows that Spark has assigned, have no assigner.
    """

    time: str
    assigner: HoppingAssigner | None
    columns: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch], _times: Times) -> Iterator[pa.RecordBatch]:
        """The rows of one task, consolidated."""
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            rows = rows.filter(rows[self.time].is_valid())
            if self.assigner is not None:
                rows = self._assigned(rows, self.assigner)
            yield from consolidated(rows.select(self.columns)).combine_chunks().to_batches()

    def _assigned(self, rows: pa.Table, assigner: HoppingAssigner) -> pa.Table:
        panes = assigner.panes(_microseconds(rows[self.time]))
        firsts, lasts = assigner.first_windows(panes), assigner.last_windows(panes)
        counts = np.maximum(lasts - firsts + 1, 0)
        ends = np.cumsum(counts)
        numbers = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
        starts = assigner.starts_us(numbers + np.repeat(firsts, counts))
        spread = rows.take(pa.array(np.repeat(np.arange(len(counts)), counts)))
        spread = spread.append_column(WINDOW_START, pa.array(starts))
        return spread.append_column(WINDOW_END, pa.array(starts + assigner.size_us))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangingWindows(Grouped):
    """The windows of rows: an `Operation` of `ChangelogKernel`."""

    name: str
    time: str
    keys: tuple[str, ...]
    specs: tuple[AggregateSpec, ...]
    output: pa.Schema
    """Without a weight."""
    gap_us: int | None = None
    """Of sessions; other windows have their bounds in `WINDOW_START` and `WINDOW_END`."""

    @property
    def groups(self) -> tuple[str, ...]:
        """A window of a key; all sessions of a key, for a row may join two of them."""
        return self.keys if self.gap_us is not None else (*self.keys, WINDOW_START)

    def times_us(self, rows: pa.Table) -> Numbers:
        """A row is late when its window has ended, or the session that it would be alone."""
        if self.gap_us is None:
            return np.asarray(rows[WINDOW_END].to_numpy())
        return _microseconds(rows[self.time]) + self.gap_us

    def results(self, rows: pa.Table) -> pa.Table:
        """The aggregates of each window."""
        rows = repeated(rows)
        partials = partials_of(self.specs)
        starts, ends = self._bounds(rows)
        firsts, parts = merge_by_place(rows, self.keys, starts, parts_of_rows(rows, partials), partials)
        each = np.arange(len(firsts))
        ranges = Ranges(firsts=each, lasts=each, blocks=each)
        columns = [pa.array(starts[firsts]), pa.array(ends[firsts])]
        columns += [rows[key].take(pa.array(firsts)) for key in self.keys]
        columns += [ranges.result(spec, parts) for spec in self.specs]
        return weighted(fitted(columns, self.output), 1)

    def closing(self, rows: pa.Table, times: Times) -> NDArray[np.bool_]:
        """Windows that end between the two watermarks."""
        ends = self._bounds(rows)[1]
        return np.asarray((ends > times.late_us) & (ends <= times.watermark_us))

    def closes_us(self, rows: pa.Table) -> Numbers:
        """The end of the window that a row is in."""
        return self._bounds(rows)[1]

    def kept(self, rows: pa.Table, times: Times) -> NDArray[np.bool_]:
        """The rows of windows that have not ended."""
        return np.asarray(self._bounds(rows)[1] > times.watermark_us)

    def expires_us(self, rows: pa.Table) -> Numbers:
        """The end of the window that a row is in."""
        return self._bounds(rows)[1]

    def _bounds(self, rows: pa.Table) -> tuple[Numbers, Numbers]:
        """The start and the end of the window of each row."""
        if self.gap_us is None:
            return np.asarray(rows[WINDOW_START].to_numpy()), np.asarray(rows[WINDOW_END].to_numpy())
        codes, at = row_codes(rows, self.keys), _microseconds(rows[self.time])
        order = np.lexsort((at, codes))
        ordered, times = codes[order], at[order]
        begins = np.ones(len(order), np.bool_)
        begins[1:] = (ordered[1:] != ordered[:-1]) | (times[1:] - times[:-1] > self.gap_us)
        firsts = np.flatnonzero(begins)
        sessions = np.cumsum(begins) - 1
        lasts = np.append(firsts[1:], len(order)) - 1 if len(firsts) else firsts
        starts, ends = np.empty(len(order), np.int64), np.empty(len(order), np.int64)
        starts[order], ends[order] = times[firsts][sessions], times[lasts][sessions] + self.gap_us
        return starts, ends


def _microseconds(column: pa.ChunkedArray) -> Numbers:
    return np.asarray(column.cast(pa.int64()).to_numpy())
