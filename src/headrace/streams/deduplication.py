"""Rows that come again left out: the first row of each key passes, and those near it do not.

Spark's own `dropDuplicatesWithinWatermark` forgets a key when the watermark has passed it, and when that is
depends on micro-batches: a row that comes again after the time asked for passes in one run, and not in
another. Here the times of the rows decide.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.durations import milliseconds_of
from headrace.errors import Misuse
from headrace.streams.columns import listed, quoted
from headrace.streams.event_time import keep_event_time, timed_frame
from headrace.streams.query_builder import current_builder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

    from headrace.durations import Duration
    from headrace.streams.rows import Rows

READ_BY: Final = "_headrace_read_by"
"""The column with the number of the task that read a row: a shuffle keeps the order of each task's rows."""
NESTED: Final = ("struct", "array", "map", "variant")


def deduplicate(rows: Rows, columns: Sequence[str], *, within: Duration) -> Rows:
    """The rows of which none with the same `columns` has passed before whose time is at most `within` away.

    Before is the order of a partition of the log; among partitions there is none, and which of two rows in
    them is the first is left open. A row in which one of the columns is null is like no other row, and
    passes; so does one without a time. A row that is late is left out: what it might repeat is forgotten.
    """
    frame = timed_frame(rows, "deduplicate()")
    _check(frame, columns)
    within_ms = milliseconds_of(within, "within")
    make = partial(_deduplicated, replace(rows, frame=frame), columns, within_ms)
    return current_builder("deduplicate()").stateful(make, lambda: [frame])


def _deduplicated(rows: Rows, columns: Sequence[str], within_ms: int) -> Rows:
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

    from headrace.columns.first_rows import FirstRowsKernel
    from headrace.streams.stages import staged

    assert rows.event_time is not None
    frame = rows.frame
    kernel = FirstRowsKernel(
        keys=tuple(columns),
        time=rows.event_time,
        arrival=READ_BY,
        within_us=1000 * within_ms,
    )
    numbered = frame.withColumn(READ_BY, F.spark_partition_id())
    step = staged(
        numbered,
        "deduplicate()",
        spread=tuple(columns),
        keys=tuple(columns),
        kernel=kernel,
        schema=frame.schema,
        behind_ms=rows.behind_ms,
        outline=f"rows that passed, by {frame.select(*map(quoted, columns)).schema.simpleString()}",
    )
    kept = keep_event_time(step.rows, rows)
    return replace(rows, frame=kept, step=step.giving(kept))


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
