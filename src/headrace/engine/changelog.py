"""Changelogs in the plan of a job: which rows can be retracted, and how their weights pass Spark's steps.

Users see the rows of a changelog without the weight. Where an operator, or an output, has to know it, the
planner adds the column to all of Spark's steps between two operators (`headrace.spark.internals`): a filter
or a projection of a changelog is one of rows, and what it makes of a row is retracted by the same step.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from headrace.columns.changelog import WEIGHT
from headrace.spark.internals import step_texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

    from headrace.engine.logical import LogicalPlan


def with_weight(schema: StructType) -> StructType:
    """The columns of rows as those of a changelog: the weight is the last one."""
    from pyspark.sql.types import LongType, StructField, StructType

    return StructType([*schema.fields, StructField(WEIGHT, LongType())])


def digest_of_steps(plan: LogicalPlan, frame: DataFrame) -> str:
    """A digest of all that makes the rows of a changelog of its events: operators, filters and columns.

    Rows that are kept were made by these steps, and are retracted by those of today: if they differ, a row
    would be retracted that is not there, or not retracted at all.
    """
    return hashlib.sha256("\n".join(_steps(plan, frame)).encode()).hexdigest()[:8]


def _steps(plan: LogicalPlan, frame: DataFrame) -> Iterator[str]:
    yield from step_texts(frame)
    for node in plan.inputs_of_frame(frame):
        yield f"{node.name} {node.definition}"
        for each in node.inputs if node.is_changelog else ():
            if plan.is_changelog(each):
                yield from _steps(plan, each)
