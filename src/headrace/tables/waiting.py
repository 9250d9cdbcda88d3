"""Rows that wait for a table: held until the watermark is far enough behind their time, and then let go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.keyed import Deadlines, KernelResult, StatefulKernel

if TYPE_CHECKING:
    from headrace.columns.keyed import Times


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRows(StatefulKernel):
    """A kernel of a keyed stage. No row is too late for it: one that comes after its time goes on at once."""

    time: str
    """The column by which rows wait; one that has no time does not wait."""
    wait_us: int

    def __call__(self, rows: pa.Table, state: pa.Table | None, times: Times) -> KernelResult:
        """The rows whose time has come, in the order of their times; the state are the others."""
        waiting = rows if state is None else pa.concat_tables([state, rows])
        begun = waiting.column(self.time).cast(pa.int64())
        is_due = pc.less_equal(begun, times.watermark_us - self.wait_us).fill_null(True)
        if not pc.any(is_due).as_py():
            unchanged = state is not None and not rows.num_rows
            return KernelResult(rows.schema.empty_table(), state if unchanged else waiting.combine_chunks())
        due = waiting.filter(is_due)
        # The order of the topic is kept among rows of the same time.
        places = pc.sort_indices(due, sort_keys=[(self.time, "ascending")])
        return KernelResult(due.take(places), waiting.filter(pc.invert(is_due)).combine_chunks())

    def deadlines(self, state: pa.Table, times: Times) -> Deadlines:
        """A row is due, and gone, when its time has come."""
        del times
        due_us = np.asarray(state[self.time].cast(pa.int64()).to_numpy()) + self.wait_us
        return Deadlines(due_us, due_us)

    @property
    def deadline_rule(self) -> str:
        """How long rows wait."""
        return f"wait {self.wait_us} us"
