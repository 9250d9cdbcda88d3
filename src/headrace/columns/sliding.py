"""The kernel of sliding windows: for each event what its key's events of the time (t - size, t] come to.

What is kept are events: those of the last `size` before the watermark, and those that still wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.aggregates import Ranges, decimal_sums, fitted, partials_of, parts_of_rows
from headrace.columns.keyed import NEVER, Deadlines, KernelResult, StatefulKernel, changes, key_codes
from headrace.columns.ordering import order_of
from headrace.columns.range_kernels import find_slides

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.columns.aggregates import AggregateSpec
    from headrace.columns.keyed import Times

BLOCKS: Final = 64
"""Into so many stretches of time the size is cut: a sum adds up whole stretches, not every event again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingKernel(StatefulKernel):
    """Rows of time, keys and values; what comes out has time, keys and aggregates, in order of time."""

    time: str
    keys: tuple[str, ...]
    specs: tuple[AggregateSpec, ...]
    size_us: int
    output: pa.Schema

    def __call__(self, rows: pa.Table, state: pa.Table | None, times: Times) -> KernelResult:
        """The results of all events that the watermark has passed."""
        fresh, late = self._without_late(rows, times)
        if not fresh.num_rows and (state is None or not self._is_due(state, times)):
            return KernelResult(self.output.empty_table(), state, late)
        held = fresh if state is None else pa.concat_tables([state, fresh])
        codes, at, order = self._in_order(held, 0 if state is None else state.num_rows)
        held = held.take(order)
        output = self._slide(held, codes, at, times)
        kept = held.filter(pa.array(at > times.watermark_us - self.size_us))
        return KernelResult(output, kept, late)

    def deadlines(self, state: pa.Table, times: Times) -> Deadlines:
        """An event is due when the watermark passes it, and expires when it is in no later event's window."""
        at = self._times(state)
        return Deadlines(np.where(at > times.watermark_us, at, NEVER), at + self.size_us)

    def _without_late(self, rows: pa.Table, times: Times) -> tuple[pa.Table, int]:
        """Rows without a time are in no window: they are left out as Spark's windows leave them out."""
        timed = rows.filter(pc.is_valid(rows[self.time])) if rows[self.time].null_count else rows
        at = self._times(timed)
        late = int(np.count_nonzero(at <= times.late_us))
        return (timed.filter(pa.array(at > times.late_us)) if late else timed), late

    def _is_due(self, state: pa.Table, times: Times) -> bool:
        at = self._times(state)
        return bool(np.any((times.late_us < at) & (at <= times.watermark_us)))

    def _times(self, rows: pa.Table) -> NDArray[np.int64]:
        return np.asarray(rows[self.time].cast(pa.int64()).to_numpy())

    def _in_order(
        self, rows: pa.Table, kept: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The rows' keys and times in order of both, and which row is where; the first `kept` were so before.

        Among rows of one time their values decide: a shuffle brings rows in another order each time.
        """
        codes, at = key_codes(rows, self.keys), self._times(rows)
        sums = [partial for partial in partials_of(self.specs) if partial.kind == "sum"]
        values = decimal_sums(parts_of_rows(rows, sums))
        order = order_of(codes, at, values, kept)
        return codes[order], at[order], order

    def _slide(
        self, rows: pa.Table, codes: NDArray[np.int64], at: NDArray[np.int64], times: Times
    ) -> pa.Table:
        places, firsts, lasts = (np.empty(len(codes), np.int64) for _ in range(3))
        count = find_slides(codes, at, self.size_us, times.late_us, times.watermark_us, places, firsts, lasts)
        blocks = np.cumsum(changes(codes, at // max(1, self.size_us // BLOCKS))) - 1
        ranges = Ranges(firsts=firsts[:count], lasts=lasts[:count], blocks=blocks)
        parts = parts_of_rows(rows, partials_of(self.specs))
        places = places[:count]
        columns = [rows[name].take(places) for name in (self.time, *self.keys)]
        columns += [ranges.result(spec, parts) for spec in self.specs]
        table = fitted(columns, self.output)
        return table.take(np.argsort(at[places], kind="stable"))
