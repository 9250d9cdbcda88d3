"""The backlog limiter of one partition: admits, rejects or delays each new batch.

The backlog in bytes has to be looked up in the log, so the limiter computes it only when the room that it
computed last is used up. In the meantime the room can only have grown; when a group commits an offset, the
limiter computes it again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.broker.overflow.policy import (
    BacklogPolicy,
    BacklogSize,
    Backpressure,
    OverflowAction,
    TopicFull,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.protocol.batch import BatchHeader
    from headrace.protocol.produce import PartitionResult
    from headrace.storage.log import Log


class GroupPositions(Protocol):
    """The positions of consumer groups and share groups in partitions."""

    def position(self, group_id: str, topic: str, partition: int) -> int | None:
        """The first offset that the group has not processed; None if the group retains no records."""
        ...


class Backlog(NamedTuple):
    """The records that count against the limit."""

    first_offset: int
    size: BacklogSize
    slowest: str | None
    """The group with the most unread records."""


class OverflowCounts:
    """Records that a limiter dropped, rejected or delayed too long since the broker started."""

    __slots__ = ("dropped_records", "refused_records", "timed_out_records")

    def __init__(self) -> None:
        self.dropped_records = 0
        """Records that were deleted before every group had read them."""
        self.refused_records = 0
        self.timed_out_records = 0


class DelayedProduce(NamedTuple):
    """A batch that waits for room in its partition."""

    append: Callable[[], PartitionResult]
    """Stores the batch and returns its result; raises `Backpressure` while it does not fit."""
    result: asyncio.Future[PartitionResult]
    header: BatchHeader
    stage: Callable[[], Awaitable[None]] | None = None
    """Writes a large batch in steps, so that `append` only has to complete it."""
    discard_staged: Callable[[], None] | None = None

    def complete(self, result: PartitionResult) -> None:
        """Respond to the producer, unless it has disconnected."""
        if not self.result.done():
            self.result.set_result(result)


class DelayedProduceQueue:
    """Delayed batches of one partition, first in, first out; a small batch never overtakes a large one."""

    def __init__(self, fits: Callable[[BatchHeader], bool]) -> None:
        self._fits = fits
        self._queue: deque[DelayedProduce] = deque()
        self._staging: asyncio.Task[None] | None = None
        """Stores the first batch, which is large, in steps."""

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, delayed: DelayedProduce) -> None:
        """Append a batch to the queue."""
        self._queue.append(delayed)

    def remove_from(self, delayed: DelayedProduce) -> list[DelayedProduce]:
        """Remove a batch and all batches after it: a producer's next batch is invalid without it."""
        position = self._queue.index(delayed)
        removed = [self._queue.pop() for _ in range(len(self._queue) - position)]
        return removed[::-1]

    def append_fitting(self) -> None:
        """Store batches in order until one does not fit; a large one is stored in steps."""
        while self._queue and self._staging is None:
            first = self._queue[0]
            if first.stage is not None and not self._fits(first.header):
                return
            if first.stage is not None:
                self._staging = asyncio.get_running_loop().create_task(self._append_large(first, first.stage))
                return
            try:
                result = first.append()
            except Backpressure:
                return
            self._queue.popleft()
            first.complete(result)

    async def _append_large(self, first: DelayedProduce, stage: Callable[[], Awaitable[None]]) -> None:
        try:
            await stage()
            if not first.result.done():  # else it has timed out
                first.complete(first.append())
        except Backpressure:
            self._staging = None
            return  # the limit was lowered meanwhile
        except Exception as fault:  # noqa: BLE001  the connection logs it
            if not first.result.done():
                first.result.set_exception(fault)
        finally:
            assert first.discard_staged is not None
            first.discard_staged()
        self._staging = None
        if self._queue and self._queue[0] is first:
            self._queue.popleft()
        self.append_fitting()

    def fail_all(self, result: PartitionResult) -> None:
        """Complete all batches with the same error."""
        while self._queue:
            self._queue.popleft().complete(result)


class BacklogLimiter:
    """Applies a topic's `BacklogPolicy` to one partition."""

    def __init__(
        self, topic: str, index: int, log: Log, policy: BacklogPolicy, positions: GroupPositions
    ) -> None:
        self.topic = topic
        self.index = index
        self.policy = policy
        self.counts = OverflowCounts()
        self.delayed = DelayedProduceQueue(self.fits)
        self._log = log
        self._positions = positions
        self._end_offset_limit = -1
        self._written_bytes_limit = -1

    def set_policy(self, policy: BacklogPolicy) -> None:
        """Replace the policy."""
        self.policy = policy
        self.invalidate()

    def invalidate(self) -> None:
        """Forget the computed room: a group's position has changed, and may have moved back."""
        self._end_offset_limit = self._written_bytes_limit = -1

    def admit(self, header: BatchHeader) -> None:
        """Return if the batch may be stored now, or raise `TopicFull` or `Backpressure`."""
        incoming = BacklogSize(header.last_offset_delta + 1, header.size)
        log = self._log
        if (
            log.end_offset + incoming.records <= self._end_offset_limit
            and log.written_bytes + incoming.bytes <= self._written_bytes_limit
        ):
            return
        backlog = self._compute_room()
        if self.policy.limit.fits(backlog.size, incoming):
            return
        if self.policy.action is OverflowAction.DROP_OLDEST:
            self._drop_oldest(backlog, incoming)
        elif self.policy.action is OverflowAction.BLOCK:
            raise Backpressure(self._describe_full(backlog))
        else:
            self.counts.refused_records += incoming.records
            raise TopicFull(self._describe_full(backlog))

    def fits(self, header: BatchHeader) -> bool:
        """Whether `admit` would return now."""
        if self.policy.action is not OverflowAction.BLOCK or self._log.is_deleted:
            return True
        incoming = BacklogSize(header.last_offset_delta + 1, header.size)
        return self.policy.limit.fits(self._compute_room().size, incoming)

    # ---------------------------------------------------------------- the backlog

    def backlog(self) -> Backlog:
        """The current backlog."""
        log = self._log
        first_offset, slowest = log.start_offset, None
        positions = {
            group: position
            for group in self.policy.groups
            if (position := self._positions.position(group, self.topic, self.index)) is not None
        }
        if self.policy.groups:
            slowest = min(positions, key=positions.__getitem__, default=None)
            first_offset = max(first_offset, log.end_offset if slowest is None else positions[slowest])
        records = max(log.end_offset - first_offset, 0)
        size = log.size_from(first_offset) if records and self.policy.limit.bytes >= 0 else 0
        return Backlog(first_offset, BacklogSize(records, size), slowest)

    def _compute_room(self) -> Backlog:
        """The backlog; remembers how far the log may grow before it has to be computed again."""
        backlog, limit, log = self.backlog(), self.policy.limit, self._log
        self._end_offset_limit = log.end_offset - backlog.size.records + limit.max_records
        self._written_bytes_limit = log.written_bytes - backlog.size.bytes + limit.max_bytes
        return backlog

    def _drop_oldest(self, backlog: Backlog, incoming: BacklogSize) -> None:
        log, retained = self._log, self.policy.limit.retained(incoming)
        start_offset = log.end_offset - retained.records
        if self.policy.limit.bytes >= 0:
            start_offset = max(start_offset, log.offset_within(retained.bytes))
        # Records that are not synced yet cannot be deleted: the next batch deletes them.
        start_offset = min(max(start_offset, log.start_offset), log.high_watermark)
        self.counts.dropped_records += max(start_offset - backlog.first_offset, 0)
        log.move_start(start_offset)
        self._compute_room()

    def _describe_full(self, backlog: Backlog) -> str:
        size = f"{backlog.size.records} records"
        if self.policy.limit.bytes >= 0:
            size += f" of {backlog.size.bytes} bytes"
        unread = f" that group {backlog.slowest} has not read" if backlog.slowest is not None else ""
        return (
            f"partition {self.index} of {self.topic} is full: it holds {size}{unread}, and its limit is "
            f"{self.policy.limit} (headrace.overflow={self.policy.action})"
        )

    def describe_full(self) -> str:
        """Why a batch does not fit now."""
        return self._describe_full(self.backlog())

    def status(self) -> dict[str, object]:
        """The backlog and the counts, as `headrace.overflow.status` shows them."""
        backlog, counts = self.backlog(), self.counts
        return {
            "partition": self.index,
            "backlog_records": backlog.size.records,
            "backlog_bytes": self._log.size_from(backlog.first_offset) if backlog.size.records else 0,
            "full_percent": round(100 * self.policy.limit.utilization(backlog.size), 1),
            "slowest_group": backlog.slowest,
            "dropped_records": counts.dropped_records,
            "refused_records": counts.refused_records,
            "timed_out_records": counts.timed_out_records,
            "waiting_batches": len(self.delayed),
        }
