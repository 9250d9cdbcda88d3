"""Filters narrow what is fetched, and never leave out a row that matches."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from headrace.client.partition import TopicPartition
from headrace.spark.batch_reader import FilterPushdown
from headrace.spark.offsets import Range

NUMBERS = st.integers(-2, 12)
COMPARISONS = {
    EqualTo: lambda left, right: left == right,
    GreaterThan: lambda left, right: left > right,
    GreaterThanOrEqual: lambda left, right: left >= right,
    LessThan: lambda left, right: left < right,
    LessThanOrEqual: lambda left, right: left <= right,
    In: lambda left, right: left in right,
}


@st.composite
def some_filter(draw: st.DrawFn) -> Filter:
    kind = draw(st.sampled_from(list(COMPARISONS)))
    value = draw(st.lists(NUMBERS, max_size=3).map(tuple) if kind is In else NUMBERS)
    made: Filter = kind((draw(st.sampled_from(["partition", "offset"])),), value)
    return made


def matches(given_filter: Filter, partition: int, offset: int) -> bool:
    column = partition if given_filter.attribute == ("partition",) else offset  # type: ignore[attr-defined]
    return COMPARISONS[type(given_filter)](column, given_filter.value)  # type: ignore[attr-defined, no-any-return]


@given(st.lists(some_filter(), max_size=4))
def test_every_row_that_matches_is_still_read(filters: list[Filter]) -> None:
    ranges = [Range(TopicPartition("orders", number), 0, 10) for number in range(4)]
    kept = {
        (p.partition, n)
        for p, start, end in FilterPushdown(filters).narrow(ranges)
        for n in range(start, end)
    }
    rows = {(number, offset) for number in range(4) for offset in range(10)}
    assert {row for row in rows if all(matches(each, *row) for each in filters)} <= kept


def test_a_filter_on_partition_and_offset_reads_nothing_else() -> None:
    filters = [EqualTo(("partition",), 1), GreaterThanOrEqual(("offset",), 3), LessThan(("offset",), 5)]
    ranges = [Range(TopicPartition("orders", number), 0, 10) for number in range(4)]
    assert FilterPushdown(filters).narrow(ranges) == [Range(TopicPartition("orders", 1), 3, 5)]


def test_a_filter_on_the_topic_leaves_other_topics_out() -> None:
    narrowing = FilterPushdown([In(("topic",), ("orders", None))])
    assert narrowing.covers(TopicPartition("orders", 0))
    assert not narrowing.covers(TopicPartition("payments", 0))


def test_only_the_earliest_time_is_used() -> None:
    noon, later = datetime(2026, 1, 1, 12, tzinfo=UTC), datetime(2026, 1, 1, 13, 0, 0, 999, tzinfo=UTC)
    narrowing = FilterPushdown([GreaterThan(("timestamp",), noon), GreaterThanOrEqual(("timestamp",), later)])
    assert narrowing.earliest_ms == int(later.timestamp() * 1000)
    assert FilterPushdown([LessThan(("timestamp",), noon)]).earliest_ms is None
    assert FilterPushdown([EqualTo(("timestamp",), noon)]).earliest_ms == int(noon.timestamp() * 1000)


@pytest.mark.parametrize(
    "harmless",
    [
        IsNotNull(("offset",)),
        Not(EqualTo(("partition",), 1)),
        EqualTo(("value", "offset"), 3),
        EqualTo(("offset",), "three"),
        GreaterThan(("timestamp",), datetime(2026, 1, 1)),  # noqa: DTZ001
    ],
)
def test_what_is_not_understood_narrows_nothing(harmless: Filter) -> None:
    ranges = [Range(TopicPartition("orders", 1), 0, 10)]
    narrowing = FilterPushdown([harmless])
    assert narrowing.narrow(ranges) == ranges
    assert narrowing.earliest_ms is None
