"""Records that are no rows: counted as they pass, and written to the job's dead letters in its transaction.

They do not parse, their time is implausible, or the job's own code has failed on them.

Spark counts them while it computes a batch (`observe`). Only when there were some are the batch's ranges read
a second time, for the bad rows alone: a job with good input pays nothing.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError
from headrace.streams.source import range_options, value_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame

    from headrace.spark.transactional_sink import Batch
    from headrace.streams.job import Job
    from headrace.streams.run_context import RunContext
    from headrace.streams.stream import Stream

ENOUGH_ROWS: Final = 100
"""Below this many rows a share says nothing."""

LETTER: Final = "topic string, key binary, value binary, headers array<struct<key: string, value: binary>>"

Counts = dict[str, tuple[int, int]]
"""Rows, and those of them that did not parse, by topic."""


class DeadLimitReached(HeadraceError):
    """More rows did not parse than the job accepts."""


class DeadLetters:
    """The dead rows of one run of a job."""

    def __init__(
        self,
        job: Job,
        streams: Sequence[Stream],
        tables: Mapping[str, Callable[[Batch], pa.Table]],
        run_context: RunContext,
        counts: Callable[[], Counts],
    ) -> None:
        self._job = job
        self._streams = {stream.topic: stream for stream in streams}
        self._tables = tables
        self._run_context = run_context
        self._counts = counts
        self.rows = 0
        self.dead = 0

    def of_batch(self, batch: Batch) -> DataFrame | None:
        """The records to write for a batch whose rows were computed just now; None if all of them parsed."""
        counts = self._counts()
        self.rows += sum(rows for rows, _ in counts.values())
        unread = {topic: find(batch) for topic, find in self._tables.items()}
        self.dead += sum(dead for _, dead in counts.values()) + sum(map(len, unread.values()))
        self._check_limit()
        topics = [topic for topic, (_, dead) in counts.items() if dead and topic in self._streams]
        parts = [self._read(self._streams[topic], batch) for topic in topics]
        parts += [self._letters(topic, table) for topic, table in unread.items() if len(table)]
        return reduce(lambda one, other: one.unionByName(other), parts) if parts else None

    def _check_limit(self) -> None:
        most, ratio = self._job.max_dead_letters, self._job.max_dead_letter_ratio
        if most is not None and self.dead > most:
            limit = f"max_dead_letters={most}"
        elif ratio is not None and self.rows >= ENOUGH_ROWS and self.dead > ratio * self.rows:
            limit = f"max_dead_letter_ratio={ratio:g}"
        else:
            return
        raise DeadLimitReached(
            f"{self.dead} of {self.rows} rows were dead letters in this run, more than {limit} allows; "
            f"the batch was not written. Look at what is in {', '.join(self._streams)}; correct the "
            f"schema or the writer, or raise the limit (rows then go to {self._job.dead_topic!r})."
        )

    def _read(self, stream: Stream, batch: Batch) -> DataFrame:
        reader = (
            self._run_context.spark.read.format("headrace")
            .option("kafka.bootstrap.servers", self._run_context.bootstrap)
            .options(**range_options(stream.topic, batch.start, batch.end))
            .option("errorsOnly", "true")
        )
        return as_letters(reader.options(**value_options(stream)).load(), self._job.dead_topic)

    def _letters(self, topic: str, unread: pa.Table) -> DataFrame:
        """Records of a table as letters: they were read by the driver, and are few."""
        records = [_letter(self._job.dead_topic, topic, record) for record in unread.to_pylist()]
        return self._run_context.spark.createDataFrame(records, LETTER)


def _letter(dead_topic: str, topic: str, record: Mapping[str, Any]) -> tuple[Any, ...]:
    said = {"reason": record["reason"], "topic": topic}
    said |= {"partition": str(record["partition"]), "offset": str(record["offset"])}
    headers = [(name, bytearray(text.encode())) for name, text in said.items()]
    return (dead_topic, *(_buffer(record[name]) for name in ("key", "value")), headers)


def _buffer(value: bytes | None) -> bytearray | None:
    return None if value is None else bytearray(value)


def as_letters(rows: DataFrame, topic: str) -> DataFrame:
    """Dead rows as records: key and bytes as they were, and in the headers why, and where they come from."""
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

    said = {
        "reason": F.col("error.reason"),
        "topic": F.col("topic"),
        "partition": F.col("partition").cast("string"),
        "offset": F.col("offset").cast("string"),
    }
    headers = [
        F.struct(F.lit(name).alias("key"), text.cast("binary").alias("value")) for name, text in said.items()
    ]
    value = F.col("error.raw").alias("value")
    return rows.select(F.lit(topic).alias("topic"), "key", value, F.array(*headers).alias("headers"))
