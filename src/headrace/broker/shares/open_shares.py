"""The share partitions that are at work: found by group or by place, stored when they change, buried from."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.broker.shares.burials import Burials
from headrace.broker.shares.queue_mode import reclaim
from headrace.broker.shares.share import Share
from headrace.errors import HeadraceError
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from uuid import UUID

    from headrace.broker.clock import Clock
    from headrace.broker.flusher import Flusher
    from headrace.broker.partition import Partition
    from headrace.broker.shares.batch_cache import BatchCache
    from headrace.broker.shares.records import ShareKey
    from headrace.broker.shares.settings import ShareSettings
    from headrace.broker.shares.share_partition import SharePartition
    from headrace.broker.shares.store import ShareStore
    from headrace.broker.topics import Topics

log = logging.getLogger(__name__)


class OpenShares:
    """All share partitions of a broker."""

    def __init__(
        self,
        store: ShareStore,
        topics: Topics,
        flusher: Flusher,
        clock: Clock,
        settings: ShareSettings,
        cache: BatchCache,
    ) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._cache = cache
        self._burials = Burials(topics, flusher, clock, cache)
        self._shares: dict[ShareKey, Share] = {}
        self._by_place: dict[tuple[UUID, int], list[Share]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watchers: list[Callable[[Share], None]] = []

    def __iter__(self) -> Iterator[Share]:
        return iter(list(self._shares.values()))

    def watch(self, on_settled: Callable[[Share], None]) -> None:
        """Have a function called whenever a share partition may have moved on."""
        self._watchers.append(on_settled)

    def get(self, key: ShareKey) -> Share | None:
        """The share partition of that key, if it has been begun."""
        return self._shares.get(key)

    def add(self, key: ShareKey, partition: Partition, state: SharePartition) -> Share:
        """Begin a share partition; what has been stored of it is in its state."""
        share = Share(
            key,
            partition,
            state,
            self._clock,
            self._cache,
            max_behind=self._settings.max_behind,
            on_time=self._look_at_time,
        )
        self._shares[key] = share
        self._by_place.setdefault((key.topic, key.partition), []).append(share)
        return share

    def recover(self, share: Share) -> None:
        """Be done with what a broker buried before it was killed."""
        self._burials.recover(share)

    def remove(self, shares: Sequence[Share]) -> None:
        """Forget share partitions, in the log too."""
        self._store.forget({share.key: set(share.state.progress.chunks.stored) for share in shares})
        for share in shares:
            share.close()
            del self._shares[share.key]
            self._by_place[share.key.topic, share.key.partition].remove(share)

    def close(self) -> None:
        """Stop all clocks; a burial under way is ended by the next start."""
        for share in self._shares.values():
            share.close()
        for task in self._tasks:
            task.cancel()

    # What was decided

    def settle(self, shares: Iterable[Share]) -> None:
        """Store what has changed, bury what is to be buried, free what all are done with, wake who waits."""
        changed = list(shares)
        for share in changed:
            if share.state.progress.archiving:
                self._burials.decide(share)
        self._store.save(changed)
        for share in changed:
            share.set_timer()
            share.wake()
            self._begin_burial(share)
            reclaim(share.partition.log, self._by_place[share.key.topic, share.key.partition])
            for on_settled in self._watchers:
                on_settled(share)

    def _look_at_time(self, share: Share) -> None:
        share.state.expire(self._clock.now_ms())
        try:
            self.settle([share])
        except StorageError:
            log.exception("what became of overdue records could not be stored")
            share.set_timer()

    def _begin_burial(self, share: Share) -> None:
        if not share.state.progress.archiving or share.is_burying:
            return
        share.is_burying = True
        task = asyncio.get_running_loop().create_task(self._bury(share))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bury(self, share: Share) -> None:
        try:
            await self._burials.bury(share, lambda: None if share.is_closed else self.settle([share]))
        except (HeadraceError, OSError):
            log.exception("dead letters of %s could not be written: tried again soon", share.key.group)
            self._clock.call_later(self._settings.burial_retry_ms, lambda: self._retry(share))
        finally:
            share.is_burying = False

    def _retry(self, share: Share) -> None:
        if self._shares.get(share.key) is share:
            self._begin_burial(share)
