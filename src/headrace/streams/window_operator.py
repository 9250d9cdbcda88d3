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

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, get_args

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import LongType, StructField, StructType

from headrace.columns.aggregates import partials_of
from headrace.columns.hopping_windows import HoppingAssigner
from headrace.columns.session_windows import SessionAssigner
from headrace.columns.window_assigners import WindowKernelSettings
from headrace.columns.zoned_windows import WINDOW_END, WINDOW_START, ZonedAssigner
from headrace.engine.aggregates import SUPPORTED, UnsupportedAggregate, evaluated, read_aggregates
from headrace.engine.columns import quoted
from headrace.engine.keyed_operator import KeyedOperator
from headrace.engine.logical import current_plan, name_next
from headrace.engine.planner import PlannedRows
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
from headrace.streams.event_time import check_final, timed_frame
from headrace.streams.source import Source
from headrace.streams.window_assignment import END, START, end_metadata, in_zone, timed, window_in_words
from headrace.streams.windows import Hopping, Session, Sliding, Window

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from headrace.columns.window_assigners import WindowAssigner
    from headrace.engine.aggregates import Aggregates
    from headrace.engine.logical import LogicalNode, LogicalPlan
    from headrace.engine.planner import Planner
    from headrace.spark.arrow_step import ArrowStep
    from headrace.streams.rows import Rows

Emit = Literal["on_window_close", "on_window_update"]
"""When the result of a window is given."""
COUNTS: Final = (NEWEST, RECORDS, DEAD_RECORDS, UNTIMED_RECORDS)
"""The columns of pushed-down aggregates besides partials: the newest time, and how many records they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Windowed:
    """Rows that were put into windows; `agg` says what is computed of each."""

    of: Rows
    window: Window
    by: tuple[str, ...]

    def agg(self, *columns: Column, emit: Emit = "on_window_close", name: str | None = None) -> Rows:
        """The aggregates of each window and key: window_start, window_end, the keys, the aggregates.

        `emit` says when a result is given: `on_window_close`, once, when the watermark reaches the end of the
        window; `on_window_update`, after each micro-batch that changed it (the job's `trigger_interval` says
        how often that is). A result that is given again replaces the one before: write it to a topic that is
        keyed by `window_start` and the keys. `name` names the state.
        """
        name_next(name)
        self._check(columns, emit)
        plan = current_plan("a window")
        can_be_late = not plan.keeps_state(self.of.frame)
        if plan.allowed_lateness_ms and not can_be_late:
            raise Misuse(
                "allowed_lateness= is for windows right behind a stream: what a join, another window or "
                "deduplicate() gives is never late. Write the result of that step into a topic, and let a "
                "job of its own put it into windows."
            )
        if isinstance(self.window, Sliding):
            from headrace.streams.sliding import slide

            return slide(self.of, self.window, self.by, columns, can_be_late=can_be_late)
        assert isinstance(self.window, Hopping | Session)
        if plan.allowed_lateness_ms and emit != "on_window_update":
            _check_can_change(self.window, "allowed_lateness=")
        return aggregate_windows(self.of, self.window, self.by, columns, emit=emit, can_be_late=can_be_late)

    def _check(self, columns: Sequence[Column], emit: Emit) -> None:
        if not columns:
            raise Misuse(
                "agg() needs to know what to compute of each window: for example "
                'agg(F.sum("amount").alias("revenue")).'
            )
        made = aggregated(self.of.frame, self.by, columns)
        self._check_names(made.columns)
        if emit not in get_args(Emit):
            raise Misuse(f"emit={emit!r} is not known: use {' or '.join(get_args(Emit))}.")
        if emit == "on_window_close":
            return
        _check_can_change(self.window, f"emit={emit!r}")

    def _check_names(self, made: Sequence[str]) -> None:
        times = (self.of.event_time,) if isinstance(self.window, Sliding) else (START, END)
        twice = [name for name, count in Counter([*times, *made]).items() if count > 1]
        if twice:
            raise Misuse(
                f"two columns of a window's result would be named {twice[0]!r} (there are window_start, "
                "window_end, the columns of `by`, and the aggregates): give an aggregate another name with "
                ".alias(…)."
            )


def window_rows(rows: Rows, window: Window, by: str | Sequence[str] = ()) -> Windowed:
    """The rows by window of event time, and by the columns `by`."""
    keys = (by,) if isinstance(by, str) else tuple(by or ())
    if not isinstance(window, Window):
        raise Misuse(
            f'window({window!r}): write tumbling("1 minute"), hopping("5 minutes", every="1 minute"), '
            'sliding("5 minutes") or session("5 minutes").'
        )
    check_final(rows, "a window")
    timed_rows = replace(rows, frame=timed_frame(rows, "a window"))
    for problem in _problems(timed_rows, keys):
        raise Misuse(problem)
    return Windowed(of=timed_rows, window=window, by=keys)


def aggregated(frame: DataFrame, by: Sequence[str], columns: Sequence[Column]) -> DataFrame:
    """The aggregates by key, without windows: all that can fail in a row is evaluated."""
    return frame.groupBy(*map(quoted, by)).agg(*columns)


def _problems(rows: Rows, keys: tuple[str, ...]) -> list[str]:
    """What prevents windows of these rows."""
    columns = ", ".join(rows.frame.columns)
    problems = [
        f"by={name!r}: there is no such column. The columns are {columns}."
        for name in keys
        if name not in rows.frame.columns
    ]
    problems += [
        f"by={name!r}: a column of the result has this name. Rename yours first, with .transform(…)."
        for name in keys
        if name in (START, END)
    ]
    if rows.event_time in keys:
        problems.append(f"by={rows.event_time!r} is the time of the event: the window stands for it.")
    return problems


def _check_can_change(window: Window, wanted: str) -> None:
    """Refuse windows whose results cannot be given more than once."""
    if isinstance(window, Session):
        raise Misuse(
            f"{wanted} is not for sessions: one that grows changes its start or end, and nothing would take "
            'back the row before. Take emit="on_window_close".'
        )
    if isinstance(window, Sliding):
        raise Misuse(
            f'{wanted} is not for sliding(size): each event has its own result. Take emit="on_window_close".'
        )


def aggregate_windows(
    rows: Rows,
    window: Hopping | Session,
    by: tuple[str, ...],
    columns: Sequence[Column],
    *,
    emit: Emit,
    can_be_late: bool,
) -> Rows:
    """The aggregates of each window and key, with the columns window_start, window_end, keys, aggregates.

    The event time of a result is the end of its window.
    """
    plan = current_plan("a window")
    try:
        aggregates = read_aggregates(rows.frame, by, columns)
    except UnsupportedAggregate as reason:
        raise Misuse(
            f"a window cannot compute {reason}. It computes {SUPPORTED}. Spark itself may: "
            ".df.groupBy(F.window(…)).agg(…)."
        ) from None
    on_update = emit == "on_window_update"
    lateness_ms = 0 if on_update else plan.allowed_lateness_ms
    events = _events(rows, window, by, aggregates)
    node = plan.add(
        WindowAggregation,
        _result_schema(rows, by, aggregates, columns),
        inputs=(events,),
        behind_ms=rows.behind_ms + plan.allowed_lateness_ms,
        of=rows,
        window=window,
        by=by,
        aggregates=aggregates,
        checked=evaluated(rows.frame, by, columns, aggregates),
        settings={"on_update": on_update, "allowed_lateness_us": 1000 * lateness_ms},
        source=_source_of(plan, rows),
        can_be_late=can_be_late,
    )
    mode: Literal["update", "append"] = "update" if on_update or lateness_ms else "append"
    is_whole = isinstance(window, Hopping) and mode == "append"
    return replace(
        rows,
        frame=node.rows,
        event_time=END,
        mode=mode,
        windowed=node.rows if is_whole else None,
        behind_ms=node.behind_ms,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WindowAggregation(KeyedOperator):
    """Aggregates by window and key."""

    kind: ClassVar[str] = "window"
    of: Rows
    """The rows that the windows are of."""
    window: Hopping | Session
    by: tuple[str, ...]
    aggregates: Aggregates
    checked: tuple[DataFrame, ...]
    settings: Mapping[str, Any]
    source: Source | None
    """The source whose rows these are as they are, if its tasks can compute the partial aggregates."""
    can_be_late: bool
    """Whether rows can be late for it: what an operator that keeps state gives never is."""

    def plan(self, planner: Planner) -> PlannedRows:
        """The results, from partial aggregates that the source computes if it can."""
        pushdown = self.pushdown(planner)
        if pushdown is not None and self.source is not None:
            fields = [*self._partial_fields(), *(StructField(name, LongType()) for name in COUNTS)]
            types = StructType([StructField(f"column{n}", field.dataType) for n, field in enumerate(fields)])
            return self._results(self._windows(planner, self._sums(planner, pushdown, types)))
        first = assigner_of(self.window).partial_aggregation(TIME, self.by, self.aggregates.specs)
        frame, schema = planner.frame(self.inputs[0]), StructType(self._partial_fields())
        return self._results(self._windows(planner, frame, first=first, first_schema=schema))

    def pushdown(self, planner: Planner) -> AggregatePushdown | None:
        """What the tasks of the source compute; None where the source is read as rows."""
        sources, assigner = self.aggregates.sources, assigner_of(self.window)
        if self.source is None or sources is None or WINDOW_START in assigner.places:
            return None
        if not planner.is_read_once(self.source) or any(
            node.stream.idle_timeout is not None for node in planner.nodes if isinstance(node, Source)
        ):
            return None
        return AggregatePushdown(
            time=self.of.event_time or "",
            keys=self.by,
            values=sources,
            specs=self.aggregates.specs,
            assigner=asdict(assigner),
            behind_us=1000 * planner.behind_ms(self, self.behind_ms),
            columns=(*(field.name for field in self._partial_fields()), *COUNTS),
        )

    def reads_aggregates_of(self, planner: Planner, source: LogicalNode) -> bool:
        """Whether it is the source of these windows, and computes their partial aggregates."""
        return source is self.source and self.pushdown(planner) is not None

    def evaluated(self) -> Sequence[DataFrame]:
        """All that can fail in a row; which window it is in does not matter."""
        return self.checked

    def details(self) -> Mapping[str, str]:
        """The windows and what is computed of them."""
        names = [field.name for field in self.aggregates.computed[len(self.by) :]]
        return {
            "computes": ", ".join(names),
            "state": f"partial aggregates of {window_in_words(self.window, self.by)}",
        }

    def _sums(self, planner: Planner, pushdown: AggregatePushdown, types: StructType) -> DataFrame:
        assert self.source is not None
        return self.source.partial_aggregates(planner, pushdown, types).drop(TIME)

    def _windows(self, planner: Planner, frame: DataFrame, **first: Any) -> ArrowStep:
        """The results of the kernel over partial aggregates, or over rows that are aggregated `first`."""
        schema = StructType().add(START, "timestamp").add(END, "timestamp")
        schema = StructType([*schema.fields, *self.aggregates.computed])
        settings = WindowKernelSettings(
            keys=self.by, specs=self.aggregates.specs, output=arrow_schema(schema), **self.settings
        )
        keys = [self.inputs[0].schema[key].simpleString() for key in self.by]
        partials = self._partial_fields()[len(keys) :]
        return self.staged(
            planner,
            frame,
            spread=self.by,
            keys=self.by,
            kernel=assigner_of(self.window).kernel(settings),
            schema=schema,
            behind_ms=self.behind_ms,
            outline=window_in_words(self.window, keys),
            columns={partial.name: partial.dataType.simpleString() for partial in partials},
            **first,
        )

    def _results(self, step: ArrowStep) -> PlannedRows:
        if not self.aggregates.results:
            return PlannedRows.of(step)
        names = step.rows.columns[: 2 + len(self.by)]
        return PlannedRows(frame=step.rows.select(*map(quoted, names), *self.aggregates.results))

    def _partial_fields(self) -> list[StructField]:
        """Keys, places in time, partial aggregates."""
        events = self.inputs[0].schema
        schema = arrow_schema(events)
        types = dict(zip(schema.names, schema.types, strict=True))
        fields = [StructField(key, events[key].dataType) for key in self.by]
        fields += [StructField(place, LongType()) for place in assigner_of(self.window).places]
        for partial in partials_of(self.aggregates.specs):
            fields.append(StructField(partial.name, from_arrow_type(partial.type(types))))
        return fields


def assigner_of(window: Hopping | Session) -> WindowAssigner:
    """The assigner of a window, which kernels work by."""
    if isinstance(window, Session):
        return SessionAssigner(gap_us=1000 * window.gap_ms)
    if window.zone is not None:
        return ZonedAssigner(zone=window.zone)
    size_us, every_us, offset_us = (1000 * ms for ms in (window.size_ms, window.every_ms, window.offset_ms))
    return HoppingAssigner(size_us=size_us, every_us=every_us, offset_us=offset_us)


def _source_of(plan: LogicalPlan, rows: Rows) -> Source | None:
    """The stream that these rows are as they are, if its tasks can compute aggregates of them."""
    for node in plan.nodes:
        if isinstance(node, Source) and node.rows is rows.frame:
            stream = node.stream
            return node if stream.schema is not None and not (stream.clock or stream.metadata) else None
    return None


def _events(rows: Rows, window: Window, by: tuple[str, ...], aggregates: Aggregates) -> DataFrame:
    """Time or boundaries, keys and values of the rows."""
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

    keys = [F.col(quoted(name)) for name in by]
    values = [column.alias(name) for name, column in aggregates.values.items()]
    if isinstance(window, Hopping) and window.zone is not None:
        frame = in_zone(rows, window)
        ends = [F.unix_micros(name).alias(name) for name in (WINDOW_START, WINDOW_END)]
        _, time = timed(replace(rows, frame=frame))
        return frame.select(time.alias(TIME), *ends, *keys, *values)
    frame, time = timed(rows)
    return frame.select(time.alias(TIME), *keys, *values)


def _result_schema(
    rows: Rows, by: tuple[str, ...], aggregates: Aggregates, columns: Sequence[Column]
) -> StructType:
    from pyspark.sql.types import TimestampType

    start = StructField(START, TimestampType())
    end = StructField(END, TimestampType(), metadata=end_metadata(rows))
    if not aggregates.results:
        return StructType([start, end, *aggregates.computed])
    return StructType([start, end, *aggregated(rows.frame, by, columns).schema.fields])
