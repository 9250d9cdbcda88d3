"""`spark.read.format("headrace")`: what lies between two bounds, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader

from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.spark.bounds import Bound
from headrace.spark.data_loss import what_is_left
from headrace.spark.errors import BadOption
from headrace.spark.filter_pushdown import FilterPushdown
from headrace.spark.planning import Range
from headrace.spark.reading import Task
from headrace.spark.source_settings import STREAMING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter, InputPartition
    from pyspark.sql.types import StructType

    from headrace.client.partition import TopicPartition
    from headrace.spark.positions import Positions
    from headrace.spark.source_settings import SourceSettings


class BatchReader(DataSourceReader):
    """The rows between two bounds, which are resolved when the query is planned."""

    def __init__(self, settings: SourceSettings, schema: StructType) -> None:
        settings.refuse(
            STREAMING, "it bounds the batches of a stream; use endingOffsets to bound a batch read"
        )
        self._settings = settings
        self._reading = settings.reading(schema)
        self._starting = Bound.starting(settings.options, default="earliest")
        self._ending = Bound.ending(settings.options)
        self._narrowing = FilterPushdown()
        if self._starting.is_latest():
            raise BadOption(
                f"{self._starting.option} cannot be latest in a batch read: nothing would be left to read"
            )

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """All of them: they narrow what is fetched, and Spark applies them still."""
        self._narrowing = FilterPushdown(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks of the query; one that reads nothing where there is nothing, for Spark wants one."""
        ranges = self._narrowing.narrow(self._from_earliest_time(self._ranges()))
        return self._settings.tasks(self._what_is_left(ranges)) or [Task(())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, Task)
        return self._reading.rows(partition.ranges)

    def _ranges(self) -> list[Range]:
        settings = self._settings
        cluster = settings.link.cluster()
        committed = settings.read_committed
        partitions = settings.subscription.existing(cluster)
        start = self._starting.resolve(cluster, partitions, read_committed=committed)
        end = self._ending.resolve(cluster, partitions, read_committed=committed)
        return [
            Range(partition, start[partition], end[partition])
            for partition in partitions
            if self._narrowing.covers(partition)
        ]

    def _from_earliest_time(self, ranges: list[Range]) -> list[Range]:
        """The ranges without what lies before the earliest time that the query asks for."""
        time_ms = self._narrowing.earliest_ms
        if time_ms is None or not ranges:
            return ranges
        first = self._list((partition for partition, _, _ in ranges), time_ms)
        return [
            Range(partition, max(start, first[partition]), end)
            for partition, start, end in ranges
            if first[partition] >= 0
        ]

    def _what_is_left(self, ranges: list[Range]) -> list[Range]:
        """The ranges, checked against the log where a user wrote offsets: it may not have them."""
        if not (self._starting.offsets or self._ending.offsets):
            return ranges
        partitions = [partition for partition, _, _ in ranges]
        first, end = (self._list(partitions, which) for which in (EARLIEST, LATEST))
        return what_is_left(ranges, first, end, fail=self._settings.fail_on_data_loss)

    def _list(self, partitions: Iterable[TopicPartition], which: int) -> Positions:
        """An offset of each partition: its first, its end, or that of a time."""
        asked = dict.fromkeys(partitions, which)
        return list_offsets(
            self._settings.link.cluster(), asked, read_committed=self._settings.read_committed
        )
