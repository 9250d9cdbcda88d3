"""Records that were to be read and are gone: an error that says so, or a warning and a count.

Retention removes the old end of a partition; deleting a topic and making it anew removes all of it. Either
way a reader that was promised those records has lost them. `failOnDataLoss` decides whether it stops.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.spark.errors import DataLost
from headrace.spark.planning import Range

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.client.partition import TopicPartition
    from headrace.spark.positions import Positions

log = logging.getLogger("headrace.spark")


def report(partition: TopicPartition, start: int, end: int, found: str, *, fail: bool) -> None:
    """Say that the offsets from `start` up to `end` are lost, in an error or in a warning."""
    _complain(f"{partition} lost the offsets {start} to {end - 1}: {found}", end - start, fail=fail)


def report_gone(partition: TopicPartition, position: int, *, fail: bool) -> None:
    """Say that a partition is gone that was read up to `position`: nobody knows what it held beyond."""
    _complain(f"{partition} was read up to {position} and no longer exists", 0, fail=fail)


def report_recreated(topic: str, *, fail: bool) -> None:
    """Say that a topic was deleted and re-created: what the old one held beyond the positions is lost."""
    _complain(f"the topic {topic!r} was deleted and re-created since it was last read", 0, fail=fail)


def _complain(lost: str, count: int, *, fail: bool) -> None:
    if fail:
        raise DataLost(
            f"{lost}. Retention removed them, or the topic was deleted. To continue without them, reset the "
            "job (`headrace job reset JOB --to start`), or set the option failOnDataLoss of a plain query to "
            "false."
        )
    log.warning("data loss, %d offsets skipped: %s", count, lost)


def what_is_left(ranges: Iterable[Range], first: Positions, end: Positions, *, fail: bool) -> list[Range]:
    """The parts of `ranges` that the log still has, from `first` up to `end`; what is lost is reported."""
    return [left for wanted in ranges if (left := _left(wanted, first, end, fail=fail)).size > 0]


def _left(wanted: Range, first: Positions, end: Positions, *, fail: bool) -> Range:
    partition, start, until = wanted
    if wanted.size <= 0:
        return wanted
    if partition not in first:
        report(partition, start, until, "the partition no longer exists", fail=fail)
        return Range(partition, until, until)
    found = f"the log has {first[partition]} to {end[partition] - 1}"
    if start < first[partition]:
        report(partition, start, min(first[partition], until), found, fail=fail)
    if until > end[partition]:
        report(partition, max(start, end[partition]), until, found, fail=fail)
    return Range(partition, max(start, first[partition]), min(until, end[partition]))
