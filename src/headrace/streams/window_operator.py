"""The window operator: tumbling, hopping and session windows, computed by tasks over Arrow batches.

```text
rows ──▶ partial aggregates by key and pane ──▶ shuffle by key ──▶ kernel ──▶ results
         in each task, before the shuffle                          ▲    │
                                                  state of batch N-1    ▼ state of batch N
```

The state is the same whatever the job is: the partial aggregates of open windows. Where a window is all that
a job reads of a stream, the tasks of the source compute the partial aggregates as they parse the records, and
Spark never sees the rows (`AggregatePushdown`); otherwise the tasks in front of the shuffle compute them.
Neither changes state or results.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import LongType, StructField, StructType

from headrace.columns.aggregates import partials_of
from headrace.columns.hopping_windows import HoppingAssigner
from headrace.columns.session_windows import SessionAssigner
from headrace.columns.window_assigners import WindowKernelSettings
from headrace.columns.zoned_windows import WINDOW_END, WINDOW_START, ZonedAssigner
from headrace.errors import Misuse
from headrace.spark.aggregate_pushdown import (
    DEAD_RECORDS,
    NEWEST,
    RECORDS,
    TIME,
    UNTIMED_RECORDS,
    AggregatePushdown,
)
from headrace.spark.keyed_stage import arrow_schema
from headrace.streams.aggregates import SUPPORTED, UnsupportedAggregate, read_aggregates
from headrace.streams.columns import quoted
from headrace.streams.query_builder import current_builder
from headrace.streams.stages import staged
from headrace.streams.window_assignment import END, START, end_metadata, timed, window_in_words
from headrace.streams.windows import Hopping, Session
from headrace.streams.zones import in_zone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from headrace.columns.window_assigners import WindowAssigner
    from headrace.streams.aggregates import Aggregates
    from headrace.streams.rows import Rows
    from headrace.streams.stream import Stream

COUNTS: Final = (NEWEST, RECORDS, DEAD_RECORDS, UNTIMED_RECORDS)
"""The columns of sums besides partial aggregates: the newest time, and how many records they stand for."""


def aggregate_windows(
    rows: Rows,
    window: Hopping | Session,
    by: tuple[str, ...],
    columns: Sequence[Column],
    *,
    on_update: bool = False,
    allowed_lateness_ms: int = 0,
) -> Rows:
    """The aggregates of each window and key, with the columns window_start, window_end, keys, aggregates.

    The event time of a result is the end of its window.
    """
    try:
        aggregates = read_aggregates(rows.frame, by, columns)
    except UnsupportedAggregate as reason:
        raise Misuse(
            f"a window cannot compute {reason}. It computes {SUPPORTED}. Spark itself may: "
            ".df.groupBy(F.window(…)).agg(…)."
        ) from None
    settings = {"on_update": on_update, "allowed_lateness_us": 1000 * allowed_lateness_ms}
    operator = _WindowOperator(rows, window, by, aggregates, settings)
    made = operator.results()
    return replace(made, mode="update" if on_update or allowed_lateness_ms else "append")


def assigner_of(window: Hopping | Session) -> WindowAssigner:
    """The assigner of a window, which kernels work by."""
    if isinstance(window, Session):
        return SessionAssigner(gap_us=1000 * window.gap_ms)
    if window.zone is not None:
        return ZonedAssigner(zone=window.zone)
    size_us, every_us, offset_us = (1000 * ms for ms in (window.size_ms, window.every_ms, window.offset_ms))
    return HoppingAssigner(size_us=size_us, every_us=every_us, offset_us=offset_us)


class _WindowOperator:
    """The windows of some rows."""

    def __init__(
        self,
        rows: Rows,
        window: Hopping | Session,
        by: tuple[str, ...],
        aggregates: Aggregates,
        settings: dict[str, Any],
    ) -> None:
        self._rows = rows
        self._window = window
        self._assigner = assigner_of(window)
        self._by = by
        self._aggregates = aggregates
        self._settings = settings
        self._events = self._selected()

    def results(self) -> Rows:
        """The results, from partial aggregates that the source computes if it can."""
        stream = current_builder("a window").summable(self._rows)
        if (
            stream is not None
            and self._aggregates.sources is not None
            and WINDOW_START not in self._assigner.places
        ):
            return self._windows(self._sums_of(stream))
        first = self._assigner.partial_aggregation(TIME, self._by, self._aggregates.specs)
        return self._windows(self._events, first=first, first_schema=StructType(self._partial_fields()))

    def _sums_of(self, stream: Stream) -> DataFrame:
        """The partial aggregates that the tasks of the source compute."""
        builder, sources = current_builder("a window"), self._aggregates.sources
        assert sources is not None
        fields = [*self._partial_fields(), *(StructField(name, LongType()) for name in COUNTS)]
        sums = AggregatePushdown(
            time=self._rows.event_time or "",
            keys=self._by,
            values=sources,
            specs=tuple(map(asdict, self._aggregates.specs)),
            assigner=asdict(self._assigner),
            behind_us=1000 * (self._rows.behind_ms - builder.join_strategy.behind_ms),
            columns=tuple(field.name for field in fields),
        )
        schema = StructType([StructField(f"column{n}", field.dataType) for n, field in enumerate(fields)])
        return builder.sums(stream, sums, schema).drop(TIME)

    def _selected(self) -> DataFrame:
        """Time or boundaries, keys and values of the rows."""
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        keys = [F.col(quoted(name)) for name in self._by]
        values = [column.alias(name) for name, column in self._aggregates.values.items()]
        if isinstance(self._window, Hopping) and self._window.zone is not None:
            frame = in_zone(self._rows, self._window)
            ends = [F.unix_micros(name).alias(name) for name in (WINDOW_START, WINDOW_END)]
            _, time = timed(replace(self._rows, frame=frame))
            return frame.select(time.alias(TIME), *ends, *keys, *values)
        frame, time = timed(self._rows)
        return frame.select(time.alias(TIME), *keys, *values)

    def _windows(self, frame: DataFrame, **first: Any) -> Rows:
        """The results of the kernel over partial aggregates, or over rows that are aggregated `first`."""
        from pyspark.sql import functions as F  # noqa: N812

        aggregates = self._aggregates
        schema = StructType().add(START, "timestamp").add(END, "timestamp")
        schema = StructType([*schema.fields, *aggregates.computed])
        settings = WindowKernelSettings(
            keys=self._by, specs=aggregates.specs, output=arrow_schema(schema), **self._settings
        )
        keys = [self._events.schema[key].simpleString() for key in self._by]
        partials = self._partial_fields()[len(keys) :]
        step = staged(
            frame,
            "a window",
            spread=self._by,
            keys=self._by,
            kernel=self._assigner.kernel(settings),
            schema=schema,
            behind_ms=self._rows.behind_ms,
            outline=window_in_words(self._window, keys),
            columns={partial.name: partial.dataType.simpleString() for partial in partials},
            **first,
        )
        end = F.col(END).alias(END, metadata=end_metadata(self._rows))
        names = step.rows.columns[2:]
        others = [F.col(quoted(name)) for name in (names[: len(self._by)] if aggregates.results else names)]
        result = step.rows.select(START, end, *others, *aggregates.results)
        kept = None if aggregates.results else step.giving(result)
        return replace(self._rows, frame=result, step=kept, event_time=END)

    def _partial_fields(self) -> list[StructField]:
        """Keys, places in time, partial aggregates."""
        schema = arrow_schema(self._events.schema)
        types = dict(zip(schema.names, schema.types, strict=True))
        fields = [StructField(key, self._events.schema[key].dataType) for key in self._by]
        fields += [StructField(place, LongType()) for place in self._assigner.places]
        for partial in partials_of(self._aggregates.specs):
            fields.append(StructField(partial.name, from_arrow_type(partial.type(types))))
        return fields
