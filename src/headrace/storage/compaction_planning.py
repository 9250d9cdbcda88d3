"""When a partition is worth compacting, and how far it may be: the decision, not the work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.storage.compaction import CompactionRequest

if TYPE_CHECKING:
    from headrace.storage.partition import PartitionLog


def plan_compaction(log: PartitionLog, now_ms: int, io_bytes_per_s: int | None) -> CompactionRequest | None:
    """What to compact now; None when too little has changed since the last time."""
    if not log.config.is_compacted or log.is_deleted:
        return None
    _roll_when_overdue(log, now_ms)
    clean_until = _cleanable_end(log, now_ms)
    closed = [segment for segment in log.segments[:-1] if segment.base_offset < clean_until]
    ends = [segment.base_offset for segment in log.segments[1:]]
    # A segment of which only a part is dirty counts whole.
    dirty_bytes = sum(s.size for s, end in zip(closed, ends, strict=False) if end > log.first_dirty_offset)
    total_bytes = sum(segment.size for segment in closed)
    if clean_until <= log.first_dirty_offset or not dirty_bytes:
        return None
    is_overdue = _is_overdue(log, now_ms)
    if not is_overdue and dirty_bytes / total_bytes < log.config.min_cleanable_dirty_ratio:
        return None
    segments_end = log.segments[len(closed)].base_offset
    return CompactionRequest(
        directory=log.directory,
        segments=tuple(segment.base_offset for segment in closed),
        segments_end=segments_end,
        first_dirty=log.first_dirty_offset,
        clean_until=clean_until,
        now_ms=now_ms,
        delete_retention_ms=log.config.delete_retention_ms,
        segment_bytes=log.config.segment_bytes,
        index_interval_bytes=log.config.index_interval_bytes,
        active_producers=log.producers.active(),
        # To the end of the segments: those behind `clean_until` stay in the index of a replaced segment.
        aborted=tuple(log.aborted.between(log.start_offset, segments_end)),
        io_bytes_per_s=io_bytes_per_s,
    )


def _cleanable_end(log: PartitionLog, now_ms: int) -> int:
    """The first offset that compaction may not touch: active, unstable, or too young."""
    end = min(log.active.base_offset, log.recovery_point)
    if log.producers.first_unstable_offset is not None:
        # Up to the segment that holds the first open transaction: its boundaries are the batches' own.
        unstable = log.producers.first_unstable_offset
        end = min(end, max((s.base_offset for s in log.segments if s.base_offset <= unstable), default=0))
    lag_ms = log.config.min_compaction_lag_ms
    for segment in log.segments[:-1]:
        if segment.base_offset >= end:
            break
        if lag_ms and segment.load_age_ms() > now_ms - lag_ms:
            return segment.base_offset
    return end


def _is_overdue(log: PartitionLog, now_ms: int) -> bool:
    """Whether a record waits for compaction longer than `max.compaction.lag.ms` allows."""
    oldest_dirty = next((s for s in log.segments if s.base_offset >= log.first_dirty_offset and s.size), None)
    if oldest_dirty is None:
        return False
    return now_ms - oldest_dirty.load_first_timestamp() > log.config.max_compaction_lag_ms


def _roll_when_overdue(log: PartitionLog, now_ms: int) -> None:
    if log.active.size and _is_overdue(log, now_ms) and log.active.base_offset <= log.first_dirty_offset:
        log.roll()
