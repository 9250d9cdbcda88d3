"""Windows put together from panes: those that overlap much, and those right behind a stream.

```text
every 1       ┌─1─┬─2─┬─3─┬─4─┬─5─┬─6─┐      each event counts in one pane
size 5        └───────────────────┘          when it closes, a window is the sum of its five panes
                  └───────────────────┘
```

Spark's own plan counts an event once for each of its windows: sixty times with a minute every second. And
where a window is all that a job wants of a stream, the source puts its records into panes as it parses them,
and Spark sees a row for each key and pane.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import LongType, StructField, StructType

from headrace.columns.measures import part_names
from headrace.columns.panes import PANE, Hops, PanesKernel, PaneSums
from headrace.spark.keyed_stage import arrow_schema
from headrace.spark.sums import DEAD_RECORDS, NEWEST, RECORDS, TIME, Sums
from headrace.streams.aggregates import Aggregates, Uncombinable, read_aggregates
from headrace.streams.building import current_building
from headrace.streams.columns import quoted
from headrace.streams.native_windows import END, START, end_metadata, timed
from headrace.streams.stages import staged
from headrace.streams.zones import aggregate_in_zone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from headrace.streams.rows import Rows
    from headrace.streams.stream import Stream
    from headrace.streams.windows import Hopping

ENOUGH: Final = 4
"""Windows that an event is in, from which on panes are faster."""
COUNTS: Final = (NEWEST, RECORDS, DEAD_RECORDS)
"""What sums have beside panes: the newest time, and how many records they stand for."""


def hop_by_panes(rows: Rows, window: Hopping, by: Sequence[str], columns: Sequence[Column]) -> Rows | None:
    """The same rows as Spark's own window gives, at the same time; None where that is the better way.

    It is with aggregates that cannot be put together from parts, and with little overlap, unless the source
    itself can sum up. Windows of a time zone are computed here too.
    """
    if window.zone is not None:
        return aggregate_in_zone(rows, window, by, columns)
    stream = current_building("a window").summable(rows)
    overlaps = window.size_ms >= ENOUGH * window.every_ms
    if window.has_gaps or not rows.frame.isStreaming or not (overlaps or stream):
        return None
    try:
        aggregates = read_aggregates(rows.frame, by, columns)
    except Uncombinable:
        return None
    if stream is None or aggregates.sources is None:
        return _Panes(rows, window, tuple(by), aggregates).result() if overlaps else None
    return _Panes(rows, window, tuple(by), aggregates).result_of(stream)


class _Panes:
    """The windows of some rows, by panes."""

    def __init__(self, rows: Rows, window: Hopping, by: tuple[str, ...], aggregates: Aggregates) -> None:
        self._rows = rows
        self._window = window
        self._by = by
        self._aggregates = aggregates
        self._hops = Hops(
            size_us=window.size_ms * 1000, every_us=window.every_ms * 1000, offset_us=window.offset_ms * 1000
        )
        self._events = self._selected()

    def result(self) -> Rows:
        """The windows of rows, which tasks put into panes before they are shuffled."""
        measures = self._aggregates.measures
        return self._windows(
            self._events,
            first=PaneSums(time=TIME, keys=self._by, measures=measures, hops=self._hops),
            first_schema=StructType(self._pane_fields()),
        )

    def result_of(self, stream: Stream) -> Rows:
        """The windows of a stream, of which the source gives panes: its events only tell the types."""
        sources = self._aggregates.sources
        assert sources is not None
        fields = [*self._pane_fields(), *(StructField(name, LongType()) for name in COUNTS)]
        sums = Sums(
            time=self._rows.event_time or "",
            keys=self._by,
            values=sources,
            measures=tuple(map(asdict, self._aggregates.measures)),
            hops=asdict(self._hops),
            columns=tuple(field.name for field in fields),
        )
        schema = StructType([StructField(f"column{n}", field.dataType) for n, field in enumerate(fields)])
        panes = current_building("a window").sums(stream, sums, schema)
        return self._windows(panes.drop(TIME))

    def _selected(self) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        frame, time = timed(self._rows)
        keys = [F.col(quoted(name)) for name in self._by]
        values = [column.alias(name) for name, column in self._aggregates.values.items()]
        return frame.select(time.alias(TIME), *keys, *values)

    def _windows(self, frame: DataFrame, **first: Any) -> Rows:
        """What the stage makes of panes, or of the rows that are put into panes first."""
        from pyspark.sql import functions as F  # noqa: N812

        window, aggregates = self._window, self._aggregates
        ends = StructType().add(START, "timestamp").add(END, "timestamp")
        schema = StructType([*ends.fields, *aggregates.fields])
        output = arrow_schema(schema)
        step = staged(
            frame,
            "a window",
            keys=self._by,
            kernel=PanesKernel(keys=self._by, measures=aggregates.measures, hops=self._hops, output=output),
            schema=schema,
            behind_ms=self._rows.behind_ms,
            outline=f"panes of windows of {window.size} every {window.every}, offset {window.offset}, with "
            + self._events.drop(TIME).schema.simpleString(),
            **first,
        )
        others = [F.col(quoted(name)) for name in step.rows.columns[2:]]
        result = step.rows.select(START, F.col(END).alias(END, metadata=end_metadata(self._rows)), *others)
        return replace(self._rows, frame=result, step=step.giving(result), event_time=END, mode="append")

    def _pane_fields(self) -> list[StructField]:
        """Keys, number, parts. Parts are of the type of their values, counts are whole."""
        events = self._events.schema
        fields = [StructField(key, events[key].dataType) for key in self._by]
        fields.append(StructField(PANE, LongType()))
        for name in part_names(self._aggregates.measures):
            column, _, part = name.rpartition(".")
            is_count = not column or part == "count"
            fields.append(StructField(name, LongType() if is_count else events[column].dataType))
        return fields
