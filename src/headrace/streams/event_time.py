"""The column that says when an event happened, as Spark knows it.

`withWatermark` watches a column's times, and marks the column by metadata. All that follows (windows, joins,
deduplication) finds the event time by that mark alone. A step that computes the column anew, or in Python,
loses the mark, and a join gives two of them, which Spark refuses; so here it is set and taken away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.durations import milliseconds_of
from headrace.engine.columns import quoted
from headrace.errors import Misuse

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headrace.streams.rows import Rows

MARK: Final = "spark.watermarkDelayMs"
"""Spark's name of the mark; its value is how long events are waited for."""
PLAIN: Final = {"headrace": "a time beside the event time"}
"""What stands where the mark was. Without it Spark would take the column for the one below, mark and all."""


def timed_frame(rows: Rows, what: str) -> DataFrame:
    """The rows with their event time marked; `what` names, in a complaint, who needs it."""
    if rows.event_time is None or rows.watermark_delay is None:
        raise Misuse(
            f"{what} needs to know when its events happened: declare the stream with event_time= and "
            "watermark_delay=, and keep that column."
        )
    if marked_time(rows.frame) == rows.event_time:
        return rows.frame
    return mark_event_time(
        rows.frame, rows.event_time, milliseconds_of(rows.watermark_delay, "watermark_delay")
    )


def mark_event_time(frame: DataFrame, column: str, delay_ms: int) -> DataFrame:
    """The same rows, in which this column is the event time and no other one is."""
    return mark_like(frame, column, {MARK: delay_ms})


def keep_event_time(frame: DataFrame, rows: Rows) -> DataFrame:
    """What a step made of rows, with the event time marked as it was."""
    assert rows.event_time is not None
    return mark_like(frame, rows.event_time, mark_of(rows))


def mark_of(rows: Rows) -> dict[str, Any]:
    """The mark of the event time of rows, which steps in Python lose.

    The mark of a window's end says that it is one, so that a larger window counts it as in the smaller one.
    """
    assert rows.event_time is not None
    mark: dict[str, Any] = rows.frame.schema[rows.event_time].metadata or {}
    if MARK in mark:
        return mark
    return {MARK: milliseconds_of(rows.watermark_delay or "0 ms", "watermark_delay")}


def mark_like(frame: DataFrame, column: str, mark: dict[str, Any]) -> DataFrame:
    """The same rows, in which this column has the mark of an event time, and no other one has any."""
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

    return frame.select(
        *(
            F.col(quoted(name)).alias(name, metadata=mark)
            if name == column
            else as_plain_time(frame, name, name)
            for name in frame.columns
        )
    )


def marked_time(frame: DataFrame) -> str | None:
    """The column that Spark takes for the event time; None where there is none, or more than one."""
    marked = [
        field.name
        for field in frame.schema
        if MARK in (field.metadata or {}) and field.dataType.typeName() == "timestamp"
    ]
    return marked[0] if len(marked) == 1 else None


def watermark_delay_of(frame: DataFrame, column: str) -> str:
    """How long Spark waits for events by the mark of their time, as a duration."""
    return f"{frame.schema[column].metadata[MARK]} ms"


def as_plain_time(frame: DataFrame, column: str, name: str) -> Column:
    """A column under a name; without the mark, if it had one."""
    from pyspark.sql import functions as F  # noqa: N812

    if MARK not in (frame.schema[column].metadata or {}):
        return F.col(quoted(column)).alias(name)
    return F.col(quoted(column)).alias(name, metadata=PLAIN)
