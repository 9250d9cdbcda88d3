"""From the records of a source to the rows of a stream: parsed, timed, and watched by Spark's watermark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.durations import interval_of
from headrace.errors import Misuse
from headrace.spark.aggregate_pushdown import DEAD_RECORDS, NEWEST, RECORDS, TIME, UNTIMED_RECORDS
from headrace.streams.columns import quoted
from headrace.streams.newest_times import observe_newest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from headrace.streams.stream import Stream

DEAD: Final = "headrace.dead."
"""The observed metrics of a topic: how many rows there were, how many of them are dead letters, and how many
have no event time."""
HEARTBEAT: Final = "heartbeat"
"""The source's column of rows that carry a time and nothing else."""
CLOCK: Final = "clock"
"""The column that says how a corrected time came about."""
TIMESTAMP: Final = "timestamp"
"""The source's column of the times of records."""
_BARRIER: Final = "_headrace_barrier"


def typed_rows(stream: Stream, records: DataFrame, *, watched: bool = False) -> DataFrame:
    """The rows of a stream; `records` may be a streaming DataFrame or a plain one.

    Where they are `watched`, Spark notes their newest time in each batch.
    """
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

    rows = _parsed(stream, records)
    if stream.event_time is None or stream.watermark_delay is None:
        return rows
    rows = _timed(stream, rows)
    _check_event_time(stream, rows)
    if watched:
        rows = observe_newest(rows, stream.topic, F.col(quoted(stream.event_time)))
    if HEARTBEAT in records.columns:
        at = F.coalesce(_hidden(HEARTBEAT), quoted(stream.event_time))
        rows = rows.withColumn(stream.event_time, at)
    return _behind_a_barrier(rows.withWatermark(stream.event_time, interval_of(stream.watermark_delay)))


def timed_sums(stream: Stream, records: DataFrame) -> DataFrame:
    """The sums of a stream, watched by Spark's watermark: by the newest time of each."""
    from pyspark.sql import functions as F  # noqa: N812

    assert stream.event_time is not None
    assert stream.watermark_delay is not None
    sums = {"rows": RECORDS, "dead": DEAD_RECORDS, "untimed": UNTIMED_RECORDS}
    counts = [F.coalesce(F.sum(quoted(of)), F.lit(0)).alias(name) for name, of in sums.items()]
    panes = records.observe(DEAD + stream.topic, *counts).filter(F.col(quoted(NEWEST)).isNotNull())
    at = F.timestamp_micros(quoted(NEWEST)).alias(TIME)
    kept = [quoted(name) for name in records.columns if name not in (NEWEST, *sums.values())]
    return _behind_a_barrier(panes.select(at, *kept).withWatermark(TIME, interval_of(stream.watermark_delay)))


def _parsed(stream: Stream, records: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F  # noqa: N812

    beats = HEARTBEAT in records.columns
    is_record = F.col(HEARTBEAT).isNull() if beats else F.lit(True)
    is_row = F.col("error").isNull() & is_record
    if stream.format != "raw":
        is_row &= F.col("value").isNotNull()
    counts = [
        (F.count(F.when(is_record, 1)) if beats else F.count(F.lit(1))).alias("rows"),
        F.count("error").alias("dead"),
        *_untimed(stream, _fields(records), is_row),
    ]
    records = records.observe(DEAD + stream.topic, *counts).filter(is_row | ~is_record)
    values = "value.*" if stream.schema is not None else "value"
    metadata = [F.col(quoted(name)).alias(f"_{name}") for name in stream.asked]
    hidden = [HEARTBEAT] if beats else []
    if stream.clock is not None:
        hidden.append(TIMESTAMP)
    return records.select(values, *metadata, *(F.col(name).alias(_hidden(name)) for name in hidden))


def _untimed(stream: Stream, fields: Sequence[str], is_row: Column) -> list[Column]:
    """How many rows have no event time; a corrected time is missing where it neither occurred nor arrived."""
    from pyspark.sql import functions as F  # noqa: N812

    field = stream.event_time if stream.clock is None else stream.clock.occurred
    if stream.time_column is not None:
        missing = F.col(quoted(stream.time_column)).isNull()
    elif field is None or field not in fields:
        return []  # a field that is not there is an error of its own
    else:
        missing = F.col(f"value.{quoted(field)}").isNull()
        if stream.clock is not None:
            missing &= F.col(TIMESTAMP).isNull()
    return [F.count(F.when(is_row & missing, 1)).alias("untimed")]


def _fields(records: DataFrame) -> list[str]:
    """The fields of the values; none where they have no parts."""
    names: list[str] = getattr(records.schema["value"].dataType, "names", [])
    return names


def _hidden(name: str) -> str:
    return f"_headrace_{name}"


def _timed(stream: Stream, rows: DataFrame) -> DataFrame:
    """The rows with the time that the stream's clock correction gives them, if it has one."""
    from pyspark.sql import functions as F  # noqa: N812

    if stream.clock is None:
        return rows
    for name in (CLOCK, stream.event_time):
        if name in rows.columns:
            raise Misuse(
                f"the stream of {stream.topic!r}: correct_clock() adds the columns {CLOCK!r} and "
                f"{stream.event_time!r}, and the values have a field {name!r}: leave it out of the schema."
            )
    received = F.col(_hidden(TIMESTAMP))
    if stream.clock.received is not None:
        received = F.coalesce(quoted(stream.clock.received), received)
    assert stream.event_time is not None
    corrected = rows.withColumn(CLOCK, stream.clock.column(received))
    return corrected.withColumn(stream.event_time, F.col(f"{CLOCK}.time"))


def _behind_a_barrier(rows: DataFrame) -> DataFrame:
    """The rows, with nothing that is asked of them later able to slip below the watermark.

    Spark pushes a filter that does not mention the event time below `withWatermark`; then rows that it leaves
    out no longer move the watermark, and a filter of the user's, or one that Spark infers from a join,
    changes what is late. It cannot push one below a column that is not deterministic.
    """
    from pyspark.sql import functions as F  # noqa: N812

    passes = F.col(_BARRIER) >= 0
    if _hidden(HEARTBEAT) in rows.columns:
        passes &= F.col(_hidden(HEARTBEAT)).isNull()
    kept = rows.withColumn(_BARRIER, F.rand()).filter(passes)
    return kept.drop(_BARRIER, *(_hidden(name) for name in (HEARTBEAT, TIMESTAMP)))


def _check_event_time(stream: Stream, rows: DataFrame) -> None:
    types = {
        field.name: field.dataType.simpleString()
        for field in rows.schema
        if not field.name.startswith(_hidden(""))
    }
    found = types.get(stream.event_time or "")
    if found == "timestamp":
        return
    reason = "there is no such column" if found is None else f"its type is {found}"
    listed = ", ".join(f"{name} {kind}" for name, kind in types.items())
    raise Misuse(
        f"the stream of {stream.topic!r}: event_time={stream.event_time!r} must name a column of type "
        f"timestamp, but {reason}. The columns are {listed}."
    )
