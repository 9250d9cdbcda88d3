"""A function of Arrow batches as the last step of a plan.

Between two such functions Spark would turn what the first one gives into rows of its own, and those into
Arrow again for the second: most of the work of a job whose rows nobody else looks at. So a step is kept with
the plan before it, and what follows at once can be done by the same tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

Batches: TypeAlias = Iterable[pa.RecordBatch]
ArrowFunction: TypeAlias = Callable[[Batches], Iterator[pa.RecordBatch]]
"""What a task does with the batches of its partition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowStep:
    """A step of a plan: `rows` are what the function makes of the batches of `before`."""

    before: DataFrame
    function: ArrowFunction
    rows: DataFrame

    @classmethod
    def of(cls, before: DataFrame, function: ArrowFunction, schema: StructType) -> ArrowStep:
        """The step that has these columns."""
        return cls(before=before, function=function, rows=before.mapInArrow(function, schema))

    def giving(self, rows: DataFrame) -> ArrowStep:
        """The step whose rows got other names or marks: values and the order of columns are the same."""
        return replace(self, rows=rows)


def chained(functions: Iterable[ArrowFunction], batches: Batches) -> Batches:
    """What the last function makes of what the ones before it made of the batches."""
    for function in functions:
        batches = function(batches)
    return batches


def by_position(frame: DataFrame) -> DataFrame:
    """The columns under names by position: `mapInArrow` cannot find those with a dot in their names."""
    return frame.toDF(*map(column_name, range(len(frame.columns))))


def column_name(position: int) -> str:
    """The name that `by_position` gives to a column."""
    return f"column{position}"
