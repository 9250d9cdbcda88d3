"""Offsets that are gone stop a reader, or are counted."""

import logging

import pytest

from headrace.client.partition import TopicPartition
from headrace.spark.errors import DataLost
from headrace.spark.offset_reader import available_ranges
from headrace.spark.offsets import Range

ORDERS = TopicPartition("orders", 0)


def test_offsets_that_are_there_are_left_as_they_are() -> None:
    whole = [Range(ORDERS, 3, 9)]
    assert available_ranges(whole, {ORDERS: 3}, {ORDERS: 9}, fail=True) == whole


def test_a_loss_names_partition_offsets_and_the_option() -> None:
    with pytest.raises(DataLost, match=r"orders/0 lost the offsets 3 to 6: .* 7 to 8.*failOnDataLoss"):
        available_ranges([Range(ORDERS, 3, 9)], {ORDERS: 7}, {ORDERS: 9}, fail=True)


@pytest.mark.parametrize(
    ("first", "end", "left", "count"),
    [
        ({ORDERS: 7}, {ORDERS: 20}, [Range(ORDERS, 7, 9)], 4),
        ({ORDERS: 12}, {ORDERS: 20}, [], 6),
        ({ORDERS: 0}, {ORDERS: 5}, [Range(ORDERS, 3, 5)], 4),
        ({ORDERS: 0}, {ORDERS: 1}, [], 6),
        ({}, {}, [], 6),
    ],
)
def test_a_tolerated_loss_is_counted(
    first: dict[TopicPartition, int],
    end: dict[TopicPartition, int],
    left: list[Range],
    count: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "headrace.spark"):
        assert available_ranges([Range(ORDERS, 3, 9)], first, end, fail=False) == left
    assert f"data loss, {count} offsets skipped" in caplog.text
