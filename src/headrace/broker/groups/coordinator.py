"""The group coordinator: all groups of the broker, with their timers, pending requests and stored state."""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from kio.schema.errors import ErrorCode

from headrace.broker.clock import DeadlineTimer
from headrace.broker.groups import rules
from headrace.broker.groups.group import Group
from headrace.broker.groups.messages import (
    UNKNOWN_MEMBER,
    JoinResponse,
    RequestId,
    SendResponse,
    SyncResponse,
)
from headrace.broker.groups.records import is_group_key, read_group, read_key, write_group, write_group_key
from headrace.broker.state_log import StateRecord
from headrace.protocol.wire import run_steps
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence

    from headrace.broker.clock import BrokerClock
    from headrace.broker.groups.group import GroupState
    from headrace.broker.groups.messages import Effect, JoinRequest, MemberIdentity, SyncRequest
    from headrace.broker.groups.settings import GroupSettings
    from headrace.broker.offsets import CommittedOffsets
    from headrace.broker.state_log import StateLog


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """One member of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    """Empty unless the group is stable."""
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group with its state and members."""

    group_id: str
    state: GroupState
    protocol_type: str
    protocol: str
    """Empty unless the group is stable."""
    members: tuple[MemberDescription, ...]


def describe_group(group: Group) -> GroupDescription:
    """The current description of a group."""
    protocol = group.protocol if group.is_stable else None
    return GroupDescription(
        group_id=group.id,
        state=group.state,
        protocol_type=group.protocol_type or "",
        protocol=protocol or "",
        members=tuple(
            MemberDescription(
                member_id=member.id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                metadata=member.metadata(protocol) if protocol else b"",
                assignment=member.assignment,
            )
            for member in group.members
        ),
    )


log = logging.getLogger(__name__)

Response = TypeVar("Response", JoinResponse, SyncResponse)


class GroupCoordinator:
    """Coordinates every group: holds pending joins and syncs, and removes members whose session expires."""

    def __init__(
        self, state: StateLog, offsets: CommittedOffsets, clock: BrokerClock, settings: GroupSettings
    ) -> None:
        self._state = state
        self._offsets = offsets
        self._clock = clock
        self.settings = settings
        self._groups: dict[str, Group] = {}
        self._timers: dict[str, DeadlineTimer] = {}
        self._pending: dict[RequestId, asyncio.Future[Any]] = {}
        self._request_ids = itertools.count()
        self._is_draining = False
        self._expiration_timer = DeadlineTimer(clock, self._expire_all)
        offsets.set_commit_rules(self)

    # Lifecycle

    def load(self) -> None:
        """Restore groups and offsets from the log, and start the session timers of the members."""
        stored: dict[str, bytes | None] = {}
        self._offsets.begin_replay()
        for entry in self._state.replay():
            if isinstance(entry, StateRecord) and is_group_key(entry.key):
                stored[str(read_key(entry.key))] = entry.value
            else:
                self._offsets.replay(entry)
        for group_id, value in stored.items():
            if value is not None:
                group = Group.restore(group_id, read_group(value), self.settings, self._clock.now_ms())
                self._register(group)
        for group_id in self._offsets.group_ids() - self._groups.keys():
            self._get_or_create(group_id)
        self._schedule_expiration()

    def drain(self) -> None:
        """Reject all pending and new joins and syncs; heartbeats and commits are still served."""
        self._is_draining = True
        for group in self._groups.values():
            group.fail_pending(ErrorCode.not_coordinator)
            self._apply_effects(group)

    def close(self) -> None:
        """Reject all pending requests and stop all timers; the groups are in the log."""
        self.drain()
        self._expiration_timer.stop()
        for timer in self._timers.values():
            timer.stop()

    # Members

    async def join(self, request: JoinRequest) -> JoinResponse:
        """The generation that the client has joined, as soon as it begins."""
        if self._is_draining:
            return JoinResponse(error=ErrorCode.not_coordinator, member_id=request.member_id)
        group = self._group_to_join(request.group_id, request.member_id)
        if group is None:
            return JoinResponse(error=ErrorCode.unknown_member_id, member_id=request.member_id)
        request_id, response = self._add_pending()
        group.join(request, request_id, self._clock.now_ms())
        self._apply_effects(group)
        return await self._wait_for(request_id, response, _join_not_durable(request))

    async def sync(self, request: SyncRequest) -> SyncResponse:
        """The member's assignment, as soon as the leader has sent it."""
        if self._is_draining:
            return SyncResponse(error=ErrorCode.not_coordinator)
        group = self._groups.get(request.group_id)
        if group is None:
            return SyncResponse(error=ErrorCode.unknown_member_id)
        request_id, response = self._add_pending()
        group.sync(request, request_id, self._clock.now_ms())
        self._apply_effects(group)
        return await self._wait_for(request_id, response, _SYNC_NOT_DURABLE)

    def heartbeat(self, group_id: str, member_id: str, generation: int, instance_id: str | None) -> ErrorCode:
        """Extend a member's session; REBALANCE_IN_PROGRESS tells it to rejoin."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.unknown_member_id
        # The timer is not moved: it fires early and is then set again.
        return group.heartbeat(member_id, instance_id, generation, self._clock.now_ms())

    def leave(self, group_id: str, leavers: Sequence[MemberIdentity]) -> list[ErrorCode]:
        """Remove members, with a result for each."""
        group = self._groups.get(group_id)
        if group is None:
            return [ErrorCode.unknown_member_id] * len(leavers)
        results = group.leave(leavers, self._clock.now_ms())
        self._apply_effects(group)
        return results

    # Offsets

    def check_commit(
        self, group_id: str, member_id: str, generation: int, instance_id: str | None, *, transactional: bool
    ) -> ErrorCode:
        """Whether this client may commit; a commit without a generation creates a missing group."""
        group = self._groups.get(group_id)
        if group is None:
            if generation >= 0:
                return ErrorCode.illegal_generation if transactional else ErrorCode.group_id_not_found
            group = self._get_or_create(group_id)
        error = rules.check_commit(group, member_id, generation, instance_id, transactional=transactional)
        if error is ErrorCode.none and not transactional:
            group.committed(member_id, self._clock.now_ms())
        return error

    def check_offset_delete(self, group_id: str) -> ErrorCode:
        """Whether offsets of the group may be deleted."""
        return rules.check_offset_delete(self._groups.get(group_id))

    def is_subscribed(self, group_id: str, topic: str) -> bool:
        """Whether members of the group read this topic."""
        group = self._groups.get(group_id)
        return group is not None and group.is_subscribed_to(topic)

    # Administration

    def describe(self, group_id: str) -> GroupDescription | None:
        """The group as DescribeGroups shows it."""
        group = self._groups.get(group_id)
        return None if group is None else describe_group(group)

    def list(self) -> list[GroupDescription]:
        """All groups, sorted by id."""
        return [describe_group(group) for _, group in sorted(self._groups.items())]

    def __iter__(self) -> Iterator[Group]:
        return iter(self._groups.values())

    def delete(self, group_id: str) -> ErrorCode:
        """Delete a group without members, and its offsets."""
        return run_steps(self.delete_steps(group_id))

    def delete_steps(self, group_id: str) -> Generator[None, None, ErrorCode]:
        """Delete a group without members; yields between two parts of its offsets."""
        error = rules.check_delete(self._groups.get(group_id))
        if error is not ErrorCode.none:
            return error
        yield from self._offsets.delete_group_steps(group_id)
        group = self._groups.get(group_id)
        error = rules.check_delete(group)  # a member may have joined meanwhile
        if error is ErrorCode.none and group is not None:
            self._remove(group)
        return error

    # Groups

    def _group_to_join(self, group_id: str, member_id: str) -> Group | None:
        # Only a client without an id creates a group: one with an id was a member of a deleted group.
        if member_id == UNKNOWN_MEMBER:
            return self._get_or_create(group_id)
        return self._groups.get(group_id)

    def _get_or_create(self, group_id: str) -> Group:
        group = self._groups.get(group_id)
        if group is None:
            group = Group(group_id, self.settings, self._clock.now_ms())
            self._register(group)
        return group

    def _register(self, group: Group) -> None:
        self._groups[group.id] = group
        self._timers[group.id] = DeadlineTimer(self._clock, lambda: self._deadline_passed(group))
        self._apply_effects(group)

    def _remove(self, group: Group) -> None:
        self._state.append([(write_group_key(group.id), None)])
        group.delete(self._clock.now_ms())
        self._apply_effects(group)
        self._timers.pop(group.id).stop()
        del self._groups[group.id]

    def _deadline_passed(self, group: Group) -> None:
        group.expire(self._clock.now_ms())
        self._apply_effects(group)

    # Effects

    def _apply_effects(self, group: Group) -> None:
        """Carry out the effects of the group, and set its timer."""
        while effects := group.take_effects():
            if not self._apply(group, effects):
                group.force_rebalance(self._clock.now_ms())
        self._timers[group.id].set(group.next_deadline_ms())

    def _apply(self, group: Group, effects: Iterable[Effect]) -> bool:
        is_stored = True
        for effect in effects:
            if not isinstance(effect, SendResponse):
                is_stored = self._store(group)
            else:
                response = effect.response if is_stored else _not_stored(effect.response)
                self._respond(effect.request_id, response)
        return is_stored

    def _store(self, group: Group) -> bool:
        try:
            self._state.append([(write_group_key(group.id), write_group(group.snapshot()))])
        except StorageError:
            log.exception("Group %s could not be stored: its members have to rejoin", group.id)
            return False
        return True

    # Pending requests

    def _add_pending(self) -> tuple[RequestId, asyncio.Future[Any]]:
        request_id = RequestId(next(self._request_ids))
        response = asyncio.get_running_loop().create_future()
        self._pending[request_id] = response
        return request_id, response

    async def _wait_for(
        self, request_id: RequestId, pending: asyncio.Future[Response], not_durable: Response
    ) -> Response:
        try:
            response = await pending
            await self._state.durable()
        except StorageError:
            log.exception("The state of a group could not be made durable")
            return not_durable
        finally:
            # The response to a client that disconnected is dropped; its session decides whether it is dead.
            self._pending.pop(request_id, None)
        return response

    def _respond(self, request_id: RequestId, response: JoinResponse | SyncResponse) -> None:
        pending = self._pending.get(request_id)
        if pending is not None and not pending.done():
            pending.set_result(response)

    # Expiration of offsets

    def _schedule_expiration(self) -> None:
        interval_ms = self.settings.offsets_retention_check_interval_ms
        self._expiration_timer.set(self._clock.now_ms() + interval_ms)

    def _expire_all(self) -> None:
        """Remove expired offsets, and groups that have neither members nor offsets."""
        try:
            for group in list(self._groups.values()):
                self._expire_offsets(group)
        except StorageError:
            log.exception("Expired offsets could not be removed: the next check tries again")
        self._schedule_expiration()

    def _expire_offsets(self, group: Group) -> None:
        committed = self._offsets.of_group(group.id)
        expired = rules.expired_offsets(group, committed, self._clock.now_ms())
        self._offsets.delete(
            group.id,
            (partition for partition in expired if not self._offsets.is_pending(group.id, *partition)),
        )
        has_offsets = self._offsets.of_group(group.id) or self._offsets.has_pending(group.id)
        if group.is_empty and not has_offsets:
            self._remove(group)


def _join_not_durable(request: JoinRequest) -> JoinResponse:
    return JoinResponse(error=ErrorCode.coordinator_not_available, member_id=request.member_id)


_SYNC_NOT_DURABLE = SyncResponse(error=ErrorCode.coordinator_not_available)


def _not_stored(response: JoinResponse | SyncResponse) -> JoinResponse | SyncResponse:
    if isinstance(response, JoinResponse):
        return JoinResponse(error=ErrorCode.coordinator_not_available, member_id=UNKNOWN_MEMBER)
    return _SYNC_NOT_DURABLE
