"""Aggregates that users write: a class with a state of columns, computed over Arrow arrays.

The names are those of Spark's `Aggregator` and Flink's `AggregateFunction`. The difference is that each
method gets many groups at once, so that no Python runs for a single row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.columns.user_aggregates import Groups
from headrace.engine.aggregates import user_aggregate
from headrace.errors import Misuse
from headrace.streams.declarations import read_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql import Column
    from pyspark.sql.types import StructType


class Aggregator(ABC):
    """An aggregate for `agg(…)`: `GeometricMean()("amount").alias("mean")`.

    Results have to be the same in whatever order rows come and states are merged: merging is associative and
    commutative. A class that has parameters is a frozen dataclass: their values are part of the name of its
    state.

    >>> import pyarrow.compute as pc
    >>> class Range(Aggregator):
    ...     state = "least double, most double"
    ...     result = "double"
    ...
    ...     def accumulate(self, groups, amount):
    ...         return {
    ...             "least": groups.aggregate(amount, "min"),
    ...             "most": groups.aggregate(amount, "max"),
    ...         }
    ...
    ...     def merge(self, groups, states):
    ...         return {
    ...             "least": groups.aggregate(states["least"], "min"),
    ...             "most": groups.aggregate(states["most"], "max"),
    ...         }
    ...
    ...     def finish(self, states):
    ...         return pc.subtract(states["most"], states["least"])
    >>> Range().name
    'Range'
    """

    state: ClassVar[str]
    """The columns of the state of a group, as Spark DDL: `"total double, count bigint"`."""
    result: ClassVar[str]
    """The type of a result: `"double"`."""

    def initial(self) -> Mapping[str, Any]:
        """The state of a group without rows, as Python values; a field that is left out is null.

        An aggregate that is added to a job begins with it in the windows that are open.
        """
        return {}

    @abstractmethod
    def accumulate(self, groups: Groups, *columns: Any) -> Mapping[str, Any]:
        """The states of groups of rows: for each field of the state an array with a value for each group.

        `columns` are the arrays (`pyarrow.Array`) of the columns that the aggregate is over, nulls included.
        """

    @abstractmethod
    def merge(self, groups: Groups, states: pa.RecordBatch) -> Mapping[str, Any]:
        """The states of groups of states, as `accumulate` gives them."""

    @abstractmethod
    def finish(self, states: pa.RecordBatch) -> Any:
        """The results of states: an array with a value for each."""

    @property
    def name(self) -> str:
        """The name of the state: that of the class, with the parameters of a dataclass."""
        return type(self).__name__ if type(self).__repr__ is object.__repr__ else repr(self)

    def __call__(self, *columns: str | Column) -> Column:
        """The aggregate of some columns, as a column for `agg(…)`."""
        if not columns:
            raise Misuse(f"{self.name} needs the columns that it aggregates: {self.name}()('amount').")
        state = read_schema(self.state, f"the state of {self.name}")
        function = AggregatorFunction(aggregator=self, state=state)
        return user_aggregate(function, self.name, self.result, columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorFunction:
    """An aggregator as Spark calls it, with the rows of one group: outside of Headrace's operators."""

    aggregator: Aggregator
    state: StructType

    def __call__(self, *columns: pa.Array) -> Any:
        """The result of one group."""
        import pyarrow as pa

        states = self.aggregator.accumulate(Groups([0], len(columns[0])), *columns)
        (result,) = self.aggregator.finish(pa.RecordBatch.from_pydict(dict(states)))
        return result
