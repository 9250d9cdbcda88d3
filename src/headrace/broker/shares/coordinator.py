"""All share groups of the broker: their members, partitions and clocks, and their place in the log."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from headrace.broker.groups.alarm import Alarm
from headrace.broker.shares.burials import Burials
from headrace.broker.shares.membership import LEAVE, Reply, ShareGroup
from headrace.broker.shares.queue_mode import reclaim
from headrace.broker.shares.records import ShareKey
from headrace.broker.shares.sessions import ShareSessions
from headrace.broker.shares.settings import ShareGroupConfig
from headrace.broker.shares.share import Share
from headrace.broker.shares.share_partition import SharePartition
from headrace.broker.shares.store import ShareStore
from headrace.errors import HeadraceError
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from headrace.broker.clock import Clock
    from headrace.broker.flusher import Flusher
    from headrace.broker.partition import Partition
    from headrace.broker.shares.membership import Assignment, Beat
    from headrace.broker.shares.sessions import SessionKey
    from headrace.broker.shares.settings import ShareSettings
    from headrace.broker.statelog import StateLog
    from headrace.broker.topics import Topics

log = logging.getLogger(__name__)


class Shares:
    """The coordinator of share groups, and the keeper of what they have taken."""

    def __init__(
        self, state: StateLog, topics: Topics, flusher: Flusher, clock: Clock, settings: ShareSettings
    ) -> None:
        self._store = ShareStore(state)
        self._topics = topics
        self._clock = clock
        self.settings = settings
        self.sessions = ShareSessions()
        self._burials = Burials(topics, flusher, clock)
        self._groups: dict[str, ShareGroup] = {}
        self._configs: dict[str, ShareGroupConfig] = {}
        self._alarms: dict[str, Alarm] = {}
        self._shares: dict[ShareKey, Share] = {}
        self._by_place: dict[tuple[UUID, int], list[Share]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._watchers: list[Callable[[Share], None]] = []

    def watch(self, on_settled: Callable[[Share], None]) -> None:
        """Have a function called whenever a share partition may have moved on."""
        self._watchers.append(on_settled)

    # Life

    def load(self) -> None:
        """Come to the state that the log describes; what belongs to deleted topics is forgotten."""
        stored = self._store.load()
        self._configs = dict(stored.configs)
        for group in stored.groups:
            self._adopt(ShareGroup(group))
        lost: dict[ShareKey, Iterable[int]] = {}
        for key, start in stored.starts.items():
            partition = self._partition(key.topic, key.partition)
            chunks = stored.chunks.get(key, {})
            if partition is None or key.group not in self._groups:
                lost[key] = chunks
                continue
            state = SharePartition(start, self.config(key.group), is_stored=True)
            for chunk, runs in chunks.items():
                state.restore(chunk, runs)
            self._burials.recover(self._add(key, partition, state))
        self._store.forget(lost)

    def start(self) -> None:
        """Go on with what was under way when the broker ended: dead letters, and space to be freed."""
        for share in self._shares.values():
            self.settle([share])

    def send_away(self) -> None:
        """Have everybody who waits for records look for the last time."""
        for share in self._shares.values():
            share.serve_all()

    def close(self) -> None:
        """Stop all clocks; a burial under way is ended by the next start."""
        for alarm in self._alarms.values():
            alarm.stop()
        for share in self._shares.values():
            share.close()
        for task in self._tasks:
            task.cancel()

    async def durable(self) -> None:
        """Return when all that was decided is as safe as the broker promises."""
        await self._store.durable()

    # Groups

    def __contains__(self, group: object) -> bool:
        return group in self._groups

    def groups(self) -> list[ShareGroup]:
        """All share groups by name."""
        return [group for _, group in sorted(self._groups.items())]

    def group(self, group_id: str) -> ShareGroup | None:
        """The group of that name."""
        return self._groups.get(group_id)

    def config(self, group_id: str) -> ShareGroupConfig:
        """The settings of a group; one that is not there yet can have some."""
        return self._configs.get(group_id) or ShareGroupConfig()

    def configure(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Replace the settings of a group."""
        config = ShareGroupConfig.parse(configs)
        self._store.save_config(group_id, configs)
        self._configs[group_id] = config
        for share in self.of_group(group_id):
            share.configure(config)

    def delete(self, group_id: str) -> ErrorCode:
        """Delete a group without members, and all that it has done."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.group_id_not_found
        if group.members:
            return ErrorCode.non_empty_group
        self._remove(self.of_group(group_id))
        self._store.forget_group(group_id)
        self._alarms.pop(group_id).stop()
        del self._groups[group_id]
        return ErrorCode.none

    # Members

    def beat(self, group_id: str, beat: Beat) -> Reply:
        """Let a member join, go on, or leave."""
        group = self._groups.get(group_id)
        if beat.epoch == LEAVE:
            if group is None or not group.leave(beat.member_id):
                return Reply(error=ErrorCode.unknown_member_id, message="the member is not in the group")
            # Its session lives on until it closes it: clients acknowledge their last records after this.
            return Reply(epoch=LEAVE)
        if group is None:
            if beat.epoch > 0:
                return Reply(error=ErrorCode.unknown_member_id, message="the member is not in the group")
            if len(self._groups) >= self.settings.max_groups:
                return Reply(error=ErrorCode.group_max_size_reached, message="there are too many groups")
            group = ShareGroup(group_id)
            self._store.save_group(group_id)
            self._adopt(group)
        expires_at_ms = self._clock.now_ms() + self.config(group_id).session_timeout_ms
        reply = group.beat(beat, expires_at_ms, self.settings.max_members, self._assign)
        self._alarms[group_id].set(group.next_deadline_ms())
        self._open_assigned(group_id, reply.assignment or ())
        return reply

    def _assign(self, subscription: Sequence[str]) -> Assignment:
        topics = (self._topics.get(name) for name in sorted(set(subscription)))
        return tuple(
            (topic.id, tuple(range(len(topic.partitions))))
            for topic in topics
            if topic is not None and not topic.is_internal
        )

    def _open_assigned(self, group_id: str, assignment: Assignment) -> None:
        opened = [
            share
            for topic, partitions in assignment
            for index in partitions
            if isinstance(share := self.open(group_id, topic, index), Share)
        ]
        self._store.save(opened)

    def _adopt(self, group: ShareGroup) -> None:
        self._groups[group.id] = group
        self._alarms[group.id] = Alarm(self._clock, lambda: self._expire(group))

    def _expire(self, group: ShareGroup) -> None:
        for member in group.expired(self._clock.now_ms()):
            group.leave(member)
            self.close_session((group.id, member))
        self._alarms[group.id].set(group.next_deadline_ms())

    # Partitions

    def open(self, group_id: str, topic: UUID, index: int) -> Share | ErrorCode:
        """The group's share partition, begun when it is not there."""
        key = ShareKey(group_id, topic, index)
        share = self._shares.get(key)
        if share is not None:
            return share
        if group_id not in self._groups:
            return ErrorCode.group_id_not_found
        partition = self._partition(topic, index)
        if partition is None:
            known = self._topics.by_id(topic) is not None
            return ErrorCode.unknown_topic_or_partition if known else ErrorCode.unknown_topic_id
        config = self.config(group_id)
        from_start = config.auto_offset_reset == "earliest"
        start = partition.log.start_offset if from_start else partition.log.high_watermark
        return self._add(key, partition, SharePartition(start, config))

    def get(self, group_id: str, topic: UUID, index: int) -> Share | None:
        """The group's share partition, if it has been begun."""
        return self._shares.get(ShareKey(group_id, topic, index))

    def of_group(self, group_id: str) -> list[Share]:
        """All share partitions of a group."""
        return [share for key, share in self._shares.items() if key.group == group_id]

    def move(self, share: Share, start: int) -> None:
        """Let a group without members begin anew at `start`."""
        key, partition = share.key, share.partition
        self._remove([share])
        self._store.save([self._add(key, partition, SharePartition(start, self.config(key.group)))])

    def forget(self, group_id: str, topic: UUID) -> bool:
        """Forget what a group has done with a topic; False when that is nothing."""
        shares = [share for share in self.of_group(group_id) if share.key.topic == topic]
        self._remove(shares)
        return bool(shares)

    def forget_topic(self, topic: UUID) -> None:
        """Forget what all groups have done with a topic that goes."""
        self._remove([share for key, share in self._shares.items() if key.topic == topic])

    def _partition(self, topic: UUID, index: int) -> Partition | None:
        found = self._topics.by_id(topic)
        return None if found is None or found.is_internal else found.partition(index)

    def _add(self, key: ShareKey, partition: Partition, state: SharePartition) -> Share:
        share = Share(
            key,
            partition,
            state,
            self._clock,
            max_behind=self.settings.max_behind,
            on_time=self._look_at_time,
        )
        self._shares[key] = share
        self._by_place.setdefault((key.topic, key.partition), []).append(share)
        return share

    def _remove(self, shares: Sequence[Share]) -> None:
        self._store.forget({share.key: set(share.state.chunks.stored) for share in shares})
        for share in shares:
            share.close()
            del self._shares[share.key]
            self._by_place[share.key.topic, share.key.partition].remove(share)

    # What was decided

    def settle(self, shares: Iterable[Share]) -> None:
        """Store what has changed, bury what is to be buried, free what all are done with, wake who waits."""
        changed = list(shares)
        for share in changed:
            if share.state.archiving:
                self._burials.decide(share)
        self._store.save(changed)
        for share in changed:
            share.set_alarm()
            share.wake()
            if share.state.archiving and not share.is_burying:
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
            share.set_alarm()

    def _begin_burial(self, share: Share) -> None:
        share.is_burying = True
        task = asyncio.get_running_loop().create_task(self._bury(share))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bury(self, share: Share) -> None:
        try:
            await self._burials.bury(share, lambda: self.settle([share]))
        except (HeadraceError, OSError):
            log.exception("dead letters of %s could not be written: tried again soon", share.key.group)
            self._clock.call_later(self.settings.burial_retry_ms, lambda: self._retry(share))
        finally:
            share.is_burying = False

    def _retry(self, share: Share) -> None:
        if share.key in self._shares and share.state.archiving and not share.is_burying:
            self._begin_burial(share)

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
