"""A stream joined with a table: each row with the row of the table that counted when it happened.

The table's copy holds the versions of every row, each with the time since when it counts. A row of the stream
finds the newest version that is not newer than itself, so that the answer does not depend on when the row
comes. What does depend on it is whether the version is there already: `delay` holds rows back for the table.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote, urlparse

from headrace.durations import milliseconds_of
from headrace.errors import Misuse
from headrace.streams.columns import key_pairs, listed, names_beside, quoted
from headrace.streams.event_time import keep_event_time, marked_time
from headrace.streams.query_builder import current_builder
from headrace.streams.waiting import hold_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from headrace.durations import Duration
    from headrace.streams.query_builder import QueryBuilder
    from headrace.streams.rows import On, Rows
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
    is that long after it, so that versions that come later than their events are seen; rows that have waited
    are behind the watermark, so a window over them belongs into another job.

    A key that is null belongs to no row, and neither does one that the type of the table's key cannot hold.
    """
    _check_choices(rows, as_of, how)
    builder = current_builder(f"the table of {table.topic!r}")
    columns = _types(table)
    pairs = key_pairs(on, rows.frame.columns, columns.names)
    _check_key(table, pairs.values())
    from headrace.spark.table_stage import TableStage

    _follow(builder, table, columns)
    time = rows.event_time
    if delay is not None:
        timed = rows
        rows = builder.stateful(lambda: hold_rows(timed, tuple(pairs), delay), lambda: [timed.frame])
    stage = TableStage(
        topic=table.topic,
        keys=tuple(f"{KEY}{index}" for index in range(len(table.key))),
        time=time if as_of == "event" else None,
        is_inner=how == "inner",
    )
    keyed = _with_keys(rows.frame, table, columns, {other: one for one, other in pairs.items()})
    step = stage.step(keyed, _result_type(rows.frame.schema, table, columns))
    joined = _timed(step.rows, rows)
    return replace(rows, frame=joined, step=step.giving(joined), topic=None)


def _check_choices(rows: Rows, as_of: str, how: str) -> None:
    if as_of not in ("event", "latest"):
        raise Misuse(
            f'as_of={as_of!r}: a row joins the version that counted at its time ("event"), or the newest one '
            '("latest").'
        )
    if how not in ("left", "inner"):
        raise Misuse(f"how={how!r}: a stream joins a table as left or inner.")
    if as_of == "event" and rows.untimed_by is not None:
        raise Misuse(
            f'a join with as_of="event" cannot follow {rows.untimed_by}, which takes the event time from its '
            'rows: join this table first, write as_of="latest", or join it in a job of its own.'
        )
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


def _follow(builder: QueryBuilder, table: Table, columns: StructType) -> None:
    """Have the job keep a copy of the table: one, however often it is joined."""
    from headrace.spark.table_stage import TableFeed

    definition = _definition(table, columns)

    def begin() -> Table:
        folder = _folder(builder.state, table.topic)
        feed = TableFeed(builder.spark.sparkContext, folder, definition)
        builder.plan.follow(table.topic)
        builder.plan.before(feed.update)
        builder.plan.count_tables(feed.records)
        builder.plan.tables[table.topic] = feed.unread
        return table

    if builder.plan.once(f"table {table.topic}", begin) != table:
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


def _result_type(rows: StructType, table: Table, columns: StructType) -> StructType:
    from pyspark.sql.types import StructField, StructType

    beside = [field for field in columns if field.name not in table.key]
    names = names_beside([field.name for field in beside], rows.names, table.topic)
    added = [StructField(names[field.name], field.dataType) for field in beside]
    return StructType([*rows.fields, *added])


def _timed(joined: DataFrame, rows: Rows) -> DataFrame:
    """The joined rows with the mark of the event time, which a step in Python may have lost."""
    if rows.event_time is None or rows.watermark_delay is None or marked_time(joined) == rows.event_time:
        return joined
    return keep_event_time(joined, rows)
