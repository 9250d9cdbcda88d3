"""Background maintenance: retention, compaction, checkpoints, and expiration of producer ids.

Compaction runs in a separate process at low priority, to keep the latency of the event loop low. This module
starts it, and swaps in the cleaned segments.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from headrace.storage.compaction import recover_swaps, swap_in
from headrace.storage.compaction.compactor import run_compactor
from headrace.storage.compaction.plan import plan_compaction
from headrace.storage.errors import StorageError
from headrace.storage.partition import PartitionLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from headrace.broker.broker import Broker
    from headrace.broker.scheduling import TimeSlice
    from headrace.broker.topics import Partition
    from headrace.storage.compaction import CleanedGroup, CompactionRequest, CompactionResult

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CompactionCounts:
    """The compactions since the broker started, for metrics."""

    runs: int = 0
    read_bytes: int = 0
    reclaimed_bytes: int = 0


class Maintenance:
    """Two tasks that run until the broker stops: cleanup and compaction."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._interval = broker.config.maintenance_interval_ms / 1000
        self._tasks: list[asyncio.Task[None]] = []
        self.compactions = CompactionCounts()

    def start(self) -> None:
        """Start the tasks."""
        loop = self._broker.loop
        self._tasks = [loop.create_task(self._repeat(job)) for job in (self.clean_up, self.compact)]

    async def close(self) -> None:
        """Stop the tasks; a compaction in progress is discarded."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _repeat(self, job: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                await job()
            except (StorageError, OSError):
                log.exception("Maintenance failed and is retried in %s s", self._interval)

    def _partitions(self) -> Iterator[Partition]:
        for topic in self._broker.topics:
            yield from topic.partitions
        yield from self._broker.topics.hidden

    async def clean_up(self) -> None:
        """Apply retention, expire producer ids, close rolled segments, and save the checkpoints."""
        now_ms = self._broker.clock.now_ms()
        time_slice = self._broker.scheduler.time_slice()
        try:
            await self._clean_up_partitions(now_ms, time_slice)
        finally:
            time_slice.release()
        await self._broker.save_checkpoint()

    async def _clean_up_partitions(self, now_ms: int, time_slice: TimeSlice) -> None:
        async for partition in time_slice.over(self._partitions()):
            if partition.log.is_deleted:
                continue
            freed = partition.log.apply_retention(now_ms)
            partition.log.producers.expire(now_ms)
            if freed:
                self._broker.overflow.start_moved(partition)
                log.info("%s-%d: retention deleted %d bytes", partition.topic, partition.index, freed)
            if isinstance(partition.log, PartitionLog) and partition.log.has_rolled:
                time_slice.release()  # the disk may take seconds, and long requests wait for this time slice
                await self._broker.in_background(partition.log.close_rolled)

    async def compact(self) -> None:
        """Compact the partitions that need it, one after the other."""
        for partition in list(self._partitions()):
            if not isinstance(partition.log, PartitionLog):
                continue
            await asyncio.sleep(0)
            try:
                await self._compact(partition.log)
            except (StorageError, OSError) as fault:
                # A partition that cannot be compacted must not block the others.
                if not partition.log.is_deleted:
                    log.warning("Compaction of %s-%d failed: %s", partition.topic, partition.index, fault)

    async def _compact(self, partition: PartitionLog) -> None:
        limit = self._broker.config.compaction_bytes_per_second or None
        request = plan_compaction(partition, self._broker.clock.now_ms(), limit)
        if request is not None:
            await self._swap_in(partition, request, await run_compactor(request))

    async def _swap_in(
        self, partition: PartitionLog, request: CompactionRequest, result: CompactionResult
    ) -> None:
        # The recovery point on disk must be after the replaced segments: recovery restores producer state
        # from batches, some of which compaction has removed.
        await self._broker.save_checkpoint()
        for group in result.groups:
            present = {segment.base_offset for segment in partition.segments}
            if partition.is_deleted or not present.issuperset(group.replaces):
                # Retention or DeleteRecords has removed segments: the rest is compacted the next time.
                recover_swaps(request.directory)
                return
            await self._swap_group(partition, group)
        partition.first_dirty_offset = max(partition.first_dirty_offset, result.first_dirty)
        self.compactions.runs += 1
        self.compactions.read_bytes += result.bytes_before
        self.compactions.reclaimed_bytes += result.bytes_before - result.bytes_after
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
        # Deletions by DeleteRecords or retention were postponed during the swap.
        partition.trim()
