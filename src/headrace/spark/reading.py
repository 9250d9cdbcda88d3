"""What a task is told: ranges of offsets, and how they become rows.

Planners make these, tasks carry them out. Planners are processes that start again and again, so nothing here
loads Arrow or compiled code before it is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from headrace.spark.aggregate_pushdown import AggregatePushdown
    from headrace.spark.cluster_connection import ClusterConnection
    from headrace.spark.layout import Layout
    from headrace.spark.planning import Range


class Task(InputPartition):
    """The ranges that one task reads, one after the other; or the one heartbeat or number that it gives."""

    def __init__(
        self, ranges: tuple[Range, ...], heartbeat_ms: int | None = None, number: int | None = None
    ) -> None:
        super().__init__(ranges)
        self.ranges = ranges
        self.heartbeat_ms = heartbeat_ms
        self.number = number


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """All that a task must know to turn ranges into rows. Plain data: it travels to the tasks."""

    link: ClusterConnection
    layout: Layout
    schema: StructType
    read_committed: bool
    fail_on_data_loss: bool
    sums: AggregatePushdown | None = None
    """What rows are summed up to, if not they are wanted but what they come to."""

    def rows(self, ranges: Iterable[Range]) -> Iterator[pa.RecordBatch]:
        """The rows of `ranges` as Arrow batches of exactly the schema."""
        if self.sums is not None:
            from headrace.spark.aggregate_pushdown_task import read_partial_aggregates

            return read_partial_aggregates(self, self.sums, ranges)
        from headrace.spark.rows import read_rows

        return read_rows(self, ranges)

    def heartbeat(self, time_ms: int) -> Iterator[pa.RecordBatch]:
        """A row that carries a time and nothing else."""
        from headrace.spark.rows import heartbeat_row

        yield heartbeat_row(self.schema, time_ms)

    def number(self, number: int) -> Iterator[pa.RecordBatch]:
        """A row that carries the number of its task and nothing else."""
        from headrace.spark.rows import number_row

        yield number_row(self.schema, number)
