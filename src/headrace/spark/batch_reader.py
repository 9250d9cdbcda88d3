"""`spark.read.format("headrace")`: reads the records between two bounds once.

Filters of a query narrow the ranges that are read. Spark still applies each filter, so the narrowing may be
coarse, but it must never leave out a row that matches. Times are therefore a lower bound only: all records
before the first offset at or after a time are earlier, but later records may follow one that is too late.
"""

from __future__ import annotations

from datetime import datetime
from math import floor
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.spark.errors import BadOption
from headrace.spark.offset_reader import Bound, available_ranges
from headrace.spark.offsets import Range
from headrace.spark.source import STREAMING, Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter, InputPartition
    from pyspark.sql.types import StructType

    from headrace.client.partition import TopicPartition
    from headrace.spark.offsets import Positions
    from headrace.spark.source import SourceSettings


class FilterPushdown:
    """What the filters of a query, joined by AND, require of topics, partitions, offsets and times."""

    def __init__(self, filters: Iterable[Filter] = ()) -> None:
        self._topics: list[set[Any]] = []
        self._partitions: list[tuple[int, float]] = []
        self._partition_sets: list[set[Any]] = []
        self._first_offset = 0
        self._end_offset: float = float("inf")
        self.earliest_ms: int | None = None
        """No record before this time matches."""
        for given in filters:
            self._add(given)

    def covers(self, partition: TopicPartition) -> bool:
        """Whether records of `partition` can match."""
        number = partition.partition
        return (
            all(partition.topic in topics for topics in self._topics)
            and all(number in numbers for numbers in self._partition_sets)
            and all(low <= number < high for low, high in self._partitions)
        )

    def narrow(self, ranges: Iterable[Range]) -> list[Range]:
        """The parts of `ranges` in which records can match."""
        return [
            Range(partition, max(start, self._first_offset), int(min(end, self._end_offset)))
            for partition, start, end in ranges
            if self.covers(partition)
        ]

    def _add(self, given: Filter) -> None:
        match given:
            case EqualTo(attribute=(name,), value=value) | EqualNullSafe(attribute=(name,), value=value):
                self._add_values(name, (value,))
            case In(attribute=(name,), value=values):
                self._add_values(name, values)
            case GreaterThan(attribute=(name,), value=value):
                self._add_bounds(name, value, low=1)
            case GreaterThanOrEqual(attribute=(name,), value=value):
                self._add_bounds(name, value, low=0)
            case LessThan(attribute=(name,), value=value):
                self._add_bounds(name, value, high=0)
            case LessThanOrEqual(attribute=(name,), value=value):
                self._add_bounds(name, value, high=1)

    def _add_values(self, name: str, values: Sequence[Any]) -> None:
        present = [value for value in values if value is not None]
        if name == "topic":
            self._topics.append(set(present))
        elif name == "partition":
            self._partition_sets.append(set(present))
        elif present:
            self._add_bounds(name, min(present), low=0)
            self._add_bounds(name, max(present), high=1)

    def _add_bounds(self, name: str, value: Any, *, low: int | None = None, high: int | None = None) -> None:
        if name == "timestamp" and low is not None:
            self._add_earliest(value)
        if not isinstance(value, int) or isinstance(value, bool):
            return
        first = value + low if low is not None else 0
        end = value + high if high is not None else float("inf")
        if name == "offset":
            self._first_offset = max(self._first_offset, first)
            self._end_offset = min(self._end_offset, end)
        elif name == "partition":
            self._partitions.append((first, end))

    def _add_earliest(self, value: Any) -> None:
        # A time without a zone is one of the session's, which is not known here.
        if isinstance(value, datetime) and value.tzinfo is not None:
            time_ms = max(0, floor(value.timestamp() * 1000))
            self.earliest_ms = max(self.earliest_ms or 0, time_ms)


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
        """All filters: they narrow what is fetched, and Spark still applies them."""
        self._narrowing = FilterPushdown(filters)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """The tasks of the query; an empty task if there is nothing to read, because Spark requires one."""
        ranges = self._narrowing.narrow(self._from_earliest_time(self._ranges()))
        return self._settings.tasks(self._available_ranges(ranges)) or [Task(())]

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
        """The ranges without records before the earliest time of the filters."""
        time_ms = self._narrowing.earliest_ms
        if time_ms is None or not ranges:
            return ranges
        first = self._list((partition for partition, _, _ in ranges), time_ms)
        return [
            Range(partition, max(start, first[partition]), end)
            for partition, start, end in ranges
            if first[partition] >= 0
        ]

    def _available_ranges(self, ranges: list[Range]) -> list[Range]:
        """The ranges, checked against the log if the user set offsets, which it may not have."""
        if not (self._starting.offsets or self._ending.offsets):
            return ranges
        partitions = [partition for partition, _, _ in ranges]
        first, end = (self._list(partitions, which) for which in (EARLIEST, LATEST))
        return available_ranges(ranges, first, end, fail=self._settings.fail_on_data_loss)

    def _list(self, partitions: Iterable[TopicPartition], which: int) -> Positions:
        """An offset of each partition: its first, its end, or that of a time."""
        asked = dict.fromkeys(partitions, which)
        return list_offsets(
            self._settings.link.cluster(), asked, read_committed=self._settings.read_committed
        )
