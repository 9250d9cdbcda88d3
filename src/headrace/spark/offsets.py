"""Offsets of a source: positions in topics, and the ranges that tasks read.

Positions have the JSON form of Spark's Kafka source:

    {"orders": {"0": 12, "1": 40}, "payments": {"0": 7}}

Options, checkpoints and consumer groups all use this form, and a query that moves from Spark's own Kafka
source to this one continues from its checkpoint.

The journal of a stream, which Spark keeps in the checkpoint, has markers next to the topics: what a repeated
batch must find again, and what makes a batch a new one.

    {"orders": {"0": 12},
     "headrace.topic-ids": {"orders": "Xk1qJ5mWQ9yPZ0aN3cBv7g"},
     "headrace.first": {"orders": {"0": 10}},
     "headrace.heartbeat": {"0": 1767225600000}, "headrace.tick": {"0": 12}}

Spark journals only where a batch ends. It asks the source where the first batch begins, several times and
again after a restart, and `latest` has another answer each time. So a new stream begins at a symbol
(`headrace.initial`), and the end of its first batch records which positions that symbol stands for.

A task costs 15 to 30 ms before its first row, and reads about a million rows a second. So a small batch is
one task, whatever its number of partitions, and a large one is split into equal shares, one for each core or
a multiple of that, across the boundaries of partitions.
"""

from __future__ import annotations

import json
from math import ceil
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from headrace.client.partition import TopicPartition
from headrace.spark.errors import BadOption

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence


Positions: TypeAlias = dict[TopicPartition, int]
"""The offset of the next record to read, for each partition."""

Journal: TypeAlias = dict[str, dict[str, Any]]
"""Positions as Spark journals them, and markers."""

TopicIds: TypeAlias = dict[str, str]
"""The id of each topic, which differs from that of a deleted topic with the same name."""

INITIAL: Final = "headrace.initial"
"""The start of a stream that has not read anything."""
FIRST: Final = "headrace.first"
"""Where the partitions begin that a batch is the first to read."""
TOPIC_IDS: Final = "headrace.topic-ids"
"""The ids of the topics of the positions."""

HEARTBEAT: Final = "headrace.heartbeat"
"""The time of the last heartbeat, in milliseconds since 1970."""
TICK: Final = "headrace.tick"
"""What had been read at the last tick: see `headrace.spark.event_time`."""
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
    """The positions in a journal, without the markers."""
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


def read_offset_marker(journal: Mapping[str, Mapping[str, Any]], sign: str) -> int:
    """A marker of the journal, or 0."""
    return int(journal.get(sign, {}).get("0", 0))


def write_offset_marker(sign: str, value: int) -> Journal:
    """The journal's entry of a marker."""
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


SMALL: Final = 40_000
"""Fewer records than this are not worth a second task."""
LARGE: Final = 4_000_000
"""More records than this are too many for one task: a task that fails is repeated as a whole."""
SLIVER: Final = 0.05
"""A split this close to the end of a partition, as a fraction of a task, is made at the end."""


class Range(NamedTuple):
    """The offsets of one partition from `start` up to, and without, `end`."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets; compaction may have left fewer records."""
        return self.end - self.start


def limit_offsets(start: Positions, latest: Positions, limit: int) -> Positions:
    """An end for each partition, so that together about `limit` offsets are read.

    Each partition gets a part of the limit in proportion to its backlog, so none starves and all of them
    reach the end together. A partition with a backlog gets at least one, so that a limit below the number
    of partitions still advances every one of them.
    """
    waiting = {partition: end - start[partition] for partition, end in latest.items()}
    total = sum(size for size in waiting.values() if size > 0)
    if total <= limit:
        return dict(latest)
    return {
        partition: start[partition] + (min(size, max(1, size * limit // total)) if size > 0 else size)
        for partition, size in waiting.items()
    }


def tasks(
    ranges: Iterable[Range], *, parallelism: int, at_least: int = 1, most_records: int | None = None
) -> list[tuple[Range, ...]]:
    """The ranges, split and grouped into tasks of about the same size; empty ranges are left out.

    There are at least `at_least` tasks where there are that many records; none has more than `most_records`.
    """
    full = sorted(given for given in ranges if given.size > 0)
    total = sum(given.size for given in full)
    if total == 0:
        return []
    count = _task_count(total, parallelism, at_least)
    if most_records is not None:
        count = max(count, ceil(total / most_records))
    share = ceil(total / count)
    # Moving a split makes a task a little larger, which only a hard limit forbids.
    sliver = 0 if most_records is not None else int(share * SLIVER)
    return _gather(full, share, sliver)


def _task_count(total: int, parallelism: int, at_least: int) -> int:
    useful = min(parallelism, ceil(total / SMALL))
    needed = ceil(total / LARGE)
    if needed > useful:
        needed = ceil(needed / parallelism) * parallelism
    return max(useful, needed, min(at_least, total))


def _gather(ranges: Sequence[Range], share: int, sliver: int) -> list[tuple[Range, ...]]:
    gathered: list[tuple[Range, ...]] = []
    task: list[Range] = []
    room = share
    for partition, first, end in ranges:
        start = first
        while start < end:
            size = end - start if end - start <= room + sliver else room
            task.append(Range(partition, start, start + size))
            start, room = start + size, room - size
            if room <= sliver:
                gathered.append(tuple(task))
                task, room = [], share
    return [*gathered, tuple(task)] if task else gathered


def ranges_between(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> list[Range]:
    """The ranges between two positions.

    A log that lost its newest records may end before the start: then nothing of it is read.
    """
    return [Range(partition, min(start[partition], until), until) for partition, until in end.items()]
