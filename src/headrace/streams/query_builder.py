"""The making of a job's query: what its streams are read from while its function runs."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from tempfile import gettempdir
from typing import TYPE_CHECKING

from headrace.durations import milliseconds_of
from headrace.errors import HeadraceError, Misuse
from headrace.spark.aggregate_pushdown import OPTION
from headrace.streams.batch_hooks import BatchHooks
from headrace.streams.event_time_skew import EventTimeSkewMonitor
from headrace.streams.join_strategy import JoinStrategy, join_strategy
from headrace.streams.newest_times import NewestTimes
from headrace.streams.rows import Rows
from headrace.streams.typed_rows import DEAD, HEARTBEAT, timed_sums, typed_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader
    from pyspark.sql.types import StructType

    from headrace.spark.aggregate_pushdown import AggregatePushdown
    from headrace.streams.stream import Stream

__all__ = ["DEAD", "QueryBuilder", "columns_of", "current_builder", "value_options"]

_current: ContextVar[QueryBuilder] = ContextVar("builder")


class RowsWanted(HeadraceError):
    """A job wants the rows of a stream that it was given as sums: its function has to be called again."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(f"the rows of {stream.topic!r} are wanted, and not only their sums")
        self.stream = stream


class QueryBuilder:
    """What one call of a job's function has read: each stream once, however often it asked for it.

    Sources are made before the operators that follow have said what they want of them. A job for which that
    matters (`wants_more`) is built a second time, with what the `first` building came to know.
    """

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        *,
        job: str = "",
        state: str = "",
        starts: Mapping[str, Mapping[str, int]] | None = None,
        first: QueryBuilder | None = None,
        by_rows: frozenset[Stream] = frozenset(),
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.job = job
        """The job's full name."""
        self.state = state
        """The folder of what operators keep: it belongs to the checkpoint."""
        self.plan = BatchHooks()
        self._starts = starts or {}
        self._follow = tuple(first.plan.followed) if first is not None else ()
        self.join_strategy: JoinStrategy = first.join_strategy if first is not None else JoinStrategy()
        """How streams are joined."""
        self._watches_times = first is not None and first.has_idle_streams
        self._options = options or {}
        self._frames: dict[Stream, DataFrame] = {}
        self._uses: Counter[Stream] = Counter()
        self._summed: set[Stream] = set()
        self.operators: list[Rows] = []
        """The rows of the operators that keep state, in the order of the job's function."""
        self.by_rows = by_rows
        """The streams that are not to be given as sums, though a window may need no more of them."""

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams that were read, in the order of asking."""
        return tuple(self._frames)

    @property
    def has_idle_streams(self) -> bool:
        """Whether a stream is to go on in time when it has nothing."""
        return any(stream.idle_timeout is not None for stream in self._frames)

    @property
    def wants_more(self) -> bool:
        """Whether the sources have to do more than was known when they were made."""
        return bool(self.plan.followed) or self.has_idle_streams or self.join_strategy != JoinStrategy()

    def look_at(self, frame: DataFrame) -> None:
        """Find out from the rows that the job's function returned how its streams should have been joined."""
        self.join_strategy = join_strategy(frame)

    @contextmanager
    def active(self) -> Iterator[None]:
        """A block in which `Stream.df` reads by this."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def stateful(self, make: Callable[[], Rows], inputs: Callable[[], Sequence[DataFrame]]) -> Rows:  # noqa: ARG002
        """The rows of an operator that keeps state; `inputs` are all rows and expressions that it reads."""
        rows = make()
        self.operators.append(rows)
        return rows

    def rows(self, stream: Stream) -> Rows:
        """The rows of a stream, without those that did not parse."""
        self._uses[stream] += 1
        if stream in self._summed:
            raise RowsWanted(stream)
        if stream not in self._frames:
            self._refuse_a_second_reading(stream)
            watched = self._watches_times and stream.event_time is not None
            self._frames[stream] = typed_rows(self._patient(stream), self._source(stream), watched=watched)
            if watched:
                self.plan.add_rows(NewestTimes(self.spark, stream.topic, self.hints).note)
            if stream.event_time is not None:
                self.plan.before(self._straying(stream).look)
        return self._rows_of(stream, self._frames[stream])

    @staticmethod
    def _rows_of(stream: Stream, frame: DataFrame) -> Rows:
        return Rows(
            frame=frame,
            event_time=stream.event_time,
            watermark_delay=stream.watermark_delay,
            topic=stream.topic,
        )

    def schema(self, stream: Stream) -> StructType:
        """The columns of a stream that was read."""
        return self._frames[stream].schema

    def summable(self, rows: Rows) -> Stream | None:
        """The stream that these rows are, if it can be read as sums; None where its rows are needed."""
        for stream, frame in self._frames.items():
            if frame is rows.frame and rows.event_time is not None:
                is_plain = stream.schema is not None and not (stream.clock or stream.metadata)
                is_idle = stream.idle_timeout is not None or self._watches_times
                return stream if is_plain and not is_idle and stream not in self.by_rows else None
        return None

    def sums(self, stream: Stream, sums: AggregatePushdown, schema: StructType) -> DataFrame:
        """A stream as sums, with its event time marked: the columns of `sums`, of the types in `schema`.

        `RowsWanted` if more is asked of the stream, now or later.
        """
        if stream in self._summed or self._uses[stream] > 1:
            raise RowsWanted(stream)
        self._summed.add(stream)
        reader = self._reader(stream, is_first=next(iter(self._frames)) == stream)
        reader = reader.options(**value_options(stream)).options(**self._time_options(stream))
        reader = reader.option("valueSchema", self._frames[stream].schema.json())
        records = reader.schema(schema).option(OPTION, sums.to_option()).load()
        return timed_sums(self._patient(stream), records.toDF(*sums.columns))

    def _patient(self, stream: Stream) -> Stream:
        """The stream with the watermark_delay that the job wants: it may have to wait for longer."""
        if stream.watermark_delay is None or not self._held_back_ms:
            return stream
        waits_ms = milliseconds_of(stream.watermark_delay, "watermark_delay") + self._held_back_ms
        return replace(stream, watermark_delay=f"{waits_ms} ms")

    @property
    def _held_back_ms(self) -> int:
        """By how much the watermark is behind what the streams say."""
        return self.plan.allowed_lateness_ms + self.join_strategy.behind_ms

    def _straying(self, stream: Stream) -> EventTimeSkewMonitor:
        return EventTimeSkewMonitor(
            stream, self.hints, lambda: len(self._frames), held_back_ms=self._held_back_ms
        )

    def _refuse_a_second_reading(self, stream: Stream) -> None:
        # Dead letters are written once for each topic: two schemas would disagree on what is dead.
        if any(other.topic == stream.topic for other in self._frames):
            raise Misuse(
                f"a job reads the topic {stream.topic!r} through two streams that differ: declare one "
                "`app.stream` with all the fields, and use it twice."
            )

    @property
    def hints(self) -> str:
        """The folder by which the sources of the job tell each other how far they are."""
        return f"{self.state}/time" if is_local(self.state) else f"{gettempdir()}/headrace/{self.job}/time"

    def _source(self, stream: Stream) -> DataFrame:
        """The records of a stream, as the source gives them."""
        reader = self._reader(stream, is_first=not self._frames)
        return reader.options(**value_options(stream)).options(**self._time_options(stream)).load()

    def _reader(self, stream: Stream, *, is_first: bool) -> DataStreamReader:
        reader = (
            self.spark.readStream.format("headrace")
            .options(**self._options)
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", stream.topic)
            .option("startingOffsets", self._start(stream))
            .option("maxOffsetsPerTrigger", str(stream.max_records))
            .option("columns", ",".join([*columns_of(stream), *([HEARTBEAT] if stream.idle_timeout else [])]))
        )
        # One source journals for all: it is the first.
        return reader.option("follow", ",".join(self._follow)) if self._follow and is_first else reader

    def _start(self, stream: Stream) -> str:
        if stream.topic not in self._starts:
            return stream.start
        return json.dumps({stream.topic: self._starts[stream.topic]})

    def _time_options(self, stream: Stream) -> dict[str, str]:
        if stream.event_time is None:
            return {}
        options = {"ticks": "true", "alignByTime": "true", "hints": self.hints}
        if stream.idle_timeout is not None:
            options["idleTimeout"] = f"{milliseconds_of(stream.idle_timeout)}ms"
        return options


def columns_of(stream: Stream) -> list[str]:
    """The columns that the source has to give: what nobody asked for is not cut out of the log."""
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


def _plausible_times(stream: Stream) -> dict[str, str]:
    """The options by which numbers become times, and times that cannot be true become errors."""
    options: dict[str, str] = {} if stream.time_unit == "auto" else {"timeUnit": stream.time_unit}
    if stream.guarded_field is None:
        return options
    ahead = "unlimited" if stream.max_ahead is None else f"{milliseconds_of(stream.max_ahead)}ms"
    return options | {"eventTime": stream.guarded_field, "maxAhead": ahead}


def is_local(place: str) -> bool:
    """Whether a folder is one of this machine.

    >>> [is_local(place) for place in ("/var/state", "file:/var/state", "hdfs://name/state")]
    [True, False, False]
    """
    return ":" not in place.partition("/")[0]


def current_builder(what: str) -> QueryBuilder:
    """The building that runs now; outside of a job's function there is none."""
    builder = _current.get(None)
    if builder is None:
        raise Misuse(
            f"{what} can be used only inside a job: write a function that returns a DataFrame, and decorate "
            "it with @app.job(into=…)."
        )
    return builder
