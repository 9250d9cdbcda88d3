"""Share partitions (one share group on one partition) with their logs, timers and waiting fetches."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.clock import DeadlineTimer
from headrace.broker.shares.reader import SharePartitionReader
from headrace.errors import HeadraceError
from headrace.storage.errors import StorageError
from headrace.storage.partition import PartitionLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from uuid import UUID

    from headrace.broker.clock import BrokerClock
    from headrace.broker.shares.batch_cache import BatchCache
    from headrace.broker.shares.dead_letters import DeadLetterWriter
    from headrace.broker.shares.partition_state import DeliveredRange, SharePartitionState
    from headrace.broker.shares.records import SharePartitionKey, ShareStateLog
    from headrace.broker.shares.settings import ShareGroupConfig, ShareSettings
    from headrace.broker.topics import Partition
    from headrace.protocol.compression import Bytes
    from headrace.storage.log import Log

log = logging.getLogger(__name__)

MIN_ROLL_BYTES: Final = 1 << 20
"""An active segment of this size is rolled when all its records are acknowledged, and then deleted."""


class Acquisition(NamedTuple):
    """The records that a member acquired: batches, and which of their records are acquired."""

    batches: list[Bytes]
    size: int
    delivered: list[DeliveredRange]


NO_RECORDS: Final = Acquisition([], 0, [])


class SharePartition:
    """One share group on one partition."""

    def __init__(
        self,
        key: SharePartitionKey,
        partition: Partition,
        state: SharePartitionState,
        clock: BrokerClock,
        cache: BatchCache,
        *,
        max_blocked: int,
        on_deadline: Callable[[SharePartition], None],
    ) -> None:
        self.key = key
        self.partition = partition
        self.state = state
        self.is_writing_dead_letters = False
        self.is_closed = False
        self._clock = clock
        self._cache = cache
        self._reader = SharePartitionReader(partition.log, key.group, max_blocked, cache, self.wake)
        self._on_deadline = on_deadline
        self._timer = DeadlineTimer(clock, lambda: on_deadline(self))
        self._waiting: dict[Callable[[], None], None] = {}
        self._is_scheduled = False

    @property
    def lag(self) -> int:
        """The number of records that are not acknowledged."""
        return self.state.lag(self.partition.log.high_watermark)

    def configure(self, config: ShareGroupConfig) -> None:
        """Change the settings."""
        self.state.config = config

    def acquire(self, member: str, max_records: int, max_bytes: int) -> Acquisition:
        """Acquire records for a member."""
        state, now_ms = self.state, self._clock.now_ms()
        wanted = min(max_records, state.free_locks())
        if wanted <= 0 or max_bytes <= 0 or self._reader.is_opening:
            return NO_RECORDS
        archiving = len(state.progress.archiving)
        self._reader.begin()
        try:
            self._reader.read_new(state, wanted, now_ms)
            offsets = state.acquire(member, wanted, now_ms)
            found = self._reader.read_acquired(offsets, max_bytes)
        finally:
            self._reader.finish()
        state.undo_acquire(found.left)
        state.discard(found.missing)
        self.set_timer()
        if len(state.progress.archiving) > archiving:
            self._clock.call_later(0, self._store_unreadable)
        return Acquisition(found.batches, found.size, state.delivered_ranges(found.included))

    def _store_unreadable(self) -> None:
        """Store that a batch cannot be read, and write its dead letter."""
        if not self.is_closed:
            self._on_deadline(self)

    def set_timer(self) -> None:
        """Set the timer to the next end of a lock or a delay."""
        self._timer.set(self.state.next_deadline_ms())

    # ---------------------------------------------------------------- waiting fetches

    def wait(self, call: Callable[[], None]) -> None:
        """Have `call` called when records may be available, in the order of these calls."""
        if not self._waiting:
            self.partition.waiters.add(self.wake)
        self._waiting[call] = None
        if self._has_records:
            self.wake()

    def stop_waiting(self, call: Callable[[], None]) -> None:
        """Do not call `call` any more."""
        self._waiting.pop(call, None)
        if not self._waiting:
            self.partition.waiters.discard(self.wake)

    def wake(self) -> None:
        """Call the waiting fetches in the next turn of the event loop."""
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            self._clock.call_later(0, self._call_waiting)

    def _call_waiting(self) -> None:
        self._is_scheduled = False
        for call in tuple(self._waiting):
            if not self._has_records:
                return
            call()
        if self._waiting and self._has_records:
            self.wake()

    @property
    def _has_records(self) -> bool:
        """Whether a fetch may acquire records; without free locks no fetch is woken."""
        state = self.state
        if self._reader.is_opening:
            return False
        return state.free_locks() > 0 and (state.available > 0 or self._reader.has_more(state))

    def call_all_waiting(self) -> None:
        """Call all waiting fetches, whether there are records or not."""
        for call in tuple(self._waiting):
            call()

    def close(self) -> None:
        """Stop the timer, and remove all waiting fetches."""
        self.is_closed = True
        self._timer.stop()
        self._cache.drop_held(self._reader)
        for call in tuple(self._waiting):
            self.stop_waiting(call)


class SharePartitionManager:
    """All share partitions of a broker: stores their changes, writes dead letters and deletes old records."""

    def __init__(
        self,
        state: ShareStateLog,
        clock: BrokerClock,
        settings: ShareSettings,
        cache: BatchCache,
        dead_letters: DeadLetterWriter,
    ) -> None:
        self._state = state
        self._clock = clock
        self._settings = settings
        self._cache = cache
        self._dead_letters = dead_letters
        self._share_partitions: dict[SharePartitionKey, SharePartition] = {}
        self._by_partition: dict[tuple[UUID, int], list[SharePartition]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watchers: list[Callable[[SharePartition], None]] = []

    def __iter__(self) -> Iterator[SharePartition]:
        return iter(list(self._share_partitions.values()))

    def watch(self, on_change: Callable[[SharePartition], None]) -> None:
        """Have `on_change` called when a share partition may have advanced."""
        self._watchers.append(on_change)

    def get(self, key: SharePartitionKey) -> SharePartition | None:
        """The share partition with that key, if it exists."""
        return self._share_partitions.get(key)

    def add(self, key: SharePartitionKey, partition: Partition, state: SharePartitionState) -> SharePartition:
        """Add a share partition with its new or restored state."""
        share_partition = SharePartition(
            key,
            partition,
            state,
            self._clock,
            self._cache,
            max_blocked=self._settings.max_blocked,
            on_deadline=self._deadline_passed,
        )
        self._share_partitions[key] = share_partition
        self._by_partition.setdefault((key.topic, key.partition), []).append(share_partition)
        return share_partition

    def recover(self, share_partition: SharePartition) -> None:
        """Acknowledge archiving records whose dead letters were written before a crash."""
        self._dead_letters.recover(share_partition)

    def remove(self, share_partitions: Sequence[SharePartition]) -> None:
        """Remove share partitions, from the log too."""
        chunks = {each.key: set(each.state.progress.chunks.stored) for each in share_partitions}
        self._state.delete(chunks)
        for each in share_partitions:
            each.close()
            del self._share_partitions[each.key]
            self._by_partition[each.key.topic, each.key.partition].remove(each)

    def close(self) -> None:
        """Stop all timers; the next start writes dead letters that are missing."""
        for share_partition in self._share_partitions.values():
            share_partition.close()
        for task in self._tasks:
            task.cancel()

    # ---------------------------------------------------------------- changes

    def store(self, share_partitions: Iterable[SharePartition]) -> None:
        """Store changes, write dead letters, delete acknowledged records of queues, wake waiting fetches."""
        changed = list(share_partitions)
        for each in changed:
            if each.state.progress.archiving:
                self._dead_letters.prepare(each)
        self._state.save(changed)
        for each in changed:
            each.set_timer()
            each.wake()
            self._write_dead_letters(each)
            delete_acknowledged(each.partition.log, self._by_partition[each.key.topic, each.key.partition])
            for on_change in self._watchers:
                on_change(each)

    def _deadline_passed(self, share_partition: SharePartition) -> None:
        share_partition.state.expire(self._clock.now_ms())
        try:
            self.store([share_partition])
        except StorageError:
            log.exception("Expired records of %s could not be stored", share_partition.key)
            share_partition.set_timer()

    def _write_dead_letters(self, share_partition: SharePartition) -> None:
        if not share_partition.state.progress.archiving or share_partition.is_writing_dead_letters:
            return
        share_partition.is_writing_dead_letters = True
        task = asyncio.get_running_loop().create_task(self._run_dead_letter_writer(share_partition))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run_dead_letter_writer(self, share_partition: SharePartition) -> None:
        def store() -> None:
            if not share_partition.is_closed:
                self.store([share_partition])

        try:
            await self._dead_letters.write(share_partition, store)
        except (HeadraceError, OSError):
            group = share_partition.key.group
            log.exception("Dead letters of group %s could not be written and will be retried", group)
            retry_ms = self._settings.dead_letter_retry_ms
            self._clock.call_later(retry_ms, lambda: self._retry(share_partition))
        finally:
            share_partition.is_writing_dead_letters = False

    def _retry(self, share_partition: SharePartition) -> None:
        if self._share_partitions.get(share_partition.key) is share_partition:
            self._write_dead_letters(share_partition)


def delete_acknowledged(log_: Log, share_partitions: Sequence[SharePartition]) -> None:
    """In topics with `headrace.queue=true`, delete the records that all share groups have acknowledged."""
    if not log_.config.headrace_queue or log_.is_deleted or not share_partitions:
        return
    start_offset = min(log_.high_watermark, *(each.state.start_offset for each in share_partitions))
    if start_offset <= log_.start_offset:
        return
    if isinstance(log_, PartitionLog) and start_offset == log_.end_offset:
        _roll(log_)
    log_.move_start(start_offset)


def _roll(log_: PartitionLog) -> None:
    if log_.active.size >= min(MIN_ROLL_BYTES, log_.config.segment_bytes):
        log_.roll()
