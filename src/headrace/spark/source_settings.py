"""What the options of a source come to: checked once, the same for reading once and for streaming."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from headrace.spark.aggregate_pushdown import OPTION as SUMS
from headrace.spark.aggregate_pushdown import AggregatePushdown
from headrace.spark.cluster_connection import SECURITY_PROFILE, ClusterConnection
from headrace.spark.errors import BadOption
from headrace.spark.layout import PARSER_OPTIONS, Layout
from headrace.spark.named_headers import CHOICE
from headrace.spark.named_headers import OPTION as HEADER_COLUMNS
from headrace.spark.options import Options
from headrace.spark.planning import tasks
from headrace.spark.reading import Reading, Task
from headrace.spark.row_checks import EVENT_TIME, MAX_AHEAD
from headrace.spark.subscription import WAYS, Subscription

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql.types import StructType

    from headrace.spark.planning import Range

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
    SUMS,
)
OF_EITHER: Final = (
    SECURITY_PROFILE,
    "failOnDataLoss",
    "includeHeaders",
    HEADER_COLUMNS,
    CHOICE,
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
"""Options of Spark's Kafka source that tune nothing here; a program that sets them goes on working."""
KNOWN: Final = (*WAYS, *STARTING, *ENDING, *STREAMING, *OF_EITHER, *NEEDLESS, *PARSER_OPTIONS)

ISOLATION: Final = {"read_committed": True, "read_uncommitted": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """A source as its options describe it. Plain data: it travels to planners and tasks."""

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
        """Refuse options that mean nothing for this way of reading."""
        for name in names:
            if self.options.text(name) is not None:
                raise BadOption(f"the option {name} means nothing here: {why}")

    def reading(self, schema: StructType) -> Reading:
        """What a task must know to make rows of `schema`."""
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
