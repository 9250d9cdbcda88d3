"""Filters of a query that spare a batch read some of its ranges.

A filter only narrows what is fetched and is still applied by Spark, so that narrowing may be coarse; it must
never leave out a row that matches. Times are therefore a lower bound only: the first offset at or after a
time has nothing but earlier records before it, but later records may follow one that is too late.
"""

from __future__ import annotations

from datetime import datetime
from math import floor
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from headrace.spark.planning import Range

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql.datasource import Filter

    from headrace.client.partition import TopicPartition


class FilterPushdown:
    """What the filters of a query, all of which hold, say about topics, partitions, offsets and times."""

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
