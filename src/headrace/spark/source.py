"""The data source `format("headrace")`: its subscription, settings and tasks, and what Spark calls.

Spark starts planner processes often, so this module does not load Arrow, compiled code or the client before
they are needed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Self

from pyspark.sql.datasource import DataSource, InputPartition

from headrace.client.partition import TopicPartition
from headrace.spark.aggregate_pushdown import OPTION as SUMS
from headrace.spark.aggregate_pushdown import AggregatePushdown
from headrace.spark.errors import BadOption, UnknownTopic
from headrace.spark.internals import PLACEHOLDER
from headrace.spark.layout import HEADER_COLUMNS, PARSER_OPTIONS, WHERE_HEADERS, Layout
from headrace.spark.offsets import read_partitions, tasks
from headrace.spark.options import SECURITY_PROFILE, ClusterConnection, Options
from headrace.spark.row_checks import EVENT_TIME, MAX_AHEAD

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from headrace.client.cluster import Cluster
    from headrace.spark.offsets import Range


WAYS: Final = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What was subscribed to: exactly one of topics, a pattern, and partitions."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: tuple[TopicPartition, ...] = ()

    @classmethod
    def of(cls, options: Options) -> Self:
        """The subscription that the options describe."""
        given = [way for way in WAYS if (options.text(way) or "").strip()]
        if len(given) != 1:
            seen = " and ".join(given) if given else "none"
            raise BadOption(f"say what to read by exactly one of {', '.join(WAYS)}; here it was {seen}")
        way, text = given[0], options.required(given[0], "name a topic")
        if way == "subscribe":
            return cls(topics=_names(text))
        if way == "subscribePattern":
            return cls(pattern=_pattern(text))
        return cls(assigned=read_partitions(way, text))

    def partitions(self, cluster: Cluster) -> dict[TopicPartition, str | None]:
        """The partitions that exist now, with the ids of their topics.

        A topic that matches the pattern is among them as soon as it exists.
        """
        if self.pattern:
            matches = re.compile(self.pattern).fullmatch
            found = [
                topic for topic in cluster.topics().values() if not topic.internal and matches(topic.name)
            ]
        else:
            names = self.topics or sorted({partition.topic for partition in self.assigned})
            found = list(cluster.topics(names).values())
        existing = {
            TopicPartition(topic.name, number): topic.topic_id
            for topic in found
            for number in topic.partitions
        }
        if not self.assigned:
            return existing
        return {partition: existing[partition] for partition in self.assigned if partition in existing}

    def covers(self, partition: TopicPartition) -> bool:
        """Whether `partition` is part of the subscription, also if it does not exist."""
        if self.pattern:
            return re.fullmatch(self.pattern, partition.topic) is not None
        return partition in self.assigned or partition.topic in self.topics

    def existing(self, cluster: Cluster) -> dict[TopicPartition, str | None]:
        """The partitions that exist now, with the ids of their topics.

        Raises `UnknownTopic` for a named topic or partition that does not exist.
        """
        partitions = self.partitions(cluster)
        topics = {partition.topic for partition in partitions}
        missing = [repr(topic) for topic in self.topics if topic not in topics]
        missing += [str(partition) for partition in self.assigned if partition not in partitions]
        if missing:
            raise UnknownTopic(
                f"the cluster has no {', '.join(missing)}: check the name, or create the topic first. "
                "subscribePattern also finds topics that are created later."
            )
        return partitions


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names):
        raise BadOption(f"subscribe is {text!r}: write topic names with commas between")
    return names


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as fault:
        raise BadOption(
            f"subscribePattern is {text!r}, which is not a regular expression: {fault}"
        ) from fault
    return text


class Task(InputPartition):
    """The ranges that one task reads, one after the other; or the heartbeat or number that it emits."""

    def __init__(
        self, ranges: tuple[Range, ...], heartbeat_ms: int | None = None, number: int | None = None
    ) -> None:
        super().__init__(ranges)
        self.ranges = ranges
        self.heartbeat_ms = heartbeat_ms
        self.number = number


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a task needs to read ranges as rows. Plain data that is sent to the tasks."""

    link: ClusterConnection
    layout: Layout
    schema: StructType
    read_committed: bool
    fail_on_data_loss: bool
    sums: AggregatePushdown | None = None
    """The aggregation of the rows, if partial aggregates are read instead of rows."""

    def rows(self, ranges: Iterable[Range]) -> Iterator[pa.RecordBatch]:
        """The rows of `ranges` as Arrow batches of exactly the schema."""
        if self.sums is not None:
            from headrace.spark.aggregate_pushdown_task import read_partial_aggregates

            return read_partial_aggregates(self, self.sums, ranges)
        from headrace.spark.rows import read_rows

        return read_rows(self, ranges)

    def heartbeat(self, time_ms: int) -> Iterator[pa.RecordBatch]:
        """A row that has only a time."""
        from headrace.spark.rows import heartbeat_row

        yield heartbeat_row(self.schema, time_ms)

    def number(self, number: int) -> Iterator[pa.RecordBatch]:
        """A row that has only the number of its task."""
        from headrace.spark.rows import number_row

        yield number_row(self.schema, number)


STARTING: Final = (
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
)
ENDING: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
STREAMING: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "follow",
    "ticks",
    "alignByTime",
    "idleTimeout",
    "hints",
    "positionsOnly",
    "wholeTransactions",
    SUMS,
)
OF_EITHER: Final = (
    SECURITY_PROFILE,
    "failOnDataLoss",
    "includeHeaders",
    HEADER_COLUMNS,
    WHERE_HEADERS,
    "minPartitions",
    "maxRecordsPerPartition",
    "valueFormat",
    "valueSchema",
    "columns",
    "errorsOnly",
    EVENT_TIME,
    MAX_AHEAD,
)
NEEDLESS: Final = (
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
"""Options of Spark's Kafka source that have no effect here and are accepted."""
KNOWN: Final = (*WAYS, *STARTING, *ENDING, *STREAMING, *OF_EITHER, *NEEDLESS, *PARSER_OPTIONS)

ISOLATION: Final = {"read_committed": True, "read_uncommitted": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """The settings of a source, from its options. Plain data that is sent to planners and tasks."""

    options: Options
    link: ClusterConnection
    subscription: Subscription
    layout: Layout
    read_committed: bool
    fail_on_data_loss: bool
    parallelism: int
    """How many tasks can run at once."""
    min_partitions: int
    max_records_per_partition: int | None
    follow: tuple[str, ...] = ()
    """Topics whose positions are journaled, and whose rows are not read."""
    sums: AggregatePushdown | None = None

    @classmethod
    def of(cls, given: Mapping[str, str], *, parallelism: int) -> Self:
        """The settings that the options describe."""
        options = Options(given, known=KNOWN)
        return cls(
            options=options,
            link=ClusterConnection.of(options),
            subscription=Subscription.of(options),
            layout=Layout.of(options),
            read_committed=options.choice("kafka.isolation.level", ISOLATION, default="read_committed"),
            fail_on_data_loss=options.flag("failOnDataLoss", default=True),
            parallelism=parallelism,
            min_partitions=options.number("minPartitions") or 1,
            max_records_per_partition=options.number("maxRecordsPerPartition"),
            follow=tuple(filter(None, (options.text("follow") or "").split(","))),
            sums=AggregatePushdown.from_options(options),
        )

    def refuse(self, names: Iterable[str], why: str) -> None:
        """Refuse options that have no meaning for this way of reading."""
        for name in names:
            if self.options.text(name) is not None:
                raise BadOption(f"the option {name} has no effect here: {why}")

    def reading(self, schema: StructType) -> Reading:
        """What a task needs to read rows of `schema`."""
        if self.sums is None:
            self.layout.check(schema)
        return Reading(
            link=self.link,
            layout=self.layout,
            schema=schema,
            read_committed=self.read_committed,
            fail_on_data_loss=self.fail_on_data_loss,
            sums=self.sums,
        )

    def tasks(self, ranges: Iterable[Range]) -> list[Task]:
        """The tasks that read `ranges`."""
        planned = tasks(
            ranges,
            parallelism=self.parallelism,
            at_least=self.min_partitions,
            most_records=self.max_records_per_partition,
        )
        return [Task(shares) for shares in planned]


class HeadraceSource(DataSource):
    """Topics as tables and streams. Spark creates an instance in every process that plans or runs a part."""

    parallelism: ClassVar[int] = os.cpu_count() or 1
    """How many tasks the session can run at once; registration sets it."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "headrace"

    def schema(self) -> StructType | str:
        """The columns that are read."""
        return self._source().layout.schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of a batch query."""
        from headrace.spark.batch_reader import BatchReader

        return BatchReader(self._source(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        """The reader of a streaming query."""
        from headrace.spark.stream_reader import StreamReader

        if PLACEHOLDER in self.options:
            raise BadOption(
                "the rows of a job's stream were read outside of the query of the job: return them from its "
                "function."
            )
        return StreamReader(self._source(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The writer of a batch query."""
        from headrace.spark.sink import TopicSink, TopicSinkWriter

        if overwrite:
            raise BadOption('a topic cannot be overwritten: write with mode("append")')
        sink = TopicSink.of(self.options)
        sink.check(schema)
        return TopicSinkWriter(sink)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002, N802
        """The writer of a streaming query; in output mode `complete` it appends all rows of each batch."""
        from headrace.spark.sink import TopicSink, TopicStreamSinkWriter

        sink = TopicSink.of(self.options)
        sink.check(schema)
        return TopicStreamSinkWriter(sink)

    def _source(self) -> SourceSettings:
        return SourceSettings.of(self.options, parallelism=self.parallelism)
