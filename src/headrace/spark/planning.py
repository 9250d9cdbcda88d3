"""How much is read at once, and by how many tasks: decisions about ranges of offsets, without I/O.

A task costs 15 to 30 ms before its first row, and reads about a million rows a second. So a small batch is
one task, whatever its number of partitions, and a large one is cut into equal shares, one for each core or
a multiple of that, across the borders of partitions.
"""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.client.partition import TopicPartition
    from headrace.spark.positions import Positions

SMALL: Final = 40_000
"""So few records are not worth a second task."""
LARGE: Final = 4_000_000
"""So many records are more than one task should hold: what fails is read again as a whole."""
SLIVER: Final = 0.05
"""A cut this close to a partition's border, as a part of a share, is made at the border."""


class Range(NamedTuple):
    """The offsets of one partition from `start` up to, and without, `end`."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets lie in it; compaction may have left fewer records."""
        return self.end - self.start


def share_out(start: Positions, latest: Positions, limit: int) -> Positions:
    """An end for each partition, so that together about `limit` offsets are read.

    Each partition gets its part of the limit in proportion to what it has to give, so none starves and
    all of them reach the end together. A partition that has something gets at least one, so that a limit
    below the number of partitions still moves every one of them.
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
    """The ranges, cut and gathered into tasks of about the same size; empty ranges are left out.

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
    # Only a hard limit forbids to move a cut: a moved one makes a task a little larger.
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
    """What lies between two positions.

    A log that lost its newest records ends before the start: nothing of it is read.
    """
    return [Range(partition, min(start[partition], until), until) for partition, until in end.items()]
