"""The kernel of deduplication: of the rows of one key, those that are not near one that has passed before.

What is kept are the keys and times of rows that have passed, for as long as a row that is still to come can
be near them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.columns.keyed import NEVER, Deadlines, KernelResult, StatefulKernel, key_codes
from headrace.protocol.kernels import borrowing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.columns.keyed import Times

_NEVER: Final = -(1 << 63) + 1
"""Before every time: the newest time of a cell in which nothing has passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstRowsKernel(StatefulKernel):
    """Rows in the order of `arrival`; those that pass come out in that order, and without that column."""

    keys: tuple[str, ...]
    time: str
    arrival: str
    within_us: int

    def __call__(self, rows: pa.Table, state: pa.Table | None, times: Times) -> KernelResult:
        """The rows that pass, and what they are remembered by."""
        # Arrow's sorting leaves rows of one number in their order.
        rows = rows.sort_by(self.arrival).drop_columns([self.arrival])
        late = self._is_late(rows, times)
        count = int(np.count_nonzero(late))
        fresh = rows.filter(pa.array(~late)) if count else rows
        known = self._remembered(fresh)  # what has no key or no time is near nothing
        passes = np.ones(fresh.num_rows, np.bool_)
        passes[known] = self._firsts(fresh.filter(pa.array(known)), state)
        output = fresh.filter(pa.array(passes))
        return KernelResult(output, self._next_state(output, state, times), count)

    def deadlines(self, state: pa.Table, times: Times) -> Deadlines:
        """A row that passed is forgotten when no row can come that repeats it."""
        del times
        return Deadlines(np.full(state.num_rows, NEVER), _times(state[self.time]) + self.within_us)

    @property
    def deadline_rule(self) -> str:
        """For how long rows are remembered."""
        return f"within {self.within_us} us"

    def _is_late(self, rows: pa.Table, times: Times) -> NDArray[np.bool_]:
        late = pc.less_equal(rows[self.time].cast(pa.int64()), times.late_us)
        return np.asarray(pc.fill_null(late, False).to_numpy())

    def _remembered(self, rows: pa.Table) -> NDArray[np.bool_]:
        known = np.ones(rows.num_rows, np.bool_)
        for name in (*self.keys, self.time):
            if rows[name].null_count:
                known &= np.asarray(pc.is_valid(rows[name]).to_numpy())
        return known

    def _firsts(self, rows: pa.Table, state: pa.Table | None) -> NDArray[np.bool_]:
        """Which of the rows pass; what passed in batches before stands before them."""
        names = [*self.keys, self.time]
        new = rows.select(names)
        held = new if state is None else pa.concat_tables([state.select(names), new])
        old = held.num_rows - new.num_rows
        return passing_rows(key_codes(held, self.keys), _times(held[self.time]), old, self.within_us)[old:]

    def _next_state(self, output: pa.Table, state: pa.Table | None, times: Times) -> pa.Table | None:
        """Rows that are still to come are later than the watermark: what lies `within` before it is done."""
        names = [*self.keys, self.time]
        passed = output.filter(pa.array(self._remembered(output))).select(names)
        over = times.watermark_us - self.within_us
        kept = passed.filter(pa.array(_times(passed[self.time]) > over))
        if state is None:
            return kept
        stays = _times(state[self.time]) > over
        if not kept.num_rows and stays.all():
            return state
        return pa.concat_tables([state.filter(pa.array(stays)), kept])


def passing_rows(
    codes: NDArray[np.int64], times: NDArray[np.int64], old: int, within_us: int
) -> NDArray[np.bool_]:
    """Which rows pass, in the order of their arrival; the first `old` ones have."""
    at = np.array(times)  # its own: Arrow's is read-only, and of another type to numba
    cells, follows = _cells(codes, at // (within_us + 1))
    passes = np.empty(len(at), np.bool_)
    newest = np.full(len(follows), _NEVER, np.int64)
    oldest = np.full(len(follows), -_NEVER, np.int64)
    find_firsts(cells, follows, at, np.arange(len(at)) < old, within_us, passes, oldest, newest)
    return passes


def _times(column: pa.ChunkedArray) -> NDArray[np.int64]:
    return np.asarray(column.cast(pa.int64()).to_numpy())


def _cells(codes: NDArray[np.int64], spans: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The cell of each row, a key in one span of time; and of each cell whether it follows the one before it.

    Cells are numbered by key and then by span. There is one more at the end that follows none.
    """
    order = np.lexsort((spans, codes))
    same_key = codes[order][1:] == codes[order][:-1]
    steps = np.diff(spans[order])
    begins = np.concatenate([np.ones(min(1, len(order)), np.bool_), ~same_key | (steps != 0)])
    cells = np.empty(len(order), np.int64)
    cells[order] = np.cumsum(begins) - 1
    next_to = np.concatenate([np.zeros(min(1, len(order)), np.bool_), same_key & (steps == 1)])
    return cells, np.concatenate([next_to[begins], [False]])


@borrowing
def find_firsts(
    cells: NDArray[np.int64],
    follows: NDArray[np.bool_],
    times: NDArray[np.int64],
    old: NDArray[np.bool_],
    within: int,
    passes: NDArray[np.bool_],
    oldest: NDArray[np.int64],
    newest: NDArray[np.int64],
) -> None:
    """Fill `passes` for rows in the order of their arrival.

    What is old has passed. A new row passes if no row of its key has that is at most `within` away. A cell is
    as long as that, so that only its own and the two next to it have to be looked at: `oldest` and `newest`
    are the times of the rows in each that have passed.
    """
    for row in range(len(cells)):
        cell, time = cells[row], times[row]
        is_first = old[row] or (
            newest[cell] == _NEVER
            and not (follows[cell] and newest[cell - 1] != _NEVER and time - newest[cell - 1] <= within)
            and not (follows[cell + 1] and newest[cell + 1] != _NEVER and oldest[cell + 1] - time <= within)
        )
        passes[row] = is_first
        if is_first:
            oldest[cell] = min(oldest[cell], time)
            newest[cell] = max(newest[cell], time)
