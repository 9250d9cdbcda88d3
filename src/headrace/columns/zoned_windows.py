"""Windows whose boundaries are columns of the rows: days and hours of a time zone.

Twice a year a day of a time zone has 23 or 25 hours, so the start and the end of its window come with each
row.
"""

from __future__ import annotations

from dataclasses import dataclass
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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.columns.aggregates import AggregateSpec, Partial, Parts
    from headrace.columns.keyed import Times
    from headrace.columns.window_assigners import WindowKernelSettings

WINDOW_START: Final = "_headrace_start"
WINDOW_END: Final = "_headrace_end"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZonedAssigner:
    """Windows by the columns `WINDOW_START` and `WINDOW_END` of their rows, in microseconds."""

    zone: str

    @property
    def places(self) -> tuple[str, ...]:
        """The columns that say where a partial aggregate is in time."""
        return WINDOW_START, WINDOW_END

    def partial_aggregation(
        self, time: str, keys: tuple[str, ...], specs: tuple[AggregateSpec, ...]
    ) -> ZonedAggregation:
        """What makes one row for each window of rows."""
        del time
        return ZonedAggregation(keys=keys, specs=specs)

    def kernel(self, settings: WindowKernelSettings) -> ZonedKernel:
        """What makes windows of these rows."""
        return ZonedKernel(settings=settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZonedAggregation:
    """Rows of boundaries, keys and values as one row for each key and window."""

    keys: tuple[str, ...]
    specs: tuple[AggregateSpec, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch], _times: Times) -> Iterator[pa.RecordBatch]:
        """The windows of what one task has read; rows without a time are in none."""
        partials = partials_of(self.specs)
        rows = [pa.Table.from_batches([batch]) for batch in batches if batch.num_rows]
        timed = [some.filter(some[WINDOW_START].is_valid()) for some in rows]
        made = [_merged(some, self.keys, parts_of_rows(some, partials), partials) for some in timed]
        if made:
            yield from merge_windows(pa.concat_tables(made), self.keys, partials).to_batches()


def merge_windows(windows: pa.Table, keys: tuple[str, ...], partials: tuple[Partial, ...]) -> pa.Table:
    """One row for each key and window, in order of both."""
    return _merged(windows, keys, parts_of_table(windows, partials), partials)


def _merged(rows: pa.Table, keys: tuple[str, ...], parts: Parts, partials: tuple[Partial, ...]) -> pa.Table:
    firsts, merged = merge_by_place(rows, keys, rows[WINDOW_START].to_numpy(), parts, partials)
    names = (*keys, WINDOW_START, WINDOW_END)
    return pa.table({**{name: rows[name].take(firsts) for name in names}, **merged})


@dataclass(frozen=True, slots=True, kw_only=True)
class ZonedKernel(StatefulKernel):
    """Windows of keys; the output has window_start, window_end, keys and aggregates."""

    settings: WindowKernelSettings

    def __call__(self, rows: pa.Table, state: pa.Table | None, times: Times) -> KernelResult:
        """The results that are due; the state are the windows that the watermark has not passed."""
        settings = self.settings
        is_late = rows[WINDOW_END].to_numpy() <= times.late_us
        late = int(rows[ROWS].to_numpy()[is_late].sum())
        fresh = rows.filter(pa.array(~is_late)) if late else rows
        if not fresh.num_rows and state is None:
            return KernelResult(settings.nothing, state, late)
        held = with_state(state, fresh, settings.partials)
        held = merge_windows(held, settings.keys, settings.partials)
        ends = held[WINDOW_END].to_numpy()
        due = settings.closing(times)
        output = self._results(held, fresh, due)
        if settings.retracts:
            output = settings.changes(self._results_before(state, fresh, due), output)
        return KernelResult(output, held.filter(pa.array(ends > times.watermark_us)), late)

    def deadlines(self, state: pa.Table, times: Times) -> Deadlines:
        """A window is due when it closes, and expires when late rows correct it no longer."""
        settings, ends_us = self.settings, state[WINDOW_END].to_numpy()
        closes_us = ends_us - settings.allowed_lateness_us
        waits = (closes_us > times.watermark_us) & (not settings.on_update)
        return Deadlines(np.where(waits, closes_us, NEVER), ends_us)

    @property
    def deadline_rule(self) -> str:
        """Whether and when results are given."""
        return self.settings.deadline_rule

    def upgraded(self, state: pa.Table, schema: pa.Schema) -> pa.Table:
        """The state with the partial aggregates of today's aggregates."""
        return self.settings.upgraded(state, schema)

    def _results(self, held: pa.Table, fresh: pa.Table, due: Times) -> pa.Table:
        settings, ends = self.settings, held[WINDOW_END].to_numpy()
        is_due = (due.late_us < ends) & (ends <= due.watermark_us)
        if settings.gives_changes:
            names = [*settings.keys, WINDOW_START]
            codes = key_codes(pa.concat_tables([held.select(names), fresh.select(names)]), names)
            has_changed = np.isin(codes[: held.num_rows], codes[held.num_rows :])
            is_due = has_changed if settings.on_update else is_due | (has_changed & (ends <= due.late_us))
        return self._aggregated(held.filter(pa.array(is_due)))

    def _results_before(self, state: pa.Table | None, fresh: pa.Table, due: Times) -> pa.Table | None:
        """The results that were given and can be replaced."""
        if state is None:
            return None
        settings = self.settings
        held = with_state(state, fresh.slice(0, 0), settings.partials)
        if not settings.on_update:
            held = held.filter(pa.array(held[WINDOW_END].to_numpy() <= due.late_us))
        return self._aggregated(merge_windows(held, settings.keys, settings.partials))

    def _aggregated(self, chosen: pa.Table) -> pa.Table:
        settings = self.settings
        each = np.arange(chosen.num_rows)
        ranges = Ranges(firsts=each, lasts=each, blocks=each)
        parts = parts_of_table(chosen, settings.partials)
        columns = [chosen[name] for name in (WINDOW_START, WINDOW_END, *settings.keys)]
        columns += [ranges.result(spec, parts) for spec in settings.specs]
        return fitted(columns, settings.output)
