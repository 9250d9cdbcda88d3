"""Rows that come again left out: the first row of each key passes, and those near it do not.

Spark's own `dropDuplicatesWithinWatermark` forgets a key when the watermark has passed it, and when that is
depends on micro-batches: a row that comes again after the time asked for passes in one run, and not in
another. Here the times of the rows decide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Final

from headrace.durations import milliseconds_of
from headrace.engine.changelog import with_weight
from headrace.engine.columns import listed, quoted
from headrace.engine.keyed_operator import KeyedOperator
from headrace.engine.logical import current_plan
from headrace.engine.planner import PlannedRows
from headrace.errors import Misuse
from headrace.spark.keyed_stage import arrow_schema
from headrace.streams.event_time import timed_frame

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import DataFrame

    from headrace.durations import Duration
    from headrace.engine.planner import Planner
    from headrace.streams.rows import Rows

READ_BY: Final = "_headrace_read_by"
"""The column with the number of the task that read a row: a shuffle keeps the order of each task's rows."""
NESTED: Final = ("struct", "array", "map", "variant")


def deduplicate(rows: Rows, columns: Sequence[str], *, within: Duration) -> Rows:
    """The rows of which none with the same `columns` has passed before whose time is at most `within` away.

    Before is the order of a partition of the log; among partitions there is none, and which of two rows in
    them is the first is left open. Of rows that change the first one by time passes, and when it is
    retracted the next one does. A row in which one of the columns is null is like no other row, and
    passes; so does one without a time. A row that is late is left out: what it might repeat is forgotten.
    """
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

    frame = timed_frame(rows, "deduplicate()")
    _check(frame, columns)
    within_ms = milliseconds_of(within, "within")
    plan = current_plan("deduplicate()")
    is_changing = plan.is_changelog(frame)
    node = plan.add(
        ChangingDeduplication if is_changing else Deduplication,
        frame.schema,
        inputs=(frame if is_changing else frame.withColumn(READ_BY, F.spark_partition_id()),),
        behind_ms=rows.behind_ms,
        is_changelog=is_changing,
        reads_weights=is_changing,
        by=tuple(columns),
        time=rows.event_time,
        within_ms=within_ms,
    )
    return replace(rows, frame=node.rows)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Deduplication(KeyedOperator):
    """The first row of each key."""

    kind: ClassVar[str] = "deduplicate"
    by: tuple[str, ...]
    time: str
    within_ms: int

    def plan(self, planner: Planner) -> PlannedRows:
        """The rows that pass."""
        from headrace.columns.first_rows import FirstRowsKernel

        schema = self.inputs[0].drop(READ_BY).schema
        kernel = FirstRowsKernel(
            keys=self.by, time=self.time, arrival=READ_BY, within_us=1000 * self.within_ms
        )
        keys = self.inputs[0].select(*map(quoted, self.by)).schema.simpleString()
        step = self.staged(
            planner,
            planner.frame(self.inputs[0]),
            spread=self.by,
            keys=self.by,
            kernel=kernel,
            schema=schema,
            behind_ms=self.behind_ms,
            outline=f"rows that passed, by {keys}",
        )
        return PlannedRows.of(step)

    def details(self) -> Mapping[str, str]:
        """The keys, and for how long they are kept."""
        return {"state": f"times of rows that passed, by {', '.join(self.by)}, for {self.within_ms} ms"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ChangingDeduplication(Deduplication):
    """The first row of each key among rows that can be retracted."""

    takes_changelogs: ClassVar[bool] = True

    def plan(self, planner: Planner) -> PlannedRows:
        """The changes of the rows that pass."""
        from headrace.columns.changelog import ChangelogKernel
        from headrace.columns.changing_joins import ChangingFirstRows

        frame, schema = self.inputs[0], with_weight(self.inputs[0].schema)
        operation = ChangingFirstRows(
            name=self.name, keys=self.by, time=self.time, within_us=1000 * self.within_ms
        )
        step = self.staged(
            planner,
            planner.weighted_frame(frame),
            spread=self.by,
            keys=self.by,
            kernel=ChangelogKernel(operation=operation, output=arrow_schema(schema), is_final=False),
            schema=schema,
            behind_ms=self.behind_ms,
            outline=f"the changing rows {frame.schema.simpleString()} by {', '.join(self.by)}, "
            f"{self.within_ms} ms apart",
        )
        return PlannedRows.of(step)


def _check(frame: DataFrame, columns: Sequence[str]) -> None:
    if not columns:
        raise Misuse(
            'deduplicate() needs the columns that tell rows apart: deduplicate("id", within="1 hour").'
        )
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise Misuse(
            f"deduplicate() compares {listed(missing)}, which the rows do not have: their columns are "
            f"{listed(frame.columns)}."
        )
    nested = [name for name in columns if frame.schema[name].dataType.typeName() in NESTED]
    if nested:
        raise Misuse(
            f"deduplicate() cannot compare {listed(nested)}, which have parts: name columns with single "
            "values, or make one by transform()."
        )
