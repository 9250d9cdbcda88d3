"""The kernel of corrected results: each is held until its window closes, and passes at once behind that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.keyed import Outcome, key_codes

if TYPE_CHECKING:
    from headrace.columns.keyed import Times


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectionKernel:
    """Takes the results that a batch changed; gives those of windows that are closed, the newest of each."""

    keys: tuple[str, ...]
    """What names a result: the start of its window, and its keys."""
    end: str
    """The column of the window's end."""
    within_us: int
    """How far the watermark of the batch lies behind the one that closes windows."""

    def __call__(self, rows: pa.Table, state: pa.Table | None, times: Times) -> Outcome:
        """The results to give, and those that wait."""
        waiting = rows if state is None else self._newest(pa.concat_tables([state, rows]))
        ends_us = waiting[self.end].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        is_closed = pc.less_equal(ends_us, times.watermark_us + self.within_us)
        if not rows.num_rows and not pc.any(is_closed).as_py():
            return Outcome(rows, state)
        return Outcome(waiting.filter(is_closed), waiting.filter(pc.invert(is_closed)))

    def _newest(self, results: pa.Table) -> pa.Table:
        """The last row of each key."""
        codes = key_codes(results, self.keys)
        _, from_the_end = np.unique(codes[::-1], return_index=True)
        return results.take(pa.array(np.sort(len(codes) - 1 - from_the_end)))
