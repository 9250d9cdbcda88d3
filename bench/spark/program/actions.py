"""The actions of the program; each returns its measurements."""

import tempfile
import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know
from pyspark.sql.streaming.query import StreamingQuery

from bench.spark.program.dialect import Dialect, Output

POLL_SECONDS = 0.05
DEADLINE_SECONDS = 240
MINUTE = "1 minute"
LATENESS = "2 minutes"


class ActionFailed(Exception):
    """A query failed, or returned an unexpected result."""


class Actions:
    """The actions of one system in one session."""

    def __init__(self, dialect: Dialect, cores: int) -> None:
        self._dialect = dialect
        self._spark: SparkSession = dialect.open_session(cores)

    def read_raw(self, *, bootstrap: str, topic: str) -> dict[str, Any]:
        """Every column of every row into a sink that throws them away."""
        return _timed(lambda: _discard(self._dialect.raw(self._spark, bootstrap, topic)))

    def read_typed(self, *, bootstrap: str, topic: str) -> dict[str, Any]:
        """Every field of the JSON into a sink that throws them away."""
        return _timed(lambda: _discard(self._dialect.typed(self._spark, bootstrap, topic)))

    def read_windowed(self, *, bootstrap: str, topic: str, records: int) -> dict[str, Any]:
        """Count and sum by minute and device; all records must be in it."""
        rows = _by_minute(self._dialect.typed(self._spark, bootstrap, topic))
        began = time.perf_counter()
        (total,) = rows.agg(F.sum("readings")).collect()[0]
        took = time.perf_counter() - began
        if total != records:
            raise ActionFailed(f"{total} of {records} records are in the windows")
        return {"seconds": took}

    def read_stream(self, *, bootstrap: str, topic: str) -> dict[str, Any]:
        """The same windows as a stream with a watermark, until it has read what is there."""
        stream = self._dialect.stream(self._spark, bootstrap, topic).withWatermark("at", LATENESS)
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            sink = _by_minute(stream).writeStream.format("noop").option("checkpointLocation", folder)
            return _timed(lambda: _await(sink.outputMode("append").trigger(availableNow=True).start()))

    def first_row(self, *, bootstrap: str, topic: str) -> dict[str, Any]:
        """One typed row."""
        return _timed(lambda: self._dialect.typed(self._spark, bootstrap, topic).first())

    def write_batch(self, *, bootstrap: str, topic: str, rows: int, record_bytes: int) -> dict[str, Any]:
        """Made-up rows into a topic, in a batch."""
        made = _made_up(self._spark.range(rows, numPartitions=4), record_bytes)
        return _timed(lambda: self._dialect.write(made, bootstrap, topic))

    def write_stream(
        self,
        *,
        bootstrap: str,
        seeds: str,
        fan_out: int,
        step: int,
        record_bytes: int,
        warm_up: int,
        **into: str,
    ) -> dict[str, Any]:
        """Micro-batches of `step` seed records, each made into `fan_out` rows, into a topic.

        Those after the warm-up count.
        """
        stream = self._dialect.stream(self._spark, bootstrap, seeds, maxOffsetsPerTrigger=str(step))
        numbers = stream.select(F.explode(F.sequence(F.lit(1), F.lit(fan_out))).alias("id"))
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            output = Output(bootstrap=bootstrap, checkpoint=folder, once=True, **into)
            query = self._dialect.start(_made_up(numbers, record_bytes), output)
            _await(query)
            progress = [one for one in _progress(query) if one["numInputRows"]][warm_up:]
        seconds = sum(one["durationMs"]["triggerExecution"] for one in progress) / 1_000
        return {"seconds": seconds, "rows": fan_out * sum(one["numInputRows"] for one in progress)}

    def latency(
        self, *, bootstrap: str, source: str, windowed: bool, batches: int, warm_up: int, **into: str
    ) -> dict[str, Any]:
        """The duration of micro-batches while another process writes a few records at a time to `source`."""
        stream = self._dialect.stream(self._spark, bootstrap, source)
        rows = _by_minute(stream.withWatermark("at", LATENESS)) if windowed else stream.filter("reading >= 0")
        keyed = rows.select(F.col("device").alias("key"), F.to_json(F.struct("*")).alias("value"))
        mode = "update" if windowed else "append"
        with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
            query = self._dialect.start(
                keyed, Output(bootstrap=bootstrap, checkpoint=folder, mode=mode, **into)
            )
            try:
                durations = _durations(query, batches + warm_up)
            finally:
                query.stop()
        return {"milliseconds": durations[warm_up:]}


def _by_minute(rows: DataFrame) -> DataFrame:
    return (
        rows.groupBy(F.window("at", MINUTE), "device")
        .agg(F.count("*").alias("readings"), F.sum("reading").alias("total"))
        .select("window.start", "device", "readings", "total")
    )


def _made_up(numbers: DataFrame, record_bytes: int) -> DataFrame:
    """Rows with one of 500 keys, and a value of about that many bytes."""
    value = F.concat(F.lit("x" * (record_bytes - 8)), F.lpad(F.col("id").cast("string"), 8, "0"))
    return numbers.select((F.col("id") % 500).cast("string").alias("key"), value.alias("value"))


def _discard(rows: DataFrame) -> None:
    rows.write.format("noop").mode("overwrite").save()


def _timed(act: Any) -> dict[str, Any]:
    began = time.perf_counter()
    act()
    return {"seconds": time.perf_counter() - began}


def _await(query: StreamingQuery) -> None:
    if not query.awaitTermination(DEADLINE_SECONDS):
        query.stop()
        raise ActionFailed(f"the query did not end within {DEADLINE_SECONDS} s")


def _progress(query: StreamingQuery) -> list[Any]:
    return list(query.recentProgress)


def _durations(query: StreamingQuery, count: int) -> list[float]:
    """The first `count` batches with rows, in milliseconds."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        done = [one["durationMs"]["triggerExecution"] for one in _progress(query) if one["numInputRows"]]
        if len(done) >= count:
            return done[:count]
        if failure := query.exception():
            raise ActionFailed(str(failure))
        if time.monotonic() > deadline:
            raise ActionFailed(f"{len(done)} of {count} micro-batches were run in {DEADLINE_SECONDS} s")
        time.sleep(POLL_SECONDS)
