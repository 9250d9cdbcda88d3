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

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from headrace.columns.sliding import SlidingKernel
from headrace.durations import milliseconds_of
from headrace.engine.aggregates import SUPPORTED, UnsupportedAggregate, evaluated, read_aggregates
from headrace.engine.columns import quoted
from headrace.engine.keyed_operator import KeyedOperator
from headrace.engine.logical import current_plan
from headrace.engine.planner import PlannedRows
from headrace.errors import Misuse
from headrace.spark.keyed_stage import arrow_schema
from headrace.streams.event_time import MARK
from headrace.streams.window_operator import aggregated

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

    from headrace.engine.aggregates import Aggregates
    from headrace.engine.planner import Planner
    from headrace.streams.rows import Rows
    from headrace.streams.windows import Sliding


def slide(
    rows: Rows, window: Sliding, by: tuple[str, ...], columns: Sequence[Column], *, can_be_late: bool
) -> Rows:
    """One row for each event: its time, its keys and the aggregates."""
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know
    from pyspark.sql.types import StructField, StructType

    assert rows.event_time is not None
    assert rows.watermark_delay is not None
    try:
        aggregates = read_aggregates(rows.frame, by, columns, time=rows.event_time)
    except UnsupportedAggregate as reason:
        raise Misuse(f"sliding({window.size!r}) cannot compute {reason}. It computes {SUPPORTED}.") from None
    keys = [F.col(quoted(name)) for name in by]
    values = [column.alias(name) for name, column in aggregates.values.items()]
    frame = rows.frame.select(F.col(quoted(rows.event_time)), *keys, *values)
    mark = {MARK: milliseconds_of(rows.watermark_delay)}
    time = StructField(rows.event_time, frame.schema[rows.event_time].dataType, metadata=mark)
    checked = evaluated(rows.frame, by, columns, aggregates)
    whole = aggregated(rows.frame, by, columns).schema.fields
    results = whole if aggregates.results else aggregates.computed
    node = current_plan("a sliding window").add(
        SlidingAggregation,
        StructType([time, *results]),
        inputs=(frame,),
        behind_ms=rows.behind_ms,
        of=rows,
        window=window,
        by=by,
        aggregates=aggregates,
        checked=checked,
        can_be_late=can_be_late,
    )
    return replace(rows, frame=node.rows, mode="append")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlidingAggregation(KeyedOperator):
    """Aggregates over the events of a key in the time before each of them."""

    kind: ClassVar[str] = "sliding"
    of: Rows
    window: Sliding
    by: tuple[str, ...]
    aggregates: Aggregates
    checked: tuple[DataFrame, ...]
    can_be_late: bool

    def plan(self, planner: Planner) -> PlannedRows:
        """One row for each event."""
        time = self.of.event_time
        assert time is not None
        schema = self._schema()
        kernel = SlidingKernel(
            time=time,
            keys=self.by,
            specs=self.aggregates.specs,
            size_us=self.window.size_ms * 1000,
            output=arrow_schema(schema),
        )
        events = self.inputs[0].drop(time).schema.simpleString()
        step = self.staged(
            planner,
            planner.frame(self.inputs[0]),
            spread=self.by,
            keys=self.by,
            kernel=kernel,
            schema=schema,
            behind_ms=self.behind_ms,
            outline=f"events of the last {self.window.size} with {events}",
        )
        if not self.aggregates.results:
            return PlannedRows.of(step)
        names = (time, *self.by)
        return PlannedRows(frame=step.rows.select(*map(quoted, names), *self.aggregates.results))

    def evaluated(self) -> Sequence[DataFrame]:
        """All that can fail in a row."""
        return self.checked

    def details(self) -> Mapping[str, str]:
        """The size of the windows, and what is computed of them."""
        names = [field.name for field in self.aggregates.computed[len(self.by) :]]
        by = f" by {', '.join(self.by)}" if self.by else ""
        return {"computes": ", ".join(names), "state": f"events of the last {self.window.size}{by}"}

    def _schema(self) -> StructType:
        from pyspark.sql.types import StructType

        assert self.of.event_time is not None
        return StructType([self.inputs[0].schema[self.of.event_time], *self.aggregates.computed])
