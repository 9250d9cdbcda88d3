"""A stream joined with a table: each row with the row of the table that counted when it happened.

The table's copy holds the versions of every row, each with the time since when it counts. A row of the stream
finds the newest version that is not newer than itself, so that the answer does not depend on when the row
comes. What does depend on it is whether the version is there already: `delay` holds rows back for the table.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final, Literal
from urllib.parse import quote, urlparse

from headrace.durations import milliseconds_of
from headrace.engine.columns import key_pairs, listed, names_beside, quoted
from headrace.engine.keyed_operator import KeyedOperator
from headrace.engine.logical import LogicalNode, current_plan
from headrace.engine.planner import PlannedRows
from headrace.errors import Misuse
from headrace.streams.event_time import keep_event_time, marked_time, timed_frame
from headrace.streams.window_assignment import is_window_end

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

    from headrace.durations import Duration
    from headrace.engine.columns import On
    from headrace.engine.logical import LogicalPlan
    from headrace.engine.planner import Planner
    from headrace.streams.rows import Rows
    from headrace.streams.table import Table
    from headrace.tables.definition import Definition

AsOf = Literal["event", "latest"]
How = Literal["left", "inner"]

KEY: Final = "_headrace_key_"
"""With a number: the columns that carry the table's key into the stage."""


def join_table(
    rows: Rows,
    table: Table,
    on: On,
    *,
    as_of: AsOf = "event",
    how: How = "left",
    delay: Duration | None = None,
) -> Rows:
    """Each row with the row of the table that has its key.

    `as_of="event"` takes the version that counted at the row's event time, `"latest"` the newest one there
    is. The columns are those of the row and then those of the table without its key; where the table has a
    name that is taken, it gets the name of its topic before it: `users_name`. Without a row in the table
    these are null, or with `how="inner"` there is no row. `delay="5 minutes"` joins a row when the watermark
    is that long after it, so that versions that come later than their events are seen. Rows that have waited
    are behind the watermark by as much; operators that follow wait for them.

    A key that is null belongs to no row, and neither does one that the type of the table's key cannot hold.
    """
    _check_choices(rows, as_of, how)
    plan = current_plan(f"the table of {table.topic!r}")
    columns = _types(table)
    pairs = key_pairs(on, rows.frame.columns, columns.names)
    _check_key(table, pairs.values())
    _check_one_definition(plan, table)
    time = rows.event_time
    if delay is not None:
        rows = delay_rows(rows, tuple(pairs), delay)
    plan.hooks.follow(table.topic)
    keyed = _with_keys(rows.frame, table, columns, {other: one for one, other in pairs.items()})
    changes = plan.is_changelog(rows.frame)
    node = plan.add(
        TableJoin,
        _result_type(rows, table, columns),
        inputs=(keyed,),
        behind_ms=rows.behind_ms,
        is_changelog=changes,
        key=plan.key_of(rows.frame) if changes and how == "left" else (),
        table=table,
        columns=columns,
        time=time if as_of == "event" else None,
        is_inner=how == "inner",
    )
    return replace(rows, frame=node.rows, topic=None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TableJoin(LogicalNode):
    """Rows with the rows of a table, of which the job keeps a copy."""

    kind: ClassVar[str] = "table-join"
    takes_changelogs: ClassVar[bool] = True
    table: Table
    columns: StructType
    time: str | None
    """The column with the time at which a version has to count; None for the newest."""
    is_inner: bool

    def plan(self, planner: Planner) -> PlannedRows:
        """The rows, looked up in the copy."""
        from headrace.spark.table_stage import TableStage

        if planner.weighs(self):
            raise Misuse(
                f"the join with the table of {self.table.topic!r} follows results that change, and may find "
                "another row of the table when a result is retracted: join the table before the window, or "
                "write the results into a view, and join it in another job."
            )
        planner.once(f"table {self.table.topic}", lambda: self._follow(planner))
        stage = TableStage(
            topic=self.table.topic,
            keys=tuple(f"{KEY}{index}" for index in range(len(self.table.key))),
            time=self.time,
            is_inner=self.is_inner,
            before_us=int(self.time is not None and is_window_end(self.inputs[0], self.time)),
        )
        return PlannedRows.of(stage.step(planner.frame(self.inputs[0]), self.rows.schema))

    def details(self) -> Mapping[str, str]:
        """The table, its key, and which version counts."""
        version = "newest version" if self.time is None else f"version as of {self.time}"
        how = "inner" if self.is_inner else "left"
        kept = f"copy of {self.table.topic} by {', '.join(self.table.key)}"
        return {"joins": f"{how}, {version}", "state": kept}

    @property
    def topics(self) -> tuple[str, ...]:
        """The topic of the table."""
        return (self.table.topic,)

    def _follow(self, planner: Planner) -> None:
        """Keep a copy of the table: one, however often it is joined."""
        from headrace.spark.table_stage import TableFeed

        folder, definition = _folder(planner.state, self.table.topic), _definition(self.table, self.columns)
        feed = TableFeed(planner.spark.sparkContext, folder, definition)
        planner.hooks.before(feed.update)
        planner.hooks.count_tables(feed.records)
        planner.hooks.tables[self.table.topic] = feed.unread


def delay_rows(rows: Rows, keys: tuple[str, ...], delay: Duration) -> Rows:
    """The same rows, each when the watermark has passed its time by `delay`: so far they are behind it."""
    frame = timed_frame(rows, "a join that waits for its table")
    delay_ms = milliseconds_of(delay, "delay")
    assert rows.event_time is not None, "a frame with a time has a column for it"
    node = current_plan("delay=").add(
        DelayedRows,
        frame.schema,
        inputs=(frame,),
        behind_ms=rows.behind_ms + delay_ms,
        of_behind_ms=rows.behind_ms,
        keys=keys,
        time=rows.event_time,
        delay_ms=delay_ms,
    )
    return replace(rows, frame=node.rows, windowed=None, behind_ms=node.behind_ms)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DelayedRows(KeyedOperator):
    """Rows that are held back until a table can be expected to know what happened by then."""

    kind: ClassVar[str] = "delay"
    keys: tuple[str, ...]
    time: str
    delay_ms: int
    of_behind_ms: int
    """How far rows may be behind the watermark before they wait."""

    def plan(self, planner: Planner) -> PlannedRows:
        """The rows when their time has come."""
        from headrace.tables.waiting import HoldRows

        (frame,) = self.inputs
        step = self.staged(
            planner,
            planner.frame(frame),
            spread=self.keys,
            keys=self.keys,
            kernel=HoldRows(time=self.time, wait_us=self.delay_ms * 1000),
            schema=frame.schema,
            behind_ms=self.of_behind_ms,
            outline=f"rows that wait for a table: {frame.schema.simpleString()} by {', '.join(self.keys)}",
        )
        return PlannedRows.of(step)

    def details(self) -> Mapping[str, str]:
        """How long rows wait."""
        return {"state": f"rows of the last {self.delay_ms} ms by {', '.join(self.keys)}"}


def _check_choices(rows: Rows, as_of: str, how: str) -> None:
    if as_of not in ("event", "latest"):
        raise Misuse(
            f'as_of={as_of!r}: a row joins the version that counted at its time ("event"), or the newest one '
            '("latest").'
        )
    if how not in ("left", "inner"):
        raise Misuse(f"how={how!r}: a stream joins a table as left or inner.")
    if as_of == "event" and rows.event_time is None:
        raise Misuse(
            "the join needs to know when its events happened: declare the stream with event_time= and "
            'watermark_delay=, or write as_of="latest" to join what the table holds now.'
        )


def _check_key(table: Table, compared: Iterable[str]) -> None:
    if sorted(compared) != sorted(table.key):
        raise Misuse(
            f"the join compares {listed(compared)} of the table of {table.topic!r}, but its rows are found "
            f"by their whole key, which is {listed(table.key)}: name these in on=."
        )


def _types(table: Table) -> StructType:
    from pyspark.errors import PySparkException

    try:
        return table.struct()
    except PySparkException as error:
        from headrace.streams.explanation import root_cause

        reason = root_cause(error).message
        raise Misuse(f"the table of {table.topic!r}: its schema is not one: {reason}") from None


def _definition(table: Table, columns: StructType) -> Definition:
    from pyspark.sql.pandas.types import to_arrow_type

    from headrace.tables.definition import Definition

    return Definition(
        topic=table.topic,
        row_type=to_arrow_type(columns, timezone="UTC"),
        key=table.key,
        valid_from=table.valid_from,
        keep_us=milliseconds_of(table.history_retention, "history_retention") * 1000,
        time_unit=table.time_unit,
    )


def _check_one_definition(plan: LogicalPlan, table: Table) -> None:
    if plan.once(f"table {table.topic}", lambda: table) != table:
        raise Misuse(
            f"a job joins the table of {table.topic!r} by two definitions that differ: declare one "
            "`app.table` with all the fields, and use it twice."
        )


def _folder(state: str, topic: str) -> Path:
    place = urlparse(state)
    if place.scheme not in ("", "file"):
        raise Misuse(
            f"the job joins a table, and its checkpoint is at {state!r}: the copies of tables are files that "
            "all tasks map into memory. Use a folder that every machine reaches by the same path."
        )
    return Path(place.path) / "tables" / quote(topic, safe="")


def _with_keys(frame: DataFrame, table: Table, columns: StructType, names: dict[str, str]) -> DataFrame:
    keys = [
        _fitted(frame, names[key], columns[key].dataType).alias(f"{KEY}{index}")
        for index, key in enumerate(table.key)
    ]
    return frame.select("*", *keys)


def _fitted(frame: DataFrame, name: str, wanted: DataType) -> Column:
    """The column in the type of the table's key; null where that cannot hold its value."""
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

    given, column = frame.schema[name].dataType, F.col(quoted(name))
    if given == wanted:
        return column
    fitted = column.try_cast(wanted)
    if given.typeName() in ("string", "varchar", "char"):
        return fitted
    # A cast rounds: 1.5 is no key 1.
    return F.when(fitted.try_cast(given) == column, fitted)


def _result_type(rows: Rows, table: Table, columns: StructType) -> StructType:
    """The columns of the rows, with the marks of their times, and those of the table."""
    from pyspark.sql.types import StructField, StructType

    beside = [field for field in columns if field.name not in table.key]
    names = names_beside([field.name for field in beside], rows.frame.columns, table.topic)
    added = [StructField(names[field.name], field.dataType) for field in beside]
    return StructType([*_timed_fields(rows), *added])


def _timed_fields(rows: Rows) -> list[StructField]:
    """The columns of rows, of which the event time is marked: a step may have computed it without a mark."""
    if rows.event_time is None or rows.watermark_delay is None or marked_time(rows.frame) is not None:
        return list(rows.frame.schema.fields)
    return list(keep_event_time(rows.frame, rows).schema.fields)
