"""Rows that do not parse: counted as they pass, and written to the job's dead letters in its transaction.

Spark counts them while it computes a batch (`observe`). Only when there were some are the batch's ranges read
a second time, for the bad rows alone: a job with good input pays nothing.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError
from headrace.streams.building import DEAD, value_options
from headrace.streams.columns import quoted
from headrace.streams.replay import range_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, DataFrameReader

    from headrace.spark.transactional_sink import Batch
    from headrace.streams.batch_plan import FollowedTable
    from headrace.streams.job import Job
    from headrace.streams.stream import Stream
    from headrace.streams.workplace import Workplace

ENOUGH_ROWS: Final = 100
"""Below this many rows a share says nothing."""

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
        tables: Mapping[str, FollowedTable],
        workplace: Workplace,
        counts: Callable[[], Counts],
    ) -> None:
        self._job = job
        self._streams = {stream.topic: stream for stream in streams}
        self._tables = tables
        self._workplace = workplace
        self._counts = counts
        self.rows = 0
        self.dead = 0

    def of_batch(self, batch: Batch) -> DataFrame | None:
        """The records to write for a batch whose rows were computed just now; None if all of them parsed."""
        counts = self._counts()
        self.rows += sum(rows for rows, _ in counts.values())
        unread = {topic: table.take_unread() for topic, table in self._tables.items()}
        self.dead += sum(dead for _, dead in counts.values()) + sum(filter(None, unread.values()))
        self._check_limit()
        topics = [topic for topic, (_, dead) in counts.items() if dead and topic in self._streams]
        parts = [self._read(self._streams[topic], batch) for topic in topics]
        # What a copy already had when the batch was repeated is looked at again.
        suspects = [topic for topic, count in unread.items() if count != 0 and _moved(topic, batch)]
        parts += [self._read_table(topic, batch) for topic in suspects]
        return reduce(lambda one, other: one.unionByName(other), parts) if parts else None

    def _check_limit(self) -> None:
        limit = self._job.dead_limit
        if limit is None or not self.dead:
            return
        is_share = 0 < limit < 1
        if is_share and (self.rows < ENOUGH_ROWS or self.dead <= limit * self.rows):
            return
        if not is_share and self.dead <= limit:
            return
        raise DeadLimitReached(
            f"{self.dead} of {self.rows} rows did not parse in this run, more than dead_limit={limit:g} "
            f"allows; the batch was not written. Look at what is in {', '.join(self._streams)}; correct the "
            f"schema or the writer, or raise the limit (rows then go to {self._job.dead_topic!r})."
        )

    def _read(self, stream: Stream, batch: Batch) -> DataFrame:
        reader = self._reader(stream.topic, batch).option("errorsOnly", "true")
        rows = reader.options(**value_options(stream)).load()
        return as_letters(rows, self._job.dead_topic)

    def _read_table(self, topic: str, batch: Batch) -> DataFrame:
        """The records of a table that named no row."""
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        table = self._tables[topic]
        # The first batch has all that the table's topic holds.
        reader = self._reader(topic, batch, whole=batch.id == 0).option("failOnDataLoss", "false")
        rows = reader.option("valueFormat", "json").option("valueSchema", table.schema.json()).load()
        keys = [F.col(f"value.{quoted(name)}").isNull() for name in table.key]
        no_key = F.col("value").isNotNull() & reduce(lambda one, other: one | other, keys)
        unnamed = F.struct(
            F.lit(f"the key ({', '.join(table.key)}) is null").alias("reason"),
            F.to_json("value").cast("binary").alias("raw"),
        )
        dead = rows.withColumn("error", F.coalesce("error", F.when(no_key, unnamed)))
        return as_letters(dead.filter("error IS NOT NULL"), self._job.dead_topic)

    def _reader(self, topic: str, batch: Batch, *, whole: bool = False) -> DataFrameReader:
        reader = self._workplace.spark.read.format("headrace")
        reader = reader.option("kafka.bootstrap.servers", self._workplace.bootstrap)
        return reader.options(**range_options(topic, batch, whole=whole))


def _moved(topic: str, batch: Batch) -> bool:
    return bool(batch.end.get(topic)) and (batch.id == 0 or batch.end[topic] != batch.start.get(topic))


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


def observed_counts(execution: Any) -> Counts:
    """What `observe` counted in the execution of a batch, a Java object of Spark's."""
    metrics = execution.observedMetrics()
    names = [name for name in _names(metrics) if name.startswith(DEAD)]
    rows = {name: metrics.apply(name) for name in names}
    return {name.removeprefix(DEAD): (int(row.getLong(0)), int(row.getLong(1))) for name, row in rows.items()}


def _names(metrics: Any) -> list[str]:
    keys = metrics.keys().iterator()
    names = []
    while keys.hasNext():
        names.append(str(keys.next()))
    return names
