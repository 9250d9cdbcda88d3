"""Positions in topics, in memory and in the JSON form that Spark's Kafka source made known.

    {"orders": {"0": 12, "1": 40}, "payments": {"0": 7}}

Options, checkpoints and consumer groups all speak of positions; a program that moves from Spark's own source
to this one, or back, finds the same text in its checkpoint.

A stream with event time has signs beside its topics: numbers that make a batch a new one, or that a repeated
batch has to find again. They look like topics of one partition, and are none.

    {"orders": {"0": 12}, "headrace.heartbeat": {"0": 1767225600000}, "headrace.tick": {"0": 12}}
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, TypeAlias

from headrace.client.partition import TopicPartition
from headrace.spark.errors import BadOption

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Positions: TypeAlias = dict[TopicPartition, int]
"""For each partition the offset of the next record to be read."""

Journal: TypeAlias = dict[str, dict[str, int]]
"""Positions as Spark journals them, and signs."""

HEARTBEAT: Final = "headrace.heartbeat"
"""The time, in milliseconds since 1970, that the stream has reached without a record."""
TICK: Final = "headrace.tick"
"""What had been read when a batch without rows was last given: see `ticks`."""
SIGNS: Final = (HEARTBEAT, TICK)


def write_journal(positions: Mapping[TopicPartition, int]) -> Journal:
    """The positions as Spark journals them, always in the same order.

    >>> write_journal({TopicPartition("b", 10): 7, TopicPartition("b", 9): 1, TopicPartition("a", 0): 3})
    {'a': {'0': 3}, 'b': {'9': 1, '10': 7}}
    """
    journal: Journal = {}
    for partition, offset in sorted(positions.items()):
        journal.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return journal


def read_journal(journal: Mapping[str, Mapping[str, int]]) -> Positions:
    """The positions that Spark journalled, without the signs."""
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, offsets in journal.items()
        if topic not in SIGNS
        for partition, offset in offsets.items()
    }


def read_sign(journal: Mapping[str, Mapping[str, int]], sign: str) -> int:
    """A sign of the journal; 0 where there is none yet."""
    return int(journal.get(sign, {}).get("0", 0))


def write_sign(sign: str, value: int) -> Journal:
    """The journal's entry of a sign."""
    return {sign: {"0": value}}


def part_of(positions: Mapping[TopicPartition, int], topics: Collection[str]) -> Positions:
    """The positions in these topics."""
    return {partition: offset for partition, offset in positions.items() if partition.topic in topics}


def read_positions(option: str, text: str) -> Positions:
    """The positions, or times, that a user wrote in an option."""
    try:
        return read_journal(json.loads(text))
    except (ValueError, AttributeError, TypeError) as fault:
        example = '{"orders": {"0": 12, "1": 40}}'
        raise BadOption(f"{option} is {text!r}, which is not JSON of the form {example}") from fault


def read_partitions(option: str, text: str) -> tuple[TopicPartition, ...]:
    """The partitions that a user wrote in an option: topics with lists of numbers."""
    try:
        found = {
            TopicPartition(topic, int(number))
            for topic, numbers in json.loads(text).items()
            for number in numbers
        }
    except (ValueError, AttributeError, TypeError) as fault:
        example = '{"orders": [0, 1]}'
        raise BadOption(f"{option} is {text!r}, which is not JSON of the form {example}") from fault
    return tuple(sorted(found))
