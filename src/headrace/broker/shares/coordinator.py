"""The coordinator of share groups: groups and members, share partitions, and share sessions."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.broker.shares.batch_cache import BatchCache
from headrace.broker.shares.dead_letters import DeadLetterWriter
from headrace.broker.shares.groups import ShareGroups
from headrace.broker.shares.partition_state import SharePartitionState
from headrace.broker.shares.partitions import SharePartition, SharePartitionManager
from headrace.broker.shares.records import SharePartitionKey, ShareStateLog
from headrace.broker.shares.sessions import ShareSessions
from headrace.storage.errors import ArchiveError, StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Executor
    from uuid import UUID

    from headrace.broker.clock import BrokerClock
    from headrace.broker.flusher import Flusher
    from headrace.broker.scheduling import RequestScheduler
    from headrace.broker.shares.groups import Assignment, ShareGroup, ShareHeartbeat, ShareHeartbeatResult
    from headrace.broker.shares.sessions import SessionKey
    from headrace.broker.shares.settings import ShareGroupConfig, ShareSettings
    from headrace.broker.state_log import StateLog
    from headrace.broker.topics import Partition, Topics
    from headrace.storage.time_search import Search, TimedOffset

log = logging.getLogger(__name__)

PARTITIONS_AT_ONCE: Final = 100
"""Share partitions that are created or deleted in one step: about a millisecond."""


class ShareGroupCoordinator:
    """All share groups of a broker."""

    def __init__(
        self,
        state: StateLog,
        topics: Topics,
        flusher: Flusher,
        clock: BrokerClock,
        settings: ShareSettings,
        opener: Executor,
        scheduler: RequestScheduler,
        run_search: Callable[[Search], Awaitable[TimedOffset | None]],
    ) -> None:
        self._clock = clock
        self._state = ShareStateLog(state)
        self._topics = topics
        self._run_search = run_search
        self._searches: dict[SharePartitionKey, asyncio.Task[None]] = {}
        """The share partitions whose start offset is being searched by time."""
        self.sessions = ShareSessions()
        self._groups = ShareGroups(
            self._state,
            clock,
            settings,
            assign=self._assign,
            on_member_expired=lambda group, member: self.close_session((group, member)),
        )
        cache = BatchCache(clock, opener)
        dead_letters = DeadLetterWriter(topics, flusher, clock, cache, scheduler)
        self._partitions = SharePartitionManager(self._state, clock, settings, cache, dead_letters)

    def watch(self, on_change: Callable[[SharePartition], None]) -> None:
        """Have `on_change` called when a share partition may have advanced."""
        self._partitions.watch(on_change)

    # Lifecycle

    def load(self) -> None:
        """Restore the state from the log; the state of deleted topics is removed."""
        stored = self._state.load()
        self._groups.load(stored.groups, stored.configs)
        deleted: dict[SharePartitionKey, Iterable[int]] = {}
        for key, start_offset in stored.start_offsets.items():
            partition = self._partition(key.topic, key.partition)
            chunks = stored.chunks.get(key, {})
            if partition is None or key.group not in self._groups:
                deleted[key] = chunks
                continue
            state = SharePartitionState(start_offset, self.config(key.group), is_stored=True)
            for chunk, ranges in chunks.items():
                state.progress.restore(chunk, ranges)
            self._partitions.recover(self._partitions.add(key, partition, state))
        self._state.delete(deleted)

    def start(self) -> None:
        """Continue work that a stop interrupted: dead letters, and the deletion of acknowledged records."""
        for share_partition in self._partitions:
            self.store([share_partition])

    def complete_waiting(self) -> None:
        """Let all waiting fetches complete."""
        for share_partition in self._partitions:
            share_partition.call_all_waiting()

    def close(self) -> None:
        """Stop all timers; the next start writes dead letters that are missing."""
        for search in self._searches.values():
            search.cancel()
        self._groups.close()
        self._partitions.close()

    async def durable(self) -> None:
        """Return when all changes are as durable as the flush setting promises."""
        await self._state.durable()

    # Groups

    def __contains__(self, group: object) -> bool:
        return group in self._groups

    def groups(self) -> list[ShareGroup]:
        """All share groups, sorted by id."""
        return self._groups.all()

    def group(self, group_id: str) -> ShareGroup | None:
        """The group with that id."""
        return self._groups.get(group_id)

    def config(self, group_id: str) -> ShareGroupConfig:
        """The settings of a group, which need not exist yet."""
        return self._groups.config(group_id)

    def configured(self) -> list[str]:
        """The ids of groups with settings that are not defaults."""
        return self._groups.configured()

    def configure(self, group_id: str, configs: Mapping[str, str]) -> None:
        """Replace the settings of a group."""
        config = self._groups.configure(group_id, configs)
        for share_partition in self.of_group(group_id):
            share_partition.configure(config)

    def max_acquired_per_fetch(self, group_id: str) -> int:
        """The records of a partition that one fetch may acquire, so that all members get some."""
        group = self._groups.get(group_id)
        members = len(group.members) if group is not None else 1
        return max(self.config(group_id).max_record_locks // max(members, 1), 1)

    def check_empty(self, group_id: str) -> ErrorCode:
        """Whether the group exists and has no members, so that its offsets may be changed."""
        return self._groups.check_empty(group_id)

    def create(self, group_id: str) -> ErrorCode:
        """Create a group without members, whose start offsets can be set before its first member joins."""
        return ErrorCode.none if self._groups.create(group_id) else ErrorCode.group_max_size_reached

    def delete_steps(self, group_id: str) -> Generator[None, None, ErrorCode]:
        """Delete a group without members, and its share partitions; yields between steps."""
        error = self.check_empty(group_id)
        if error is not ErrorCode.none:
            return error
        yield from self._remove_steps(self.of_group(group_id))
        error = self.check_empty(group_id)  # a member may have joined in the meantime
        if error is ErrorCode.none:
            self._partitions.remove(self.of_group(group_id))
            self._groups.remove(group_id)
        return error

    def heartbeat_steps(
        self, group_id: str, heartbeat: ShareHeartbeat
    ) -> Generator[None, None, ShareHeartbeatResult]:
        """Let a member join, continue or leave; creates new share partitions of its assignment in steps."""
        response = self._groups.heartbeat(group_id, heartbeat)
        assigned = ((topic, index) for topic, indexes in response.assignment or () for index in indexes)
        while partitions := tuple(islice(assigned, PARTITIONS_AT_ONCE)):
            opened = [self.open(group_id, topic, index) for topic, index in partitions]
            self._state.save([each for each in opened if isinstance(each, SharePartition)])
            yield
        return response

    async def started(self, group_id: str) -> None:
        """Return when the start offsets of all share partitions of the group are known."""
        searches = [search for key, search in self._searches.items() if key.group == group_id]
        if searches:
            await asyncio.wait(searches)

    def _remove_steps(self, share_partitions: Sequence[SharePartition]) -> Generator[None, None, None]:
        for first in range(0, len(share_partitions), PARTITIONS_AT_ONCE):
            chunk = share_partitions[first : first + PARTITIONS_AT_ONCE]
            self._partitions.remove([each for each in chunk if not each.is_closed])
            yield

    def _assign(self, subscription: Sequence[str]) -> Assignment:
        topics = (self._topics.get(name) for name in sorted(set(subscription)))
        return tuple(
            (topic.id, tuple(range(len(topic.partitions))))
            for topic in topics
            if topic is not None and not topic.is_internal
        )

    # Share partitions

    def open(self, group_id: str, topic: UUID, index: int) -> SharePartition | ErrorCode | None:
        """The share partition, created if it does not exist; None while its start offset is searched."""
        key = SharePartitionKey(group_id, topic, index)
        share_partition = self._partitions.get(key)
        if share_partition is not None:
            return share_partition
        if group_id not in self._groups:
            return ErrorCode.group_id_not_found
        partition = self._partition(topic, index)
        if partition is None:
            is_known = self._topics.by_id(topic) is not None
            return ErrorCode.unknown_topic_or_partition if is_known else ErrorCode.unknown_topic_id
        config = self.config(group_id)
        reset = config.auto_offset_reset
        if isinstance(reset, timedelta):
            self._search_start(key, partition, reset)
            return None
        start_offset = partition.log.start_offset if reset == "earliest" else partition.log.high_watermark
        return self._partitions.add(key, partition, SharePartitionState(start_offset, config))

    def _search_start(self, key: SharePartitionKey, partition: Partition, age: timedelta) -> None:
        if key in self._searches:
            return
        timestamp = max(self._clock.now_ms() - age // timedelta(milliseconds=1), 0)
        search = asyncio.get_running_loop().create_task(self._start_at(key, partition, timestamp))
        self._searches[key] = search
        search.add_done_callback(lambda _: self._searches.pop(key))

    async def _start_at(self, key: SharePartitionKey, partition: Partition, timestamp: int) -> None:
        """Create a share partition at the first record that is not older than `timestamp`."""
        try:
            found = await self._run_search(partition.log.search_time(timestamp))
        except (OSError, ArchiveError) as fault:
            # Retention deleted a file during the search, or the archive failed: the next fetch retries.
            log.info("The start offset of %s could not be found yet: %s", key, fault)
            return
        is_obsolete = key.group not in self._groups or partition.log.is_deleted
        if is_obsolete or self._partitions.get(key) is not None:
            return
        end_offset = partition.log.high_watermark
        start_offset = end_offset if found is None else min(found.offset, end_offset)
        state = SharePartitionState(start_offset, self.config(key.group))
        share_partition = self._partitions.add(key, partition, state)
        try:
            self._state.save([share_partition])
        except StorageError:
            log.exception("The start offset of %s could not be stored", key)

    def get(self, group_id: str, topic: UUID, index: int) -> SharePartition | None:
        """The share partition, if it exists."""
        return self._partitions.get(SharePartitionKey(group_id, topic, index))

    def all_partitions(self) -> Iterator[SharePartition]:
        """The share partitions of all groups."""
        return iter(self._partitions)

    def of_group(self, group_id: str) -> list[SharePartition]:
        """All share partitions of a group."""
        return [each for each in self._partitions if each.key.group == group_id]

    def alter_start_offset(self, group_id: str, topic: UUID, index: int, start_offset: int) -> ErrorCode:
        """Set the start offset of a group without members, within the bounds of the log."""
        key, partition = SharePartitionKey(group_id, topic, index), self._partition(topic, index)
        if partition is None:
            return ErrorCode.unknown_topic_or_partition
        known = self._partitions.get(key)
        if known is not None:
            self._partitions.remove([known])
        start_offset = min(max(start_offset, partition.log.start_offset), partition.log.high_watermark)
        state = SharePartitionState(start_offset, self.config(group_id))
        self._state.save([self._partitions.add(key, partition, state)])
        return ErrorCode.none

    def delete_offsets_steps(self, group_id: str, topic: UUID) -> Generator[None, None, None]:
        """Delete a group's share partitions of a topic; yields between steps."""
        return self._remove_steps([each for each in self.of_group(group_id) if each.key.topic == topic])

    def remove_topic_steps(self, topic: UUID) -> Generator[None, None, None]:
        """Delete the share partitions of a topic that is deleted; yields between steps."""
        return self._remove_steps([each for each in self._partitions if each.key.topic == topic])

    def store(self, share_partitions: Iterable[SharePartition]) -> None:
        """Store changes of share partitions, and carry out what follows from them."""
        self._partitions.store(share_partitions)

    def _partition(self, topic: UUID, index: int) -> Partition | None:
        found = self._topics.by_id(topic)
        return None if found is None or found.is_internal else found.partition(index)

    # Sessions

    def close_session(self, key: SessionKey) -> None:
        """Release the records that a member has acquired, and remove its session."""
        self.sessions.close(key)
        group, member = key
        released = list(self._release(group, member))
        try:
            self.store(released)
        except StorageError:
            log.exception("Records released by member %s of group %s could not be stored", member, group)

    def _release(self, group: str, member: str) -> Iterator[SharePartition]:
        for share_partition in self.of_group(group):
            if any(lock.member == member for lock in share_partition.state.acquired.values()):
                share_partition.state.release_member(member)
                yield share_partition

    def disconnected(self, connection: object) -> None:
        """Close the sessions of a connection that has ended."""
        for key in self.sessions.of_connection(connection):
            self.close_session(key)
