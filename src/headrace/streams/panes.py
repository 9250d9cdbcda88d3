"""Hopping windows that overlap much, put together from panes; and windows of a time zone.

```text
every 1       ┌─1─┬─2─┬─3─┬─4─┬─5─┬─6─┐      each event counts in one pane
size 5        └───────────────────┘          when it closes, a window is the sum of its five panes
                  └───────────────────┘
```

Spark's own plan counts an event once for each of its windows: sixty times with a minute every second.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headrace.columns.measures import part_names
from headrace.columns.panes import PANE, Hops, PanesKernel, PaneSums
from headrace.spark.keyed_stage import arrow_schema
from headrace.streams.aggregates import Aggregates, Uncombinable, read_aggregates
from headrace.streams.columns import quoted
from headrace.streams.native_windows import END, START, end_metadata, timed
from headrace.streams.stages import staged
from headrace.streams.zones import aggregate_in_zone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from headrace.streams.rows import Rows
    from headrace.streams.windows import Hopping

ENOUGH: Final = 4
"""Windows that an event is in, from which on panes are faster."""
_TIME: Final = "_headrace_at"


def hop_by_panes(rows: Rows, window: Hopping, by: Sequence[str], columns: Sequence[Column]) -> Rows | None:
    """The same rows as Spark's own hopping window gives, at the same time; None where that is the better way.

    It is with little overlap, and with aggregates that cannot be put together from parts. Windows of a time
    zone are computed here too.
    """
    if window.zone is not None:
        return aggregate_in_zone(rows, window, by, columns)
    if window.size_ms < ENOUGH * window.every_ms or not rows.frame.isStreaming:
        return None
    try:
        aggregates = read_aggregates(rows.frame, by, columns)
    except Uncombinable:
        return None
    return _hop(rows, window, tuple(by), aggregates)


def _hop(rows: Rows, window: Hopping, by: tuple[str, ...], aggregates: Aggregates) -> Rows:
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know
    from pyspark.sql.types import StructType

    frame, time = timed(rows)
    keys = [F.col(quoted(name)) for name in by]
    values = [column.alias(name) for name, column in aggregates.values.items()]
    events = frame.select(time.alias(_TIME), *keys, *values)
    ends = StructType().add(START, "timestamp").add(END, "timestamp")
    schema = StructType([*ends.fields, *aggregates.fields])
    hops = Hops(
        size_us=window.size_ms * 1000, every_us=window.every_ms * 1000, offset_us=window.offset_ms * 1000
    )
    outline = f"panes of windows of {window.size} every {window.every}, offset {window.offset}, with "
    made = staged(
        events,
        "a hopping window",
        keys=by,
        kernel=PanesKernel(keys=by, measures=aggregates.measures, hops=hops, output=arrow_schema(schema)),
        schema=schema,
        behind_ms=rows.behind_ms,
        outline=outline + events.drop(_TIME).schema.simpleString(),
        first=PaneSums(time=_TIME, keys=by, measures=aggregates.measures, hops=hops),
        first_schema=_pane_schema(events, by, aggregates),
    )
    others = [F.col(quoted(name)) for name in made.columns[2:]]
    result = made.select(START, F.col(END).alias(END, metadata=end_metadata(rows)), *others)
    return replace(rows, frame=result, event_time=END, mode="append")


def _pane_schema(events: DataFrame, by: tuple[str, ...], aggregates: Aggregates) -> StructType:
    """The columns of panes: keys, number, parts. Parts are of the type of their values, counts are whole."""
    from pyspark.sql.types import LongType, StructField, StructType

    fields = [events.schema[key] for key in by]
    fields.append(StructField(PANE, LongType()))
    for name in part_names(aggregates.measures):
        column, _, part = name.rpartition(".")
        is_count = not column or part == "count"
        fields.append(StructField(name, LongType() if is_count else events.schema[column].dataType))
    return StructType(fields)
