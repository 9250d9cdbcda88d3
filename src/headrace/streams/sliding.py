"""Sliding windows: for each event what the events of its key in (t - size, t] come to.

```text
events      1     3              8
at 1      ──●                                count 1
at 3      ──●─────●                          count 2
at 8           (2 ●──────────────● 8]        count 2: the event at 1 has expired
```

A result is given once, when the watermark has passed its event, in order of time. An event is late when the
watermark had passed its time before it came.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace.columns.sliding import SlidingKernel
from headrace.durations import milliseconds_of
from headrace.errors import Misuse
from headrace.spark.keyed_stage import arrow_schema
from headrace.streams.aggregates import SUPPORTED, UnsupportedAggregate, read_aggregates
from headrace.streams.columns import quoted
from headrace.streams.event_time import mark_event_time
from headrace.streams.stages import staged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column

    from headrace.streams.rows import Rows
    from headrace.streams.windows import Sliding


def slide(rows: Rows, window: Sliding, by: Sequence[str], columns: Sequence[Column]) -> Rows:
    """One row for each event: its time, its keys and the aggregates."""
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know
    from pyspark.sql.types import StructType

    assert rows.event_time is not None
    assert rows.watermark_delay is not None
    try:
        aggregates = read_aggregates(rows.frame, by, columns, time=rows.event_time)
    except UnsupportedAggregate as reason:
        raise Misuse(f"sliding({window.size!r}) cannot compute {reason}. It computes {SUPPORTED}.") from None
    keys = [F.col(quoted(name)) for name in by]
    values = [column.alias(name) for name, column in aggregates.values.items()]
    frame = rows.frame.select(F.col(quoted(rows.event_time)), *keys, *values)
    schema = StructType([frame.schema[rows.event_time], *aggregates.computed])
    kernel = SlidingKernel(
        time=rows.event_time,
        keys=tuple(by),
        specs=aggregates.specs,
        size_us=window.size_ms * 1000,
        output=arrow_schema(schema),
    )
    step = staged(
        frame,
        "a sliding window",
        spread=tuple(by),
        keys=tuple(by),
        kernel=kernel,
        schema=schema,
        behind_ms=rows.behind_ms,
        outline=f"events of the last {window.size} with {frame.drop(rows.event_time).schema.simpleString()}",
    )
    marked = mark_event_time(step.rows, rows.event_time, milliseconds_of(rows.watermark_delay))
    if not aggregates.results:
        return replace(rows, frame=marked, step=step.giving(marked), mode="append")
    return replace(
        rows, frame=marked.select(rows.event_time, *keys, *aggregates.results), step=None, mode="append"
    )
