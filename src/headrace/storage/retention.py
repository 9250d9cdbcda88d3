"""Which records a topic no longer keeps, by age and by size."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.storage.partition import PartitionLog


def apply_retention(log: PartitionLog, now_ms: int) -> int:
    """Delete the segments that are too old or too many; gives how many bytes went.

    Whole segments go, the oldest first, and the active one only by age: it is closed for that.
    """
    before = log.size
    log.trim()
    if not log.config.is_deleted:
        return before - log.size
    if _is_expired_whole(log, now_ms):
        log.roll()
    start = max(_start_by_age(log, now_ms), _start_by_size(log))
    if start > log.start_offset:
        log.move_start(min(start, log.high_watermark))
    return before - log.size


def _is_expired_whole(log: PartitionLog, now_ms: int) -> bool:
    return log.active.size > 0 and _is_expired(log, len(log.segments) - 1, now_ms)


def _is_expired(log: PartitionLog, position: int, now_ms: int) -> bool:
    retention_ms = log.config.retention_ms
    return retention_ms >= 0 and log.segments[position].load_age_ms() < now_ms - retention_ms


def _start_by_age(log: PartitionLog, now_ms: int) -> int:
    start = log.start_offset
    for position in range(len(log.segments) - 1):
        if not _is_expired(log, position, now_ms):
            break
        start = log.segments[position + 1].base_offset
    return start


def _start_by_size(log: PartitionLog) -> int:
    start, surplus = log.start_offset, log.size - log.config.retention_bytes
    if log.config.retention_bytes < 0:
        return start
    for segment, follower in zip(log.segments, log.segments[1:], strict=False):
        surplus -= segment.size
        if surplus < 0:
            break
        start = follower.base_offset
    return start
