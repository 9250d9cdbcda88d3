"""Topics with `headrace.queue=true`: what all share groups are done with is deleted, and its space freed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.storage.partition import PartitionLog

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.shares.share import Share
    from headrace.storage.log import Log

ROLL_BYTES: Final = 1 << 20
"""When nothing in it is wanted any more, a segment of this size is closed, so that it can be deleted."""


def reclaim(log: Log, shares: Sequence[Share]) -> None:
    """Move the start of a queue's log to where its slowest share group is."""
    if not log.config.headrace_queue or log.is_deleted or not shares:
        return
    done = min(log.high_watermark, *(share.state.start for share in shares))
    if done <= log.start_offset:
        return
    if isinstance(log, PartitionLog) and done == log.end_offset:
        _roll(log)
    log.move_start(done)


def _roll(log: PartitionLog) -> None:
    if log.active.size >= min(ROLL_BYTES, log.config.segment_bytes):
        log.roll()
