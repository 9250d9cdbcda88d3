"""All that the broker knows of share groups: who is in them, what they have taken, and members' sessions."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from headrace.broker.shares.batch_cache import BatchCache
from headrace.broker.shares.groups import ShareGroups
from headrace.broker.shares.open_shares import OpenShares
from headrace.broker.shares.records import ShareKey
from headrace.broker.shares.sessions import ShareSessions
from headrace.broker.shares.share import Share
from headrace.broker.shares.share_partition import SharePartition
from headrace.broker.shares.store import ShareStore
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor
    from uuid import UUID

    from headrace.broker.clock import Clock
    from headrace.broker.flusher import Flusher
    from headrace.broker.partition import Partition
    from headrace.broker.shares.membership import Assignment, Beat, Reply, ShareGroup
    from headrace.broker.shares.sessions import SessionKey
    from headrace.broker.shares.settings import ShareGroupConfig, ShareSettings
    from headrace.broker.statelog import StateLog
    from headrace.broker.topics import Topics
    from headrace.storage.timesearch import Search, TimedOffset

log = logging.getLogger(__name__)


class Shares:
    """The coordinator of share groups, and the keeper of what they have taken."""

    def __init__(
        self,
        state: StateLog,
        topics: Topics,
        flusher: Flusher,
        clock: Clock,
        settings: ShareSettings,
        opener: Executor,
        run_search: Callable[[Search], Awaitable[TimedOffset | None]],
    ) -> None:
        self._clock = clock
        self._store = ShareStore(state)
        self._topics = topics
        self.sessions = ShareSessions()
        self._groups = ShareGroups(
            self._store,
            clock,
            settings,
            assign=self._assign,
            on_silence=lambda group, member: self.close_session((group, member)),
        )
        self._run_search = run_search
        self._searches: dict[ShareKey, asyncio.Task[None]] = {}
        """The share partitions whose start offset is being searched by time."""
        self._open = OpenShares(self._store, topics, flusher, clock, settings, BatchCache(clock, opener))

    def watch(self, on_settled: Callable[[Share], None]) -> None:
        """Have a function called whenever a share partition may have moved on."""
        self._open.watch(on_settled)

    # Life

    def load(self) -> None:
        """Come to the state that the log describes; what belongs to deleted topics is forgotten."""
        stored = self._store.load()
        self._groups.load(stored.groups, stored.configs)
        lost: dict[ShareKey, Iterable[int]] = {}
        for key, start in stored.starts.items():
            partition = self._partition(key.topic, key.partition)
            chunks = stored.chunks.get(key, {})
            if partition is None or key.group not in self._groups:
                lost[key] = chunks
                continue
            state = SharePartition(start, self.config(key.group), is_stored=True)
            for chunk, runs in chunks.items():
                state.progress.restore(chunk, runs)
            self._open.recover(self._open.add(key, partition, state))
        self._store.forget(lost)

    def start(self) -> None:
        """Go on with what was under way when the broker ended: dead letters, and space to be freed."""
        for share in self._open:
            self.settle([share])

    def send_away(self) -> None:
        """Have everybody who waits for records look for the last time."""
        for share in self._open:
            share.serve_all()

    def close(self) -> None:
        """Stop all clocks; a burial under way is ended by the next start."""
        for search in self._searches.values():
            search.cancel()
        self._groups.close()
        self._open.close()

    async def durable(self) -> None:
        """Return when all that was decided is as safe as the broker promises."""
        await self._store.durable()

    # Groups

    def __contains__(self, group: object) -> bool:
        return group in self._groups

    def groups(self) -> list[ShareGroup]:
        """All share groups by name."""
        return self._groups.all()

    def group(self, group_id: str) -> ShareGroup | None:
        """The group of that name."""
        return self._groups.get(group_id)

    def config(self, group_id: str) -> ShareGroupConfig:
        """The settings of a group; one that is not there yet can have some."""
        return self._groups.config(group_id)

    def configured(self) -> list[str]:
        """The groups that have settings of their own."""
        return self._groups.configured()

    def configure(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Replace the settings of a group."""
        config = self._groups.configure(group_id, configs)
        for share in self.of_group(group_id):
            share.configure(config)

    def fair_share(self, group_id: str) -> int:
        """How many records of a partition a member takes at once: there are to be some for each of them."""
        group = self._groups.get(group_id)
        members = len(group.members) if group is not None else 1
        return max(self.config(group_id).max_record_locks // max(members, 1), 1)

    def check_idle(self, group_id: str) -> ErrorCode:
        """Whether what a group has done may be changed: it must be there, and have no members."""
        return self._groups.check_idle(group_id)

    def create(self, group_id: str) -> ErrorCode:
        """Create a group without members, so that it can be placed before its first member comes."""
        return ErrorCode.none if self._groups.create(group_id) else ErrorCode.group_max_size_reached

    def delete(self, group_id: str) -> ErrorCode:
        """Delete a group without members, and all that it has done."""
        error = self.check_idle(group_id)
        if error is ErrorCode.none:
            self._open.remove(self.of_group(group_id))
            self._groups.remove(group_id)
        return error

    def beat(self, group_id: str, beat: Beat) -> Reply:
        """Let a member join, go on, or leave; what it is assigned begins now."""
        reply = self._groups.beat(group_id, beat)
        begun = (
            self.open(group_id, topic, index)
            for topic, partitions in reply.assignment or ()
            for index in partitions
        )
        self._store.save([share for share in begun if isinstance(share, Share)])
        return reply

    async def started(self, group_id: str) -> None:
        """Return when the start offsets of all partitions that the group reads are known."""
        searches = [search for key, search in self._searches.items() if key.group == group_id]
        if searches:
            await asyncio.wait(searches)

    def _assign(self, subscription: Sequence[str]) -> Assignment:
        topics = (self._topics.get(name) for name in sorted(set(subscription)))
        return tuple(
            (topic.id, tuple(range(len(topic.partitions))))
            for topic in topics
            if topic is not None and not topic.is_internal
        )

    # Partitions

    def open(self, group_id: str, topic: UUID, index: int) -> Share | ErrorCode | None:
        """The group's share partition, created if it does not exist; None while its start is searched."""
        key = ShareKey(group_id, topic, index)
        share = self._open.get(key)
        if share is not None:
            return share
        if group_id not in self._groups:
            return ErrorCode.group_id_not_found
        partition = self._partition(topic, index)
        if partition is None:
            known = self._topics.by_id(topic) is not None
            return ErrorCode.unknown_topic_or_partition if known else ErrorCode.unknown_topic_id
        config = self.config(group_id)
        reset = config.auto_offset_reset
        if isinstance(reset, timedelta):
            self._search_start(key, partition, reset)
            return None
        start = partition.log.start_offset if reset == "earliest" else partition.log.high_watermark
        return self._open.add(key, partition, SharePartition(start, config))

    def _search_start(self, key: ShareKey, partition: Partition, age: timedelta) -> None:
        if key in self._searches:
            return
        timestamp = max(self._clock.now_ms() - age // timedelta(milliseconds=1), 0)
        search = asyncio.get_running_loop().create_task(self._start_at(key, partition, timestamp))
        self._searches[key] = search
        search.add_done_callback(lambda _: self._searches.pop(key))

    async def _start_at(self, key: ShareKey, partition: Partition, timestamp: int) -> None:
        """Create a share partition at the first record that is not older than `timestamp`."""
        log_ = partition.log
        try:
            found = await self._run_search(log_.search_time(timestamp))
        except OSError as fault:
            # Retention deleted a file during the search: the next fetch starts another search.
            log.info("no start offset for %s yet: %s", key, fault)
            return
        if key.group not in self._groups or self._open.get(key) is not None or log_.is_deleted:
            return
        end = log_.high_watermark
        start = end if found is None else min(found.offset, end)
        share = self._open.add(key, partition, SharePartition(start, self.config(key.group)))
        try:
            self._store.save([share])
        except StorageError:
            log.exception("the start offset of %s could not be stored", key)

    def get(self, group_id: str, topic: UUID, index: int) -> Share | None:
        """The group's share partition, if it has been begun."""
        return self._open.get(ShareKey(group_id, topic, index))

    def of_group(self, group_id: str) -> list[Share]:
        """All share partitions of a group."""
        return [share for share in self._open if share.key.group == group_id]

    def move(self, group_id: str, topic: UUID, index: int, start: int) -> ErrorCode:
        """Set the start offset of a group without members, within the bounds of the log."""
        key, partition = ShareKey(group_id, topic, index), self._partition(topic, index)
        if partition is None:
            return ErrorCode.unknown_topic_or_partition
        known = self._open.get(key)
        if known is not None:
            self._open.remove([known])
        start = min(max(start, partition.log.start_offset), partition.log.high_watermark)
        state = SharePartition(start, self.config(group_id))
        self._store.save([self._open.add(key, partition, state)])
        return ErrorCode.none

    def forget(self, group_id: str, topic: UUID) -> bool:
        """Forget what a group has done with a topic; False when that is nothing."""
        shares = [share for share in self.of_group(group_id) if share.key.topic == topic]
        self._open.remove(shares)
        return bool(shares)

    def forget_topic(self, topic: UUID) -> None:
        """Forget what all groups have done with a topic that goes."""
        self._open.remove([share for share in self._open if share.key.topic == topic])

    def settle(self, shares: Iterable[Share]) -> None:
        """Store what has changed, and do what follows from it."""
        self._open.settle(shares)

    def _partition(self, topic: UUID, index: int) -> Partition | None:
        found = self._topics.by_id(topic)
        return None if found is None or found.is_internal else found.partition(index)

    # Sessions

    def close_session(self, key: SessionKey) -> None:
        """Give back what a member holds, and forget its session."""
        self.sessions.close(key)
        group, member = key
        released = list(self._release(group, member))
        try:
            self.settle(released)
        except StorageError:
            log.exception("what %s of %s has given back could not be stored", member, group)

    def _release(self, group: str, member: str) -> Iterator[Share]:
        for share in self.of_group(group):
            if any(hold.member == member for hold in share.state.held.values()):
                share.state.release_member(member)
                yield share

    def disconnected(self, peer: object) -> None:
        """A connection has ended: what its members held may go to others at once."""
        for key in self.sessions.of_peer(peer):
            self.close_session(key)
