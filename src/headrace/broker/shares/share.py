"""A share partition at work: its state, its log, its clock, and who waits for its records."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.groups.deadlines import DeadlineTimer
from headrace.broker.shares.reading import ShareReader

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.clock import Clock
    from headrace.broker.partition import Partition
    from headrace.broker.shares.batch_cache import BatchCache
    from headrace.broker.shares.records import ShareKey
    from headrace.broker.shares.settings import ShareGroupConfig
    from headrace.broker.shares.share_partition import Delivered, SharePartition


class Acquisition(NamedTuple):
    """What a member has got: whole batches, and which of their records are its own."""

    batches: list[bytes]
    size: int
    delivered: list[Delivered]


NOTHING = Acquisition([], 0, [])


class Share:
    """One share group on one partition."""

    def __init__(
        self,
        key: ShareKey,
        partition: Partition,
        state: SharePartition,
        clock: Clock,
        cache: BatchCache,
        *,
        max_behind: int,
        on_time: Callable[[Share], None],
    ) -> None:
        self.key = key
        self.partition = partition
        self.state = state
        self.is_burying = False
        self.is_closed = False
        self._clock = clock
        self._cache = cache
        self._reader = ShareReader(partition.log, key.group, max_behind, cache, self.wake)
        self._on_time = on_time
        self._timer = DeadlineTimer(clock, lambda: on_time(self))
        self._waiting: dict[Callable[[], None], None] = {}
        self._is_scheduled = False

    @property
    def lag(self) -> int:
        """How many records are not done."""
        return self.state.lag(self.partition.log.high_watermark)

    def configure(self, config: ShareGroupConfig) -> None:
        """Go on with other settings."""
        self.state.config = config

    def acquire(self, member: str, max_records: int, max_bytes: int) -> Acquisition:
        """Records for a member, in its hands from now on."""
        state, now_ms = self.state, self._clock.now_ms()
        wanted = min(max_records, state.room())
        if wanted <= 0 or max_bytes <= 0 or self._reader.is_opening:
            return NOTHING
        dead = len(state.progress.archiving)
        self._reader.begin()
        try:
            self._reader.look(state, wanted, now_ms)
            offsets = state.acquire(member, wanted, now_ms)
            found = self._reader.collect(offsets, max_bytes)
        finally:
            self._reader.finish()
        state.give_back(found.left)
        state.discard(found.missing)
        self.set_timer()
        if len(state.progress.archiving) > dead:
            self._clock.call_later(0, self._store_dead)
        return Acquisition(found.batches, found.size, state.delivered(found.covered))

    def _store_dead(self) -> None:
        """Have it stored that a batch cannot be read, and its letter written."""
        if not self.is_closed:
            self._on_time(self)

    def set_timer(self) -> None:
        """Wake up when a lock runs out or a delay ends."""
        self._timer.set(self.state.next_deadline_ms())

    # ---------------------------------------------------------------- who waits

    def wait(self, look: Callable[[], None]) -> None:
        """Have `look` called when there may be something to take, in the order of coming."""
        if not self._waiting:
            self.partition.waiters.add(self.wake)
        self._waiting[look] = None
        if self._has_something:
            self.wake()

    def stop_waiting(self, look: Callable[[], None]) -> None:
        """Wait no more."""
        self._waiting.pop(look, None)
        if not self._waiting:
            self.partition.waiters.discard(self.wake)

    def wake(self) -> None:
        """Let those who wait look, once a turn of the loop."""
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            self._clock.call_later(0, self._serve)

    def _serve(self) -> None:
        self._is_scheduled = False
        for look in tuple(self._waiting):
            if not self._has_something:
                return
            look()
        if self._waiting and self._has_something:
            self.wake()

    @property
    def _has_something(self) -> bool:
        """Whether a look may be worth it: without free locks nobody gets anything, and nobody is woken."""
        state = self.state
        if self._reader.is_opening:
            return False
        return state.room() > 0 and (state.ready > 0 or self._reader.has_more(state))

    def serve_all(self) -> None:
        """Let everybody look who waits, whether there is something or not."""
        for look in tuple(self._waiting):
            look()

    def close(self) -> None:
        """Stop the clock, and send those who wait away."""
        self.is_closed = True
        self._timer.stop()
        self._cache.let_go(self._reader)
        for look in tuple(self._waiting):
            self.stop_waiting(look)
