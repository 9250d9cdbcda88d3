"""The flush setting: when appended records are synced to disk, and when they count as stored.

With `flush=always` an acknowledgment waits for fdatasync. All appends that arrive during a sync share the
next one: group commit.
"""

from __future__ import annotations

import logging
from time import perf_counter
from typing import TYPE_CHECKING

from headrace.broker.config import Flush
from headrace.metrics.families import Histogram
from headrace.storage.errors import DiskError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable
    from concurrent.futures import Executor

    from headrace.broker.archive_acks import TailUploader
    from headrace.broker.topics import Partition

log = logging.getLogger(__name__)


class Flusher:
    """Syncs partitions as the broker's flush setting requires."""

    def __init__(
        self,
        policy: Flush,
        executor: Executor,
        loop: asyncio.AbstractEventLoop,
        on_fault: Callable[[Exception], None],
    ) -> None:
        self.waits = policy is Flush.ALWAYS
        """Whether acknowledgments wait for a sync."""
        self.tails: TailUploader | None = None
        """Uploads records whose acknowledgments wait for the archive."""
        self._keeps_dirty = policy is not Flush.OS
        self._executor = executor
        self._loop = loop
        self._on_fault = on_fault
        self._dirty: set[Partition] = set()
        self._waiting: list[asyncio.Future[None]] = []
        """Waiters for the next sync."""
        self._covered: list[asyncio.Future[None]] = []
        """Waiters for the sync in progress."""
        self._task: asyncio.Task[None] | None = None
        self._fault: DiskError | None = None
        self.latency = Histogram()
        """How long syncs took, for metrics."""

    def appended(self, partition: Partition) -> None:
        """Called after each append; notifies readers when they may read the records."""
        if self.tails is not None and partition.log.waits_for_archive:
            self.tails.appended(partition)
        if self._keeps_dirty and partition.log.needs_sync:
            self._dirty.add(partition)
        if self.waits and partition.log.needs_sync:
            # Also with acks=0: consumers read no record before it is synced.
            self._start()
        elif partition.waiters:
            partition.notify()

    async def durable(self) -> None:
        """Return when everything appended before the call is as durable as the flush setting promises."""
        if self._fault is not None:
            raise self._fault
        if self.waits and (self._dirty or self._task is not None):
            future = self._loop.create_future()
            # A partition that is no longer dirty is covered by the sync in progress.
            (self._waiting if self._dirty else self._covered).append(future)
            self._start()
            await future

    def sync_soon(self) -> None:
        """Start to sync partitions with unsynced records (for `flush=interval`)."""
        if self._dirty:
            self._start()

    def _start(self) -> None:
        if self._task is None and self._fault is None:
            self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            while (self._dirty or self._waiting) and self._fault is None:
                dirty, self._dirty = self._dirty, set()
                self._covered, self._waiting = self._waiting, []
                await self._sync(dirty)
        finally:
            self._task = None

    async def _sync(self, dirty: set[Partition]) -> None:
        partitions = [partition for partition in dirty if not partition.log.is_deleted]
        started = perf_counter()
        try:
            reached = await self._loop.run_in_executor(self._executor, _sync_all, partitions)
        except OSError as fault:
            self._fail(fault)
            return
        self.latency.observe(perf_counter() - started)
        for partition, end_offset in zip(partitions, reached, strict=True):
            partition.log.synced(end_offset)
            partition.notify()
        for future in self._covered:
            if not future.done():
                future.set_result(None)

    def _fail(self, fault: OSError) -> None:
        # The kernel may have dropped the pages that it could not write, and the next sync would succeed. So
        # nothing is acknowledged any more, and recovery at the next start finds what is on disk.
        log.critical("Syncing to disk failed, the broker stops: %s", fault)
        self._fault = DiskError(f"syncing to disk failed: {fault.strerror}; repair the disk, then restart")
        for future in (*self._covered, *self._waiting):
            # Cancelled if the client has disconnected.
            if not future.done():
                future.set_exception(self._fault)
        self._waiting.clear()
        self._on_fault(fault)


def _sync_all(partitions: Iterable[Partition]) -> list[int]:
    return [partition.log.sync() for partition in partitions]
