"""The source of a job's rows: a topic that is read by Spark, parsed, timed, and watched by its watermark.

```text
 records ──▶ count dead records ──▶ rows ──▶ corrected time ──▶ watermark ──▶ barrier ──▶ rows of the stream
 records ──▶ partial aggregates (tasks of the source) ──▶ watermark ──▶ barrier ──▶ window
```

The second way is taken where one window is all that reads the rows: see `headrace.engine.planner`.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, replace
from tempfile import gettempdir
from typing import TYPE_CHECKING, ClassVar, Final

from headrace.durations import interval_of, milliseconds_of
from headrace.engine.columns import quoted
from headrace.engine.logical import LogicalNode, current_plan
from headrace.engine.planner import PlannedRows
from headrace.errors import Misuse
from headrace.spark.aggregate_pushdown import (
    DEAD_RECORDS,
    NEWEST,
    OPTION,
    RECORDS,
    TIME,
    UNTIMED_RECORDS,
)
from headrace.spark.alignment import HORIZON
from headrace.spark.event_time import TimeHints, note_seen
from headrace.spark.internals import NOWHERE, observed_metric, placeholder
from headrace.streams.declarations import read_schema
from headrace.streams.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType

    from headrace.engine.planner import Planner
    from headrace.spark.aggregate_pushdown import AggregatePushdown
    from headrace.spark.checkpoint import Offsets
    from headrace.spark.transactional_batch import Batch
    from headrace.streams.stream import Stream

DEAD: Final = "headrace.dead."
"""The observed metrics of a topic: how many rows there were, how many of them are dead letters, and how many
have no event time."""
NEWEST_TIME: Final = "headrace.newest."
"""The observed metric of a topic: the newest event time of a batch, in milliseconds since 1970."""
HEARTBEAT: Final = "heartbeat"
"""The source's column of rows that carry a time and nothing else."""
CLOCK: Final = "clock"
"""The column that says how a corrected time was computed."""
TIMESTAMP: Final = "timestamp"
"""The source's column of the times of records."""
EARLIEST: Final = -2
"""What Spark's Kafka source writes for the first record of a partition."""
SKEW: Final = (
    "the stream of %r: event times (%s) are %s the times of their records by more than watermark_delay=%r. "
    "While a backlog is read, in step with the times of records, events may be late: give the stream a "
    "longer watermark_delay, or a max_records that takes the backlog in one piece."
)
_BARRIER: Final = "_headrace_barrier"

log = logging.getLogger("headrace.streams")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Source(LogicalNode):
    """A stream that a job reads."""

    kind: ClassVar[str] = "source"
    stream: Stream

    def plan(self, planner: Planner) -> PlannedRows:
        """The rows of the stream."""
        is_watched = self.stream.event_time is not None and has_idle_streams(planner)
        if is_watched:
            note = NewestTimes(planner.spark, self.stream.topic, hints_of(planner)).note
            planner.hooks.add_rows(note)
        self._monitor_skew(planner)
        records = self._reader(planner).load()
        return PlannedRows(frame=typed_rows(self._delayed(planner), records, watched=is_watched))

    def partial_aggregates(
        self, planner: Planner, pushdown: AggregatePushdown, schema: StructType
    ) -> DataFrame:
        """The stream as partial aggregates, with its event time marked: the columns of `pushdown`."""
        self._monitor_skew(planner)
        reader = self._reader(planner).option("valueSchema", self.rows.schema.json())
        records = reader.schema(schema).option(OPTION, pushdown.to_option()).load()
        return timed_sums(self._delayed(planner), records.toDF(*pushdown.columns))

    def replayed(self, planner: Planner, start: Offsets, end: Offsets) -> DataFrame:
        """The rows of one batch, as a plain DataFrame."""
        stream = self.stream
        reader = (
            planner.spark.read.format("headrace")
            .option("kafka.bootstrap.servers", planner.bootstrap)
            .option("columns", ",".join(columns_of(stream)))
            .options(**range_options(stream.topic, start, end))
        )
        return typed_rows(stream, reader.options(**value_options(stream)).load())

    def details(self) -> Mapping[str, str]:
        """The topic and its event time."""
        time = self.stream.event_time
        delay = (
            {} if time is None else {"event time": f"{time}, watermark delay {self.stream.watermark_delay}"}
        )
        return {"topic": self.stream.topic, **delay}

    @property
    def topics(self) -> tuple[str, ...]:
        """The topic of the stream."""
        return (self.stream.topic,)

    def _delayed(self, planner: Planner) -> Stream:
        """The stream with the watermark delay of the job, which may have to wait for joins."""
        if self.stream.watermark_delay is None or not planner.held_back_ms:
            return self.stream
        delay_ms = milliseconds_of(self.stream.watermark_delay, "watermark_delay") + planner.held_back_ms
        return replace(self.stream, watermark_delay=f"{delay_ms} ms")

    def _monitor_skew(self, planner: Planner) -> None:
        if self.stream.event_time is not None:
            monitor = EventTimeSkewMonitor(
                self.stream,
                hints_of(planner),
                is_alone=len(sources_of(planner)) == 1,
                held_back_ms=planner.held_back_ms,
            )
            planner.hooks.before(monitor.check)

    def _reader(self, planner: Planner) -> DataStreamReader:
        stream = self.stream
        heartbeat = [] if stream.idles_after_ms is None else [HEARTBEAT]
        reader = (
            planner.spark.readStream.format("headrace")
            .option("kafka.bootstrap.servers", planner.bootstrap)
            .option("subscribe", stream.topic)
            .option("startingOffsets", _start(stream, planner.starts))
            .option("maxOffsetsPerTrigger", str(stream.max_records))
            .option("columns", ",".join([*columns_of(stream), *heartbeat]))
            .options(**value_options(stream))
            .options(**_time_options(stream, hints_of(planner)))
        )
        # One source journals the positions of tables: it is the first.
        followed, is_first = planner.hooks.followed, sources_of(planner)[0] is self
        return reader.option("follow", ",".join(followed)) if followed and is_first else reader


def source_rows(stream: Stream) -> Rows:
    """The rows of a stream in the plan of a job, which reads each stream once."""
    return Rows(
        frame=_source(stream).rows,
        event_time=stream.event_time,
        watermark_delay=stream.watermark_delay,
        topic=stream.topic,
    )


def _source(stream: Stream) -> Source:
    plan = current_plan(f"the rows of {stream.topic!r}")
    for node in plan.nodes:
        if not isinstance(node, Source) or node.stream.topic != stream.topic:
            continue
        if node.stream == stream:
            return node
        # Dead letters are written once for each topic: two schemas would disagree on what is dead.
        raise Misuse(
            f"a job reads the topic {stream.topic!r} through two streams that differ: declare one "
            "`app.stream` with all the fields, and use it twice."
        )
    schema = typed_rows(stream, _no_records(plan.spark, stream)).schema
    return plan.add(Source, schema, stream=stream)


def sources_of(planner: Planner) -> list[Source]:
    """The streams of a job, in the order of its function."""
    return [node for node in planner.nodes if isinstance(node, Source)]


def has_idle_streams(planner: Planner) -> bool:
    """Whether time goes on in a stream of the job when it has nothing."""
    return any(source.stream.idles_after_ms is not None for source in sources_of(planner))


def hints_of(planner: Planner) -> str:
    """The folder by which the sources of a job exchange how far they are."""
    is_local = is_local_folder(planner.state)
    return f"{planner.state}/time" if is_local else f"{gettempdir()}/headrace/{planner.plan.job}/time"


def is_local_folder(place: str) -> bool:
    """Whether a folder is one of this machine.

    >>> [is_local_folder(place) for place in ("/var/state", "file:/var/state", "hdfs://name/state")]
    [True, False, False]
    """
    return ":" not in place.partition("/")[0]


def _no_records(spark: SparkSession, stream: Stream) -> DataFrame:
    """The records of a stream, without a single one: their columns are those of the source."""
    from headrace.spark.source import SourceSettings

    options = {"kafka.bootstrap.servers": "none:1", "subscribe": stream.topic, **value_options(stream)}
    options["columns"] = ",".join(columns_of(stream))
    columns = SourceSettings.of(options, parallelism=1).layout.schema()
    schema = read_schema(columns, "the records") if isinstance(columns, str) else columns
    # As a stream: of a plain DataFrame Spark drops the watermark.
    return placeholder(spark, NOWHERE, schema)


def _start(stream: Stream, starts: Mapping[str, Mapping[str, int]]) -> str:
    return json.dumps({stream.topic: starts[stream.topic]}) if stream.topic in starts else stream.start


def _time_options(stream: Stream, hints: str) -> dict[str, str]:
    if stream.event_time is None:
        return {}
    options = {"ticks": "true", "alignByTime": "true", "hints": hints}
    if stream.idles_after_ms is not None:
        options["idleTimeout"] = f"{stream.idles_after_ms}ms"
    return options


def columns_of(stream: Stream) -> list[str]:
    """The columns that the source has to give: others are not parsed."""
    asked = [*stream.asked]
    if stream.clock is not None:
        asked.append("timestamp")
    return list(dict.fromkeys(["value", *asked, "error"]))


def value_options(stream: Stream) -> dict[str, str]:
    """The options of the source by which a stream's values are parsed."""
    options: dict[str, str] = {} if stream.format == "raw" else {"valueFormat": stream.format}
    if stream.schema is not None:
        options["valueSchema"] = stream.schema
    options |= _plausible_times(stream)
    if "headers" in stream.metadata:
        options["includeHeaders"] = "true"
    if stream.headers:
        options["headerColumns"] = ", ".join(f"`{name}`" for name in stream.headers)
    return options


def range_options(topic: str, start: Offsets, end: Offsets) -> dict[str, str]:
    """The options by which the source reads what lies between the start and the end of a batch in a topic."""
    ends = end.get(topic, {})
    # A partition that is new in this batch has no start: it is read from its first record.
    begun = {number: start.get(topic, {}).get(number, EARLIEST) for number in ends}
    return {
        # Not subscribe: a partition that came after the batch has neither a start nor an end here.
        "assign": json.dumps({topic: sorted(map(int, ends))}),
        "startingOffsets": json.dumps({topic: begun}),
        "endingOffsets": json.dumps({topic: ends}),
    }


def _plausible_times(stream: Stream) -> dict[str, str]:
    """The options by which numbers become times, and times that cannot be true become errors."""
    options: dict[str, str] = {} if stream.time_unit == "auto" else {"timeUnit": stream.time_unit}
    if stream.guarded_field is None:
        return options
    ahead = "unlimited" if stream.max_ahead is None else f"{milliseconds_of(stream.max_ahead)}ms"
    return options | {"eventTime": stream.guarded_field, "maxAhead": ahead}


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
        newest = F.max(F.unix_millis(quoted(stream.event_time))).alias("newest")
        rows = rows.observe(NEWEST_TIME + stream.topic, newest)
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


class NewestTimes:
    """Tells the sources of a job how far one of its streams has come, for heartbeats of idle ones."""

    def __init__(self, spark: SparkSession, topic: str, folder: str) -> None:
        self._spark = spark
        self._topic = topic
        self._hints = TimeHints(folder)

    def note(self, batch: Batch) -> None:  # noqa: ARG002  every batch is looked at
        """Write down the newest time of a batch that was computed just now; it adds no rows to it."""
        newest_ms = observed_metric(self._spark, NEWEST_TIME + self._topic)
        if newest_ms is not None:
            note_seen(self._hints, self._topic, newest_ms, now_s=time.time())


class EventTimeSkewMonitor:
    """Compares the event times of a stream with the times of its records, until they differ by too much.

    A backlog is read in step with the times of records. Where event times are far from those, the watermark
    runs ahead of partitions that are behind, and their events are late: the log says so, once.
    """

    def __init__(self, stream: Stream, folder: str, *, is_alone: bool, held_back_ms: int = 0) -> None:
        self._stream = stream
        self._hints = TimeHints(folder)
        self._is_alone = is_alone
        self._watermark_delay_ms = milliseconds_of(stream.watermark_delay or "0 ms")
        self._held_back_ms = held_back_ms  # what the job waits for beyond that
        self._ends_ms: tuple[int | None, int | None] = (None, None)
        self._has_warned = False

    def check(self, batch: Batch) -> None:
        """Compare the watermark, which the batch before has set, with the time at which that batch ended."""
        if self._has_warned:
            return
        document = self._hints.read(f"{HORIZON}.{self._stream.topic}") or {}
        before_ms, end_ms = self._ends_ms
        self._ends_ms = (end_ms, document.get("time_ms"))
        if end_ms is None:
            return
        skew = self._skew(batch.watermark_ms, before_ms, end_ms)
        if skew is not None:
            self._has_warned = True
            log.warning(SKEW, self._stream.topic, self._stream.event_time, skew, self._stream.watermark_delay)

    def _skew(self, watermark_ms: int, before_ms: int | None, end_ms: int) -> str | None:
        # The watermark is that of the slowest stream, so no stream's newest event is older than this.
        newest_ms = watermark_ms + self._watermark_delay_ms + self._held_back_ms
        if newest_ms > end_ms + self._watermark_delay_ms:
            return "ahead of"
        if self._is_alone and before_ms is not None and 0 < newest_ms < before_ms - self._watermark_delay_ms:
            return "behind"
        return None
