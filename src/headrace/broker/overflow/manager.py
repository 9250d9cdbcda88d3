"""The backlog limiters of all partitions, and the delayed batches of producers.

A delayed batch is a copy in the broker's memory, so the size of all of them is limited; beyond that producers
get BackpressureTimeout at once. Delayed batches are tried again when a group commits offsets, when a group or
its offsets are deleted, after DeleteRecords and retention, and when the topic's settings change.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from headrace.broker.errors import error_code
from headrace.broker.overflow.limiter import BacklogLimiter, DelayedProduce
from headrace.broker.overflow.policy import BacklogPolicy, BackpressureTimeout, OverflowAction
from headrace.protocol.produce import PartitionResult

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.broker.clock import BrokerClock
    from headrace.broker.groups.records import OffsetKey
    from headrace.broker.offsets import CommittedOffsets
    from headrace.broker.shares import ShareGroupCoordinator
    from headrace.broker.shares.partitions import SharePartition
    from headrace.broker.topics import Partition, Topic, Topics
    from headrace.protocol.batch import BatchHeader

MAX_DELAYED_BYTES: Final = 128 * 2**20
"""The size of the delayed batches of all producers."""

DelayedResult = asyncio.Future[PartitionResult]


class BrokerGroupPositions:
    """Committed offsets of consumer groups, and start offsets of share groups.

    A group retains records of a partition from its first commit there until its offset is deleted or expires,
    with or without members: consumers that restart have still to read them. A group that does not exist
    retains no records.
    """

    def __init__(self, offsets: CommittedOffsets, shares: ShareGroupCoordinator, topics: Topics) -> None:
        self._offsets = offsets
        self._shares = shares
        self._topics = topics

    def position(self, group_id: str, topic: str, partition: int) -> int | None:
        """The committed offset of a consumer group, or the start offset of a share group."""
        committed = self._offsets.get(group_id, topic, partition)
        if committed is not None:
            return committed.offset
        found = self._topics.get(topic)
        share_partition = None if found is None else self._shares.get(group_id, found.id, partition)
        return None if share_partition is None else share_partition.state.start_offset


class OverflowManager:
    """Gives partitions their limiters, and delays producers."""

    def __init__(
        self, topics: Topics, offsets: CommittedOffsets, shares: ShareGroupCoordinator, clock: BrokerClock
    ) -> None:
        self._topics = topics
        self._clock = clock
        self._positions = BrokerGroupPositions(offsets, shares, topics)
        self._delayed_bytes = 0
        self.delayed_batches = 0
        """Batches that were delayed since the broker started, for metrics."""
        self._is_draining = False
        for topic in topics:
            self.update_topic(topic)
        topics.on_change(self.update_topic)
        offsets.on_change(self._offset_committed)
        shares.watch(self._share_partition_stored)

    def update_topic(self, topic: Topic) -> None:
        """Give each partition the limiter that the topic's settings require, and retry delayed batches."""
        policy = BacklogPolicy.of(topic.config)
        is_deleted = self._topics.get(topic.name) is not topic
        for partition in topic.partitions:
            limiter = partition.limiter
            if policy.action is OverflowAction.BUFFER or is_deleted:
                partition.limiter = None
            elif limiter is None:
                partition.limiter = BacklogLimiter(
                    topic.name, partition.index, partition.log, policy, self._positions
                )
            if limiter is not None:
                limiter.set_policy(policy)
                limiter.delayed.append_fitting()

    def start_moved(self, partition: Partition) -> None:
        """Retry delayed batches after the start offset of a partition has moved."""
        if partition.limiter is not None:
            partition.limiter.delayed.append_fitting()

    def _offset_committed(self, key: OffsetKey) -> None:
        topic = self._topics.get(key.topic)
        partition = topic.partition(key.partition) if topic is not None else None
        if partition is not None:
            self._position_changed(partition, key.group_id)

    def _share_partition_stored(self, share_partition: SharePartition) -> None:
        self.start_moved(share_partition.partition)  # records that all share groups processed are deleted
        self._position_changed(share_partition.partition, share_partition.key.group)

    def _position_changed(self, partition: Partition, group_id: str) -> None:
        limiter = partition.limiter
        if limiter is not None and group_id in limiter.policy.groups:
            limiter.invalidate()
            if limiter.delayed:
                # Later: a commit of many offsets is completed first.
                self._clock.call_later(0, limiter.delayed.append_fitting)

    # ---------------------------------------------------------------- delayed batches

    def delay(
        self,
        limiter: BacklogLimiter,
        append: Callable[[], PartitionResult],
        header: BatchHeader,
        *,
        timeout_ms: int,
        stage: Callable[[], Awaitable[None]] | None = None,
        discard_staged: Callable[[], None] | None = None,
    ) -> DelayedResult:
        """The result of a batch that waits for room, at most `timeout_ms` and the topic's timeout."""
        result: DelayedResult = asyncio.get_running_loop().create_future()
        size = header.size
        if self._is_draining or self._delayed_bytes + size > MAX_DELAYED_BYTES:
            result.set_result(self._time_out(limiter, header.count))
            return result
        self._delayed_bytes += size
        self.delayed_batches += 1
        delayed = DelayedProduce(append, result, header, stage, discard_staged)
        limiter.delayed.add(delayed)

        def expire() -> None:
            if result.done():  # in the same turn of the loop, so that the timer could not be stopped
                return
            for each in limiter.delayed.remove_from(delayed):
                each.complete(self._time_out(limiter, each.header.count))

        timer = self._clock.call_later(min(timeout_ms, limiter.policy.timeout_ms), expire)

        def completed(_: DelayedResult) -> None:
            timer.cancel()
            self._delayed_bytes -= size

        result.add_done_callback(completed)
        return result

    def _time_out(self, limiter: BacklogLimiter, records: int) -> PartitionResult:
        limiter.counts.timed_out_records += records
        fault = BackpressureTimeout(f"{limiter.describe_full()}: there was no room in time, try again later")
        return PartitionResult(limiter.index, error_code(fault), message=str(fault))

    def drain(self) -> None:
        """Fail all delayed batches, and delay no more: the broker is stopping."""
        self._is_draining = True
        for topic in self._topics:
            for partition in topic.partitions:
                if (limiter := partition.limiter) is not None:
                    code = error_code(BackpressureTimeout("the broker is stopping: try again later"))
                    limiter.delayed.fail_all(PartitionResult(limiter.index, code))
