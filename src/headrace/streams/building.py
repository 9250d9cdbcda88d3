"""The making of a job's query: what its streams are read from while its function runs."""

from __future__ import annotations

import json
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from headrace.errors import Misuse
from headrace.streams.batch_plan import BatchPlan
from headrace.streams.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from headrace.streams.stream import Stream

DEAD: Final = "headrace.dead."
"""The observed metrics of a topic: how many rows there were, and how many of them did not parse."""

_current: ContextVar[Building] = ContextVar("building")


class Building:
    """What one call of a job's function has read: each stream once, however often it asked for it."""

    def __init__(
        self,
        spark: SparkSession,
        bootstrap: str,
        *,
        job: str = "",
        state: str = "",
        starts: Mapping[str, Mapping[str, int]] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.job = job
        """The job's full name."""
        self.state = state
        """The folder of what operators keep: it belongs to the checkpoint."""
        self.plan = BatchPlan()
        self._starts = starts or {}
        self._options = options or {}
        self._frames: dict[Stream, DataFrame] = {}

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The streams that were read, in the order of asking."""
        return tuple(self._frames)

    @contextmanager
    def active(self) -> Iterator[None]:
        """A block in which `Stream.df` reads by this."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def rows(self, stream: Stream) -> Rows:
        """The rows of a stream, without those that did not parse."""
        if stream not in self._frames:
            self._refuse_a_second_reading(stream)
            self._frames[stream] = self._typed(stream, self._source(stream))
        return Rows(frame=self._frames[stream], event_time=stream.event_time, lateness=stream.lateness)

    def _refuse_a_second_reading(self, stream: Stream) -> None:
        # Dead letters are written once for each topic: two schemas would disagree on what is dead.
        if any(other.topic == stream.topic for other in self._frames):
            raise Misuse(
                f"a job reads the topic {stream.topic!r} through two streams that differ: declare one "
                "`app.stream` with all the fields, and use it twice."
            )

    def _source(self, stream: Stream) -> DataFrame:
        start = (
            json.dumps({stream.topic: self._starts[stream.topic]})
            if stream.topic in self._starts
            else stream.start
        )
        reader = (
            self.spark.readStream.format("headrace")
            .options(**self._options)
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("subscribe", stream.topic)
            .option("startingOffsets", start)
            .option("maxOffsetsPerTrigger", str(stream.max_records))
            .option("columns", ",".join(columns_of(stream)))
        )
        return reader.options(**value_options(stream)).load()

    def _typed(self, stream: Stream, rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        if stream.format != "raw":
            dead = F.count("error").alias("dead")
            rows = rows.observe(DEAD + stream.topic, F.count(F.lit(1)).alias("rows"), dead)
            rows = rows.filter("error is null and value is not null")
        values = "value.*" if stream.schema is not None else "value"
        rows = rows.select(values, *(F.col(name).alias(f"_{name}") for name in stream.metadata))
        if stream.event_time is None or stream.lateness is None:
            return rows
        _check_event_time(stream, rows)
        return rows.withWatermark(stream.event_time, stream.lateness)


def columns_of(stream: Stream) -> list[str]:
    """The columns that the source has to give: what nobody asked for is not cut out of the log."""
    error = [] if stream.format == "raw" else ["error"]
    return ["value", *stream.metadata, *error]


def value_options(stream: Stream) -> dict[str, str]:
    """The options of the source by which a stream's values are parsed."""
    options: dict[str, str] = {} if stream.format == "raw" else {"valueFormat": stream.format}
    if stream.schema is not None:
        options["valueSchema"] = stream.schema
    if "headers" in stream.metadata:
        options["includeHeaders"] = "true"
    return options


def current_building(what: str) -> Building:
    """The building that runs now; outside of a job's function there is none."""
    building = _current.get(None)
    if building is None:
        raise Misuse(
            f"{what} can be used only inside a job: write a function that returns a DataFrame, and decorate "
            "it with @app.job(into=…)."
        )
    return building


def _check_event_time(stream: Stream, rows: DataFrame) -> None:
    types = {field.name: field.dataType.simpleString() for field in rows.schema}
    found = types.get(stream.event_time or "")
    if found == "timestamp":
        return
    reason = "there is no such column" if found is None else f"its type is {found}"
    listed = ", ".join(f"{name} {kind}" for name, kind in types.items())
    raise Misuse(
        f"the stream of {stream.topic!r}: event_time={stream.event_time!r} must name a column of type "
        f"timestamp, but {reason}. The columns are {listed}."
    )
