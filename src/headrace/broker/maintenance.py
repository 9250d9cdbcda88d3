"""What the broker does on the side: retention, compaction, checkpoints, and forgetting idle producers.

Compaction runs in a process of its own at low priority, so that the event loop keeps its latency; here it is
started, and what it made is swapped in between two reads.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from headrace.storage.compaction import recover_swaps, swap_in
from headrace.storage.compaction_planning import plan_compaction
from headrace.storage.compactor import run_compactor
from headrace.storage.errors import StorageError
from headrace.storage.partition import PartitionLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from headrace.broker.broker import Broker
    from headrace.broker.partition import Partition
    from headrace.broker.scheduling import TimeSlice
    from headrace.storage.compaction import CleanedGroup, CompactionRequest, CompactionResult

log = logging.getLogger(__name__)


class Maintenance:
    """The broker's upkeep, as two tasks that run until it stops."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._interval = broker.config.maintenance_interval_ms / 1000
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin the upkeep."""
        loop = self._broker.loop
        self._tasks = [loop.create_task(self._repeat(job)) for job in (self.tidy, self.compact)]

    async def close(self) -> None:
        """End the upkeep; a compaction under way is given up, which loses nothing."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _repeat(self, job: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                await job()
            except (StorageError, OSError):
                log.exception("upkeep failed and is tried again in %s s", self._interval)

    def _partitions(self) -> Iterator[Partition]:
        for topic in self._broker.topics:
            yield from topic.partitions

    async def tidy(self) -> None:
        """Apply retention, forget idle producers, close what a full disk left open, save the checkpoints."""
        now_ms = self._broker.clock.now_ms()
        time_slice = self._broker.scheduler.time_slice()
        try:
            await self._tidy_partitions(now_ms, time_slice)
        finally:
            time_slice.release()
        await self._broker.save_checkpoint()

    async def _tidy_partitions(self, now_ms: int, time_slice: TimeSlice) -> None:
        async for partition in time_slice.over(self._partitions()):
            if partition.log.is_deleted:
                continue
            freed = partition.log.apply_retention(now_ms)
            partition.log.producers.expire(now_ms)
            if freed:
                self._broker.overflow.start_moved(partition)
                log.info("%s-%d: %d bytes were past their retention", partition.topic, partition.index, freed)
            if isinstance(partition.log, PartitionLog) and partition.log.has_rolled:
                time_slice.release()  # the disk may take seconds, and long requests wait for this turn
                await self._broker.in_background(partition.log.close_rolled)

    async def compact(self) -> None:
        """Compact the partitions that are worth it, one after the other."""
        for partition in list(self._partitions()):
            if not isinstance(partition.log, PartitionLog):
                continue
            await asyncio.sleep(0)
            try:
                await self._compact(partition.log)
            except (StorageError, OSError) as fault:
                # The others must not wait for one that cannot be compacted; a deleted one need not be.
                if not partition.log.is_deleted:
                    log.warning("%s-%d was not compacted: %s", partition.topic, partition.index, fault)

    async def _compact(self, partition: PartitionLog) -> None:
        limit = self._broker.config.compaction_bytes_per_second or None
        request = plan_compaction(partition, self._broker.clock.now_ms(), limit)
        if request is not None:
            await self._swap_in(partition, request, await run_compactor(request))

    async def _swap_in(
        self, partition: PartitionLog, request: CompactionRequest, result: CompactionResult
    ) -> None:
        # The recovery point on disk must lie beyond what is replaced: a scan would not find in it every batch
        # by which a producer is known.
        await self._broker.save_checkpoint()
        for group in result.groups:
            present = {segment.base_offset for segment in partition.segments}
            if partition.is_deleted or not present.issuperset(group.replaces):
                # Retention or DeleteRecords was quicker: what is left is compacted the next time.
                recover_swaps(request.directory)
                return
            await self._swap_group(partition, group)
        partition.first_dirty_offset = max(partition.first_dirty_offset, result.first_dirty)
        log.info(
            "%s: compacted %d records to %d", request.directory, result.records_before, result.records_after
        )

    async def _swap_group(self, partition: PartitionLog, group: CleanedGroup) -> None:
        for segment in partition.segments:
            if segment.base_offset in group.replaces:
                segment.hold()
        partition.is_swapping = True
        try:
            await self._broker.in_background(partial(swap_in, partition.directory, group))
            partition.replace_segments(group.replaces)
        finally:
            partition.is_swapping = False
        # What DeleteRecords or retention passed over meanwhile goes now.
        partition.trim()
