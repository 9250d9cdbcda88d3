"""Aggregates of a user's own class: many groups at once, whose states are one struct column.

```text
rows ──▶ accumulate ──▶ a state for each group ──▶ merge ──▶ … ──▶ finish ──▶ a result for each group
```
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from headrace.errors import Misuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


class Groups:
    """How rows are divided into groups: each group is some rows that follow one another, and is not empty.

    >>> groups = Groups(starts=[0, 2], rows=3)
    >>> groups.aggregate(pa.array([1, 2, 5]), "sum").to_pylist()
    [3, 5]
    >>> groups.concat(pa.array([[1], [2, 3], None])).to_pylist()
    [[1, 2, 3], []]
    """

    def __init__(self, starts: NDArray[np.int64] | Sequence[int], rows: int) -> None:
        self.starts = np.asarray(starts, np.int64)
        """The first row of each group."""
        self.rows = rows
        """The number of rows of all groups."""

    def __len__(self) -> int:
        """The number of groups."""
        return len(self.starts)

    @cached_property
    def numbers(self) -> NDArray[np.int64]:
        """The number of its group for each row, from 0."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts, append=self.rows))

    def aggregate(self, values: pa.Array, function: str, options: Any = None) -> pa.Array:
        """What a grouped aggregation of Arrow makes of the values of each group, in order of the groups.

        `function` is one of `pyarrow.TableGroupBy.aggregate`: `sum`, `count`, `min`, `max`, `mean`, `list`,
        `tdigest` and others, most of which skip nulls.
        """
        table = pa.table({"group": self.numbers, "value": values})
        made = table.group_by("group", use_threads=False).aggregate([("value", function, options)])
        return _whole(made[f"value_{function.removeprefix('hash_')}"])

    def concat(self, lists: pa.ListArray) -> pa.ListArray:
        """The lists of each group as one, in order of the rows; a null is an empty list."""
        lengths = lists.value_lengths().fill_null(0).to_numpy()
        ends = np.concatenate([[0], np.cumsum(lengths)])
        offsets = ends[np.append(self.starts, self.rows)]
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), lists.flatten())


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAggregate:
    """An aggregate of a user's own class, over some columns of values."""

    name: str
    """The class with its parameters: states of other names are not read."""
    columns: tuple[str, ...]
    """The columns that it is over."""
    state: pa.StructType
    result: pa.DataType
    aggregator: Any = field(compare=False)
    """The `Aggregator`."""

    @property
    def column(self) -> str:
        """The name of the column of states."""
        return f"{', '.join(self.columns)}.{self.name}"

    def rows(self, values: Sequence[pa.Array]) -> AccumulatedRows:
        """Rows that have no state yet."""
        return AccumulatedRows(of=self, values=tuple(values))

    def merge(self, states: pa.StructArray | AccumulatedRows, groups: Groups) -> pa.StructArray:
        """The states of groups of states, or of rows that have none yet."""
        if isinstance(states, AccumulatedRows):
            return self._states(self.aggregator.accumulate(groups, *states.values), len(groups), "accumulate")
        made = self.aggregator.merge(groups, pa.RecordBatch.from_struct_array(states))
        return self._states(made, len(groups), "merge")

    def initial(self, count: int) -> pa.StructArray:
        """The states of groups that have no rows."""
        made = {**dict.fromkeys(self._names), **self.aggregator.initial()}
        self._check_names(made, "initial")
        return pa.array([made], self.state).take(pa.array(np.zeros(count, np.int64)))

    def finish(self, states: pa.StructArray) -> pa.Array:
        """The results of states."""
        made = self.aggregator.finish(pa.RecordBatch.from_struct_array(states))
        return self._array(made, self.result, len(states), "finish")

    def _states(self, made: Any, count: int, method: str) -> pa.StructArray:
        self._check_names(made, method)
        if not count:
            return pa.array([], self.state)
        arrays = [self._array(made[each.name], each.type, count, method) for each in self.state]
        return pa.StructArray.from_arrays(arrays, fields=list(self.state))

    def _check_names(self, made: Any, method: str) -> None:
        if not isinstance(made, Mapping) or sorted(made) != sorted(self._names):
            found = ", ".join(map(str, made)) if isinstance(made, Mapping) else type(made).__name__
            raise Misuse(
                f"{self.name}.{method}() returned {found}: it has to return a dictionary with the fields of "
                f"its state, {', '.join(self._names)}."
            )

    @property
    def _names(self) -> list[str]:
        return [each.name for each in self.state]

    def _array(self, made: Any, wanted: pa.DataType, count: int, method: str) -> pa.Array:
        try:
            array = _whole(made if isinstance(made, pa.Array | pa.ChunkedArray) else pa.array(made))
            array = array.cast(wanted)
        except (pa.ArrowException, TypeError) as error:
            raise Misuse(
                f"{self.name}.{method}() returned values that cannot become {wanted}: {error}"
            ) from None
        if len(array) != count:
            raise Misuse(
                f"{self.name}.{method}() returned {len(array)} values for {count} groups: it has to return "
                "one for each."
            )
        return array


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulatedRows:
    """Rows in the place of states: a group of them is accumulated when it is known."""

    of: UserAggregate
    values: tuple[pa.Array, ...]

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.values[0])

    def take(self, rows: pa.Array) -> AccumulatedRows:
        """Some of the rows, in another order."""
        return replace(self, values=tuple(column.take(rows) for column in self.values))

    @property
    def nothing(self) -> pa.StructArray:
        """The states of no groups."""
        return pa.array([], self.of.state)


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    made = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return pa.concat_arrays(made.chunks) if isinstance(made, pa.ChunkedArray) else made
