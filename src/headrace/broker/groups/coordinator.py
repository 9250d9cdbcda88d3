"""All groups of the broker, with their timers, their waiting clients, and their place in the log."""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import TYPE_CHECKING, Any, TypeVar

from kio.schema.errors import ErrorCode

from headrace.broker.groups import commit_rules
from headrace.broker.groups.alarm import Alarm
from headrace.broker.groups.description import describe
from headrace.broker.groups.expiry import expired_offsets
from headrace.broker.groups.group import Group
from headrace.broker.groups.records import is_group_key, read_group, read_key, write_group, write_group_key
from headrace.broker.groups.replies import Answer, JoinReply, SyncReply, Ticket
from headrace.broker.groups.requests import UNKNOWN_MEMBER
from headrace.broker.groups.snapshot import restore, snapshot
from headrace.broker.groups.states import GroupState
from headrace.broker.statelog import StateRecord
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace.broker.clock import Clock
    from headrace.broker.groups.description import GroupDescription
    from headrace.broker.groups.replies import Effect
    from headrace.broker.groups.requests import JoinRequest, MemberIdentity, SyncRequest
    from headrace.broker.groups.settings import GroupSettings
    from headrace.broker.offsets import Offsets
    from headrace.broker.statelog import StateLog

log = logging.getLogger(__name__)

Reply = TypeVar("Reply", JoinReply, SyncReply)


class Groups:
    """The coordinator of every group: joins and syncs wait here, and members that fall silent are noticed."""

    def __init__(self, state: StateLog, offsets: Offsets, clock: Clock, settings: GroupSettings) -> None:
        self._state = state
        self._offsets = offsets
        self._clock = clock
        self.settings = settings
        self._groups: dict[str, Group] = {}
        self._alarms: dict[str, Alarm] = {}
        self._waiting: dict[Ticket, asyncio.Future[Any]] = {}
        self._tickets = itertools.count()
        self._is_draining = False
        self._sweep = Alarm(clock, self._sweep_expired)
        offsets.follow(self)

    # Life

    def load(self) -> None:
        """Come to the state that the log describes, offsets included, and start the clocks of the members."""
        stored: dict[str, bytes | None] = {}
        self._offsets.begin_replay()
        for entry in self._state.replay():
            if isinstance(entry, StateRecord) and is_group_key(entry.key):
                stored[str(read_key(entry.key))] = entry.value
            else:
                self._offsets.replay(entry)
        for group_id, value in stored.items():
            if value is not None:
                self._adopt(restore(group_id, read_group(value), self.settings, self._clock.now_ms()))
        for group_id in self._offsets.group_ids() - self._groups.keys():
            self._get_or_make(group_id)
        self._schedule_sweep()

    def drain(self) -> None:
        """Send away every join and sync that waits or comes; heartbeats and commits are served as before."""
        self._is_draining = True
        for group in self._groups.values():
            group.send_away(ErrorCode.not_coordinator)
            self._settle(group)

    def close(self) -> None:
        """Send away everyone who waits, and stop all clocks; the groups are in the log."""
        self.drain()
        self._sweep.stop()
        for alarm in self._alarms.values():
            alarm.stop()

    # Members

    async def join(self, request: JoinRequest) -> JoinReply:
        """The generation that the client is in, as soon as there is one."""
        if self._is_draining:
            return JoinReply(error=ErrorCode.not_coordinator, member_id=request.member_id)
        group = self._group_to_join(request.group_id, request.member_id)
        if group is None:
            return JoinReply(error=ErrorCode.unknown_member_id, member_id=request.member_id)
        ticket, reply = self._take_ticket()
        group.join(request, ticket, self._clock.now_ms())
        self._settle(group)
        return await self._await_reply(ticket, reply, _undurable_join(request))

    async def sync(self, request: SyncRequest) -> SyncReply:
        """The member's assignment, as soon as the leader has brought it."""
        if self._is_draining:
            return SyncReply(error=ErrorCode.not_coordinator)
        group = self._groups.get(request.group_id)
        if group is None:
            return SyncReply(error=ErrorCode.unknown_member_id)
        ticket, reply = self._take_ticket()
        group.sync(request, ticket, self._clock.now_ms())
        self._settle(group)
        return await self._await_reply(ticket, reply, _UNDURABLE_SYNC)

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
        """Keep a member alive; REBALANCE_IN_PROGRESS tells it to join again."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.unknown_member_id
        # The alarm stays where it is: it rings early, and looks again.
        return group.heartbeat(member_id, instance_id, generation, self._clock.now_ms())

    def leave(self, group_id: str, leavers: Sequence[MemberIdentity]) -> list[ErrorCode]:
        """Let members go, each with its own result."""
        group = self._groups.get(group_id)
        if group is None:
            return [ErrorCode.unknown_member_id] * len(leavers)
        results = group.leave(leavers, self._clock.now_ms())
        self._settle(group)
        return results

    # Offsets

    def check_commit(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None, *, transactional: bool
    ) -> ErrorCode:
        """Whether this client may commit; a group without members is made when it is missing."""
        group = self._groups.get(group_id)
        if group is None:
            if generation >= 0:
                return ErrorCode.illegal_generation if transactional else ErrorCode.group_id_not_found
            group = self._get_or_make(group_id)
        error = commit_rules.check_commit(
            group, member_id, generation, instance_id, transactional=transactional
        )
        if error is ErrorCode.none and not transactional:
            group.touch(member_id, self._clock.now_ms())
        return error

    def check_offset_delete(self, group_id: str) -> ErrorCode:
        """Whether offsets of the group may be deleted."""
        return commit_rules.check_offset_delete(self._groups.get(group_id))

    def is_subscribed(self, group_id: str, topic: str) -> bool:
        """Whether members of the group read this topic."""
        group = self._groups.get(group_id)
        return group is not None and group.is_subscribed_to(topic)

    # Administration

    def describe(self, group_id: str) -> GroupDescription | None:
        """The group as tools show it."""
        group = self._groups.get(group_id)
        return None if group is None else describe(group)

    def list(self) -> list[GroupDescription]:
        """All groups, by name."""
        return [describe(group) for _, group in sorted(self._groups.items())]

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def delete(self, group_id: str) -> ErrorCode:
        """Delete a group without members, and its offsets."""
        group = self._groups.get(group_id)
        error = commit_rules.check_delete(group)
        if error is ErrorCode.none and group is not None:
            self._remove(group)
        return error

    # Wiring

    def _group_to_join(self, group_id: str, member_id: str) -> Group | None:
        # Only a client without an id makes a group: one that has an id remembers a group that is gone.
        if member_id == UNKNOWN_MEMBER:
            return self._get_or_make(group_id)
        return self._groups.get(group_id)

    def _get_or_make(self, group_id: str) -> Group:
        group = self._groups.get(group_id)
        if group is None:
            group = Group(group_id, self.settings, self._clock.now_ms())
            self._adopt(group)
        return group

    def _adopt(self, group: Group) -> None:
        self._groups[group.id] = group
        self._alarms[group.id] = Alarm(self._clock, lambda: self._tick(group))
        self._settle(group)

    def _remove(self, group: Group) -> None:
        self._offsets.forget_group(group.id)
        self._state.append([(write_group_key(group.id), None)])
        group.end(self._clock.now_ms())
        self._settle(group)
        self._alarms.pop(group.id).stop()
        del self._groups[group.id]

    def _tick(self, group: Group) -> None:
        group.tick(self._clock.now_ms())
        self._settle(group)

    def _settle(self, group: Group) -> None:
        """Do what the group wants done, and set its alarm."""
        while effects := group.take_effects():
            if not self._perform(group, effects):
                group.distrust(self._clock.now_ms())
        self._alarms[group.id].set(group.next_deadline_ms())

    def _perform(self, group: Group, effects: Iterable[Effect]) -> bool:
        is_stored = True
        for effect in effects:
            if not isinstance(effect, Answer):
                is_stored = self._store(group)
            else:
                self._answer(effect.ticket, effect.reply if is_stored else _unstored(effect.reply))
        return is_stored

    def _store(self, group: Group) -> bool:
        try:
            self._state.append([(write_group_key(group.id), write_group(snapshot(group)))])
        except StorageError:
            log.exception("group %s could not be stored: its members are asked to join again", group.id)
            return False
        return True

    # Waiting clients

    def _take_ticket(self) -> tuple[Ticket, asyncio.Future[Any]]:
        ticket = Ticket(next(self._tickets))
        reply = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = reply
        return ticket, reply

    async def _await_reply(self, ticket: Ticket, reply: asyncio.Future[Reply], undurable: Reply) -> Reply:
        try:
            answer = await reply
            await self._state.durable()
        except StorageError:
            log.exception("the state of a group could not be made durable")
            return undurable
        finally:
            # A client that went away takes its answer with it; whether it is dead, its session decides.
            self._waiting.pop(ticket, None)
        return answer

    def _answer(self, ticket: Ticket, reply: JoinReply | SyncReply) -> None:
        waiting = self._waiting.get(ticket)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    # Expiry

    def _schedule_sweep(self) -> None:
        self._sweep.set(self._clock.now_ms() + self.settings.offsets_retention_check_interval_ms)

    def _sweep_expired(self) -> None:
        """Forget offsets that have served their time, and groups that have neither members nor offsets."""
        try:
            for group in list(self._groups.values()):
                self._expire(group)
        except StorageError:
            log.exception("expired offsets could not be forgotten: they are tried again later")
        self._schedule_sweep()

    def _expire(self, group: Group) -> None:
        expired = expired_offsets(group, self._offsets.of_group(group.id), self._clock.now_ms())
        self._offsets.delete(
            group.id, (where for where in expired if not self._offsets.is_pending(group.id, *where))
        )
        has_offsets = self._offsets.of_group(group.id) or self._offsets.has_pending(group.id)
        if group.state is GroupState.EMPTY and not has_offsets:
            self._remove(group)


def _undurable_join(request: JoinRequest) -> JoinReply:
    return JoinReply(error=ErrorCode.coordinator_not_available, member_id=request.member_id)


_UNDURABLE_SYNC = SyncReply(error=ErrorCode.coordinator_not_available)


def _unstored(reply: JoinReply | SyncReply) -> JoinReply | SyncReply:
    if isinstance(reply, JoinReply):
        return JoinReply(error=ErrorCode.coordinator_not_available, member_id=UNKNOWN_MEMBER)
    return _UNDURABLE_SYNC
