"""Positions in topics, in memory and in the JSON form that Spark's Kafka source made known.

    {"orders": {"0": 12, "1": 40}, "payments": {"0": 7}}

Options, checkpoints and consumer groups all use this form, and a query that moves from Spark's own Kafka
source to this one continues from its checkpoint.

The journal of a stream, which Spark keeps in the checkpoint, has signs next to the topics: what a repeated
batch must find again, and what makes a batch a new one.

    {"orders": {"0": 12},
     "headrace.topic-ids": {"orders": "Xk1qJ5mWQ9yPZ0aN3cBv7g"},
     "headrace.first": {"orders": {"0": 10}},
     "headrace.heartbeat": {"0": 1767225600000}, "headrace.tick": {"0": 12}}

Spark journals only where a batch ends. Where the first batch begins, it asks the source, several times and
again after a restart, and `latest` has another answer each time. So a new stream begins at a symbol
(`headrace.initial`), and the end of its first batch says which positions that symbol stands for.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from headrace.client.partition import TopicPartition
from headrace.spark.errors import BadOption

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

Positions: TypeAlias = dict[TopicPartition, int]
"""For each partition the offset of the next record to be read."""

Journal: TypeAlias = dict[str, dict[str, Any]]
"""Positions as Spark journals them, and signs."""

TopicIds: TypeAlias = dict[str, str]
"""For each topic the id that tells it from a topic of the same name that was deleted before."""

INITIAL: Final = "headrace.initial"
"""The start of a stream that has not read anything."""
FIRST: Final = "headrace.first"
"""Where partitions begin that a batch is the first to read."""
TOPIC_IDS: Final = "headrace.topic-ids"
"""Which topics the positions are in."""

HEARTBEAT: Final = "headrace.heartbeat"
"""The time, in milliseconds since 1970, that the stream has reached without a record."""
TICK: Final = "headrace.tick"
"""What had been read when a batch without rows was last given: see `ticks`."""
SIGNS: Final = (INITIAL, FIRST, TOPIC_IDS, HEARTBEAT, TICK)


def write_journal(positions: Mapping[TopicPartition, int]) -> Journal:
    """The positions as Spark journals them, always in the same order.

    >>> write_journal({TopicPartition("b", 10): 7, TopicPartition("b", 9): 1, TopicPartition("a", 0): 3})
    {'a': {'0': 3}, 'b': {'9': 1, '10': 7}}
    """
    journal: Journal = {}
    for partition, offset in sorted(positions.items()):
        journal.setdefault(partition.topic, {})[str(partition.partition)] = offset
    return journal


def read_journal(journal: Mapping[str, Mapping[str, Any]]) -> Positions:
    """The positions that Spark journalled, without the signs."""
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, offsets in journal.items()
        if topic not in SIGNS
        for partition, offset in offsets.items()
    }


def initial_journal() -> Journal:
    """The start of a stream that has not read anything."""
    return {INITIAL: {}}


def is_initial(journal: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether a stream that begins here has not read anything."""
    return INITIAL in journal


def read_first(journal: Mapping[str, Mapping[str, Any]]) -> Positions:
    """Where the partitions begin that the batch which ends at `journal` is the first to read."""
    return read_journal(journal.get(FIRST, {}))


def read_topic_ids(journal: Mapping[str, Mapping[str, Any]]) -> TopicIds:
    """The ids of the topics that the positions are in; a journal of Spark's Kafka source has none."""
    return dict(journal.get(TOPIC_IDS, {}))


def read_sign(journal: Mapping[str, Mapping[str, Any]], sign: str) -> int:
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
