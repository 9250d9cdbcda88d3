"""Changelogs in the plan of a job: which rows can be retracted, and how their weights pass Spark's steps.

Users see the rows of a changelog without the weight. Where an operator, or an output, has to know it, the
planner adds the column to all of Spark's steps between two operators (`headrace.spark.internals`): a filter
or a projection of a changelog is one of rows, and what it makes of a row is retracted by the same step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.columns.changelog import WEIGHT

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def with_weight(schema: StructType) -> StructType:
    """The columns of rows as those of a changelog: the weight is the last one."""
    from pyspark.sql.types import LongType, StructField, StructType

    return StructType([*schema.fields, StructField(WEIGHT, LongType())])
