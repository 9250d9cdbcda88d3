"""Changelogs: rows that are inserted and retracted, and the kernel of operators over them.

A row of a changelog has a weight: 1 if it is inserted, -1 if it is retracted; a row that changes is retracted
as it was and inserted as it is. The sum of the weights of a row says how often it is there.

```text
 insert (a, 1)            +1 (a, 1)
 update (a, 1) to (a, 2)  -1 (a, 1)   +1 (a, 2)
 delete (a, 2)            -1 (a, 2)
```

`ChangelogKernel` keeps the rows that are there. In a batch it computes the results of the groups that the
batch changed, from their rows as they were and as they are, and emits the difference. So what has been
emitted by then equals a recomputation from all rows, whatever the operation is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from headrace.columns.keyed import NEVER, Deadlines, KernelResult, StatefulKernel, key_codes
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from headrace.columns.keyed import Times

    Numbers = NDArray[np.int64]

WEIGHT: Final = "_headrace_weight"
"""The last column of a changelog, 64 bits wide. Users do not see it."""


class UnknownRetraction(HeadraceError):
    """A row was retracted that is not there."""


def weights_of(rows: pa.Table) -> Numbers:
    """The weights of the rows of a changelog."""
    return np.asarray(rows[WEIGHT].to_numpy())


def weighted(rows: pa.Table, weights: Numbers | int) -> pa.Table:
    """Rows as a changelog with these weights, instead of those that they have."""
    if WEIGHT in rows.column_names:
        rows = rows.drop_columns([WEIGHT])
    return rows.append_column(WEIGHT, pa.array(np.broadcast_to(weights, rows.num_rows), pa.int64()))


def consolidated(rows: pa.Table) -> pa.Table:
    """Each row once, with the sum of its weights, in the order of their first; those without a sum are gone.

    >>> rows = pa.table({"n": [1, 2, 1, 2], WEIGHT: [1, 1, 1, -1]})
    >>> consolidated(rows).to_pylist()
    [{'n': 1, '_headrace_weight': 2}]
    """
    if not rows.num_rows:
        return rows
    codes = row_codes(rows, [name for name in rows.column_names if name != WEIGHT])
    _, firsts, numbers = np.unique(codes, return_index=True, return_inverse=True)
    sums = np.zeros(len(firsts), np.int64)
    np.add.at(sums, numbers, weights_of(rows))
    places = np.flatnonzero(sums)
    order = places[np.argsort(firsts[places])]
    return weighted(rows.take(pa.array(firsts[order])), sums[order])


def repeated(rows: pa.Table) -> pa.Table:
    """Each row of a changelog without retractions as often as it is there, without a weight."""
    counts = weights_of(rows)
    plain = rows.drop_columns([WEIGHT])
    return plain if (counts == 1).all() else plain.take(pa.array(np.repeat(np.arange(len(counts)), counts)))


def replaced(before: pa.Table, after: pa.Table, names: Sequence[str]) -> pa.Table:
    """New results as a changelog: each retracts the result before that equals it in the columns `names`."""
    codes = row_codes(pa.concat_tables([before.select(names), after.select(names)]), names)
    is_replaced = np.isin(codes[: before.num_rows], codes[before.num_rows :])
    old = weighted(before.filter(pa.array(is_replaced)), -1)
    return consolidated(pa.concat_tables([old, weighted(after, 1)]))


def latest_by_key(rows: pa.Table, keys: Sequence[str], deleted: str) -> pa.Table:
    """A changelog as upserts and deletes: the row of each key that is left, or, `deleted`, the one that was.

    >>> rows = pa.table({"k": ["a", "a", "b"], "n": [1, 2, 3], WEIGHT: [-1, 1, -1]})
    >>> latest_by_key(rows, ["k"], "gone").to_pylist()
    [{'k': 'a', 'n': 2, 'gone': False}, {'k': 'b', 'n': 3, 'gone': True}]
    """
    changes = consolidated(rows)
    codes, is_gone = key_codes(changes, keys), weights_of(changes) < 0
    # An inserted row decides; of several rows of one key the last one, as for any output that has a key.
    order = np.lexsort((np.arange(len(codes)), ~is_gone, codes))
    is_last = np.append(codes[order][1:] != codes[order][:-1], True)[: len(order)]
    places = np.sort(order[is_last])
    chosen = changes.take(pa.array(places)).drop_columns([WEIGHT])
    return chosen.append_column(deleted, pa.array(is_gone[places]))


def row_codes(rows: pa.Table, names: Sequence[str]) -> Numbers:
    """A number for each row: the same for rows that are equal in these columns, which may be nested."""
    if not names:
        return np.zeros(rows.num_rows, np.int64)
    return key_codes(pa.table({name: comparable(rows[name]) for name in names}), names)


def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """The column, or where Arrow cannot compare it, because it has parts, texts of the same values."""
    if not pt.is_nested(column.type):
        return column
    return pa.array([None if value is None else repr(value) for value in column.to_pylist()], pa.string())


class Grouped:
    """What most operations have in common: each row is in a group."""

    __slots__ = ()

    def lone(self, rows: pa.Table) -> NDArray[np.bool_]:
        """No row."""
        return np.zeros(rows.num_rows, np.bool_)

    def lone_results(self, rows: pa.Table) -> pa.Table:
        """Those of no row."""
        return rows


class Operation(Protocol):
    """What an operator computes of the rows that are there. It does not depend on their order."""

    @property
    def name(self) -> str:
        """The operator, for errors."""

    @property
    def groups(self) -> tuple[str, ...]:
        """The columns of which rows have to be equal to be in one result."""

    def lone(self, rows: pa.Table) -> NDArray[np.bool_]:
        """Rows that are in no group: each has its own result, whatever others there are."""

    def lone_results(self, rows: pa.Table) -> pa.Table:
        """Their results, with their weights."""

    def times_us(self, rows: pa.Table) -> Numbers:
        """The watermark from which on each row, or its retraction, is late."""

    def results(self, rows: pa.Table) -> pa.Table:
        """The results of whole groups of rows, with weights."""

    def closing(self, rows: pa.Table, times: Times) -> NDArray[np.bool_]:
        """Which rows are in results that this batch closes."""

    def closes_us(self, rows: pa.Table) -> Numbers:
        """The watermark at which the result that each row is in is closed."""

    def kept(self, rows: pa.Table, times: Times) -> NDArray[np.bool_]:
        """Which rows a later batch can need."""

    def expires_us(self, rows: pa.Table) -> Numbers:
        """The watermark from which on no batch needs a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogKernel(StatefulKernel):
    """An operation over a changelog: its state are the rows that are there."""

    operation: Operation
    output: pa.Schema
    is_final: bool
    """Whether a result is given once, when it is closed; its rows have no weights then."""

    def __call__(self, rows: pa.Table, state: pa.Table | None, times: Times) -> KernelResult:
        """The changes of the results, or the results that are closed."""
        lone = self.operation.lone(rows)
        loose = self._fitted(self.operation.lone_results(rows.filter(pa.array(lone)))) if lone.any() else None
        rows = rows if loose is None else rows.filter(pa.array(~lone))
        is_late = self.operation.times_us(rows) <= times.late_us
        late = int(np.count_nonzero(is_late))
        fresh = rows.filter(pa.array(~is_late)) if late else rows
        result = self._computed(fresh, state, times)
        output = result.output if loose is None else pa.concat_tables([result.output, loose])
        return KernelResult(output, result.state, late)

    def _computed(self, fresh: pa.Table, state: pa.Table | None, times: Times) -> KernelResult:
        if state is None and not fresh.num_rows:
            return KernelResult(self.output.empty_table(), state)
        before = fresh.slice(0, 0) if state is None else state.select(fresh.column_names)
        held = consolidated(pa.concat_tables([before, fresh]))
        self._check(held)
        output = self._closed(held, times) if self.is_final else self._changes(before, held, fresh)
        return KernelResult(output, held.filter(pa.array(self.operation.kept(held, times))))

    def deadlines(self, state: pa.Table, times: Times) -> Deadlines:
        """Results that are given once are due when they close; all others only when they change."""
        del times
        due_us = self.operation.closes_us(state) if self.is_final else np.full(state.num_rows, NEVER)
        return Deadlines(due_us, self.operation.expires_us(state))

    @property
    def deadline_rule(self) -> str:
        """When results are given."""
        return "on close" if self.is_final else "on update"

    def _closed(self, held: pa.Table, times: Times) -> pa.Table:
        closing = self.operation.closing(held, times)
        return self._fitted(repeated(self.operation.results(held.filter(pa.array(closing)))))

    def _changes(self, before: pa.Table, held: pa.Table, fresh: pa.Table) -> pa.Table:
        groups = self.operation.groups
        tables = [before, held, fresh]
        named = list(groups) or [WEIGHT]
        codes = row_codes(pa.concat_tables([table.select(named) for table in tables]), groups)
        split = np.cumsum([table.num_rows for table in tables])[:-1]
        old, new, touched = np.split(codes, split)
        was, now = (
            self.operation.results(table.filter(pa.array(np.isin(numbers, touched))))
            for table, numbers in ((before, old), (held, new))
        )
        return self._fitted(consolidated(pa.concat_tables([weighted(was, -weights_of(was)), now])))

    def _fitted(self, rows: pa.Table) -> pa.Table:
        return rows.select(self.output.names).cast(self.output)

    def _check(self, held: pa.Table) -> None:
        if not held.num_rows or pc.min(held[WEIGHT]).as_py() > 0:
            return
        (row,) = held.filter(pc.less(held[WEIGHT], 0)).slice(0, 1).to_pylist()
        raise UnknownRetraction(
            f"{self.operation.name} is told to retract a row that it does not have: {row}. A step in front "
            "of it gives another result for the same row each time: make it depend on the row alone."
        )
