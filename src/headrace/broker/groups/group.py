"""The state machine of one classic consumer group: it takes events and the time, and returns effects.

    Empty ──a member joins──▶ PreparingRebalance ──all joined──▶ CompletingRebalance ──leader's sync──▶ Stable
      ▲                          │    ▲                                  │                                │
      └──no member is left───────┘    └──a member joins, leaves or dies──┴────────────────────────────────┘

A rebalance has two phases. In PreparingRebalance joins are pending: when every member has joined, or the
rebalance timeout has passed, the next generation begins and all joins get their responses. In
CompletingRebalance syncs are pending: the leader, which received the subscriptions of all members, sends all
assignments, and all syncs get their responses. Heartbeats tell members about the next rebalance.

Nothing here waits, writes or reads a clock. The caller takes the effects after each event, reads the next
deadline from `next_deadline_ms`, and calls `expire` when it has passed.
"""

from __future__ import annotations

import uuid
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self, assert_never

from kio.schema.errors import ErrorCode

from headrace.broker.groups.members import CONSUMER_PROTOCOL, GroupMembers, Member, read_subscriptions
from headrace.broker.groups.messages import (
    UNKNOWN_MEMBER,
    Effects,
    JoinedMember,
    JoinResponse,
    SyncResponse,
)
from headrace.broker.groups.records import NO_TIME, StoredGroup
from headrace.broker.groups.rules import (
    AddMember,
    RebalanceDeadlines,
    RejectJoin,
    ReplaceStaticMember,
    RequireMemberId,
    ReturnCurrentGeneration,
    UpdateMember,
    decide_join,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.broker.groups.messages import Effect, JoinRequest, MemberIdentity, RequestId, SyncRequest
    from headrace.broker.groups.settings import GroupSettings


class GroupState(StrEnum):
    """The state of a group; the values are the names that Kafka's tools show."""

    EMPTY = "Empty"
    """No members. The group remains while it has offsets, also if it never had members."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members are joining the next generation."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The members of the generation are known; the leader has not sent their assignments yet."""
    STABLE = "Stable"
    """Every member has its assignment."""
    DEAD = "Dead"
    """Deleted or expired."""


TRANSITIONS: Final[Mapping[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.DEAD}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset(
        {GroupState.STABLE, GroupState.PREPARING_REBALANCE, GroupState.DEAD}
    ),
    GroupState.STABLE: frozenset({GroupState.PREPARING_REBALANCE, GroupState.DEAD}),
    GroupState.DEAD: frozenset(),
}


class Group:
    """One group, from its first member or its first offset to its deletion."""

    def __init__(self, group_id: str, settings: GroupSettings, now_ms: int) -> None:
        self.id = group_id
        self.settings = settings
        self.state = GroupState.EMPTY
        self.state_since_ms = now_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.members = GroupMembers()
        self.subscribed_topics: frozenset[str] | None = None
        """The topics that its consumers read, if the broker can read their subscriptions."""
        self._is_initial_rebalance = False
        """Whether the current rebalance is the first since the group was empty."""
        self._unsynced: set[str] = set()
        self._deadlines = RebalanceDeadlines()
        self._effects = Effects()

    @classmethod
    def restore(cls, group_id: str, stored: StoredGroup, settings: GroupSettings, now_ms: int) -> Self:
        """The group from its record: members get a full session timeout and continue without a rebalance."""
        group = cls(group_id, settings, now_ms if stored.since_ms == NO_TIME else stored.since_ms)
        members = [Member.restore(member, stored.protocol or "", now_ms) for member in stored.members]
        group.members = GroupMembers(members, stored.leader)
        group.state = GroupState.STABLE if members else GroupState.EMPTY
        group.generation = stored.generation
        group.protocol_type = stored.protocol_type or None
        group.protocol = stored.protocol
        group._update_subscribed_topics()
        if len(members) > settings.max_size:
            group.force_rebalance(now_ms)  # the limit was lowered: the last members to rejoin are rejected
        return group

    def snapshot(self) -> StoredGroup:
        """The record from which `restore` creates the group."""
        return StoredGroup(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.members.leader,
            since_ms=self.state_since_ms,
            members=tuple(member.snapshot(self.protocol) for member in self.members),
        )

    # Queries

    @property
    def is_empty(self) -> bool:
        """Whether the group is Empty."""
        return self.state is GroupState.EMPTY

    @property
    def is_preparing_rebalance(self) -> bool:
        """Whether members are joining the next generation."""
        return self.state is GroupState.PREPARING_REBALANCE

    @property
    def is_completing_rebalance(self) -> bool:
        """Whether members wait for the leader's assignments."""
        return self.state is GroupState.COMPLETING_REBALANCE

    @property
    def is_stable(self) -> bool:
        """Whether every member has its assignment."""
        return self.state is GroupState.STABLE

    @property
    def is_dead(self) -> bool:
        """Whether the group was deleted or has expired."""
        return self.state is GroupState.DEAD

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether a request comes from a member that is not fenced."""
        if self.is_dead:
            return ErrorCode.coordinator_not_available
        if instance_id is not None:
            holder = self.members.static_member_id(instance_id)
            if holder is not None and holder != member_id:
                return ErrorCode.fenced_instance_id
            if holder is None:
                return ErrorCode.unknown_member_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def check_generation(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Whether a request comes from a member of the current generation."""
        error = self.check_member(member_id, instance_id)
        if error is ErrorCode.none and generation != self.generation:
            return ErrorCode.illegal_generation
        return error

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a consumer of the group reads `topic`; assumed if subscriptions cannot be read."""
        if self.subscribed_topics is None:
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic in self.subscribed_topics

    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to do, if no event comes before."""
        sessions = (member.expires_at_ms for member in self.members if member.expires_at_ms is not None)
        return self._deadlines.earliest([*sessions, *self.members.pending.values()])

    def take_effects(self) -> list[Effect]:
        """All effects since the last call, in order."""
        return self._effects.take()

    # Events

    def join(self, request: JoinRequest, request_id: RequestId, now_ms: int) -> None:
        """Add a client to the next generation or reject it; the response may be sent later."""
        match decide_join(self, request):
            case RejectJoin(error):
                self._reject_join(request, error, request_id, now_ms)
            case RequireMemberId():
                self._require_member_id(request, request_id, now_ms)
            case AddMember():
                self._add_member(request, request_id, now_ms)
            case ReplaceStaticMember(member):
                self._replace_static_member(member, request, request_id, now_ms)
            case UpdateMember(member):
                self._update_member(member, request, request_id)
                self._rebalance(now_ms)
            case ReturnCurrentGeneration(member):
                self._effects.respond(request_id, self._join_response(member))
            case decision:  # pragma: no cover
                assert_never(decision)

    def sync(self, request: SyncRequest, request_id: RequestId, now_ms: int) -> None:
        """Respond with the member's assignment as soon as the leader has sent it."""
        error = self._check_sync(request)
        member = self.members.get(request.member_id)
        if error is not ErrorCode.none or member is None:
            self._effects.respond(request_id, SyncResponse(error=error))
            return
        self._mark_synced(member.id)
        if self.is_stable:
            self._effects.respond(request_id, self._sync_response(member))
            return
        superseded = SyncResponse(error=ErrorCode.rebalance_in_progress)
        self._effects.respond_sync(member, superseded)
        member.pending_sync = request_id
        if member.id == self.members.leader:
            self._assign(dict(request.assignments), now_ms)

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: int) -> ErrorCode:
        """Extend a member's session; REBALANCE_IN_PROGRESS tells it to rejoin."""
        error = self.check_generation(member_id, instance_id, generation)
        member = self.members.get(member_id)
        if error is not ErrorCode.none or member is None:
            return error
        self._extend_session(member, now_ms)
        return ErrorCode.rebalance_in_progress if self.is_preparing_rebalance else ErrorCode.none

    def leave(self, leavers: Sequence[MemberIdentity], now_ms: int) -> list[ErrorCode]:
        """Remove members, with a result for each; the others rebalance once."""
        members_before = len(self.members)
        results = [self._remove_leaver(leaver) for leaver in leavers]
        if len(self.members) < members_before:
            self._rebalance_after_removal(now_ms)
        else:
            self._try_complete_joins(now_ms)  # the rebalance may have waited for a pending member that left
        return results

    def committed(self, member_id: str, now_ms: int) -> None:
        """Extend the session of a member that committed: a commit counts as a heartbeat."""
        member = self.members.get(member_id)
        if member is not None and (self.is_stable or self.is_preparing_rebalance):
            self._extend_session(member, now_ms)

    def expire(self, now_ms: int) -> None:
        """Remove members whose session has expired, and end waits whose deadline has passed."""
        self._expire_pending_members(now_ms)
        self._expire_sessions(now_ms)
        if self._deadlines.take_join(now_ms):
            self._join_deadline_passed(now_ms)
        if self._deadlines.take_sync(now_ms):
            self._remove_unsynced(now_ms)

    def fail_pending(self, error: ErrorCode) -> None:
        """Respond to all pending joins and syncs with `error`, and change nothing else."""
        for member in self.members:
            self._effects.respond_join(member, JoinResponse(error=error, member_id=member.id))
            self._effects.respond_sync(member, SyncResponse(error=error))

    def delete(self, now_ms: int) -> None:
        """Make the group Dead."""
        self.fail_pending(ErrorCode.coordinator_not_available)
        self._transition_to(GroupState.DEAD, now_ms)

    def force_rebalance(self, now_ms: int) -> None:
        """Make all members of a stable group rejoin."""
        if self.is_stable:
            self._prepare_rebalance(now_ms)

    # Joining

    def _reject_join(
        self, request: JoinRequest, error: ErrorCode, request_id: RequestId, now_ms: int
    ) -> None:
        if error is not ErrorCode.group_max_size_reached:
            self._effects.respond(request_id, JoinResponse(error=error, member_id=request.member_id))
            return
        self._effects.respond(request_id, JoinResponse(error=error, member_id=UNKNOWN_MEMBER))
        self.members.remove(request.member_id)
        self._try_complete_joins(now_ms)

    def _require_member_id(self, request: JoinRequest, request_id: RequestId, now_ms: int) -> None:
        member_id = _new_member_id(request)
        self.members.pending[member_id] = now_ms + request.session_timeout_ms
        response = JoinResponse(error=ErrorCode.member_id_required, member_id=member_id)
        self._effects.respond(request_id, response)

    def _add_member(self, request: JoinRequest, request_id: RequestId, now_ms: int) -> None:
        member = Member(
            id=request.member_id or _new_member_id(request),
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
            is_new=True,
            pending_join=request_id,
            expires_at_ms=now_ms + self.settings.new_member_join_timeout_ms,
        )
        if len(self.members) == 0:
            self.protocol_type = request.protocol_type
        self.members.add(member)
        self._deadlines.member_added()
        self._rebalance(now_ms)

    def _replace_static_member(
        self, member: Member, request: JoinRequest, request_id: RequestId, now_ms: int
    ) -> None:
        """Let the new process of a static member replace the old one, which is fenced."""
        fenced = ErrorCode.fenced_instance_id
        self._effects.respond_join(member, JoinResponse(error=fenced, member_id=member.id))
        self._effects.respond_sync(member, SyncResponse(error=fenced))
        old_id, old_leader = member.id, self.members.leader
        self.members.replace_static(member, _new_member_id(request))
        member.client_id, member.client_host = request.client_id, request.client_host
        member.is_new = False
        if old_id in self._unsynced:
            self._unsynced ^= {old_id, member.id}
        self._update_member(member, request, request_id)
        self._extend_session(member, now_ms)
        if self.is_stable and self.members.elect_protocol() == self.protocol:
            self._resume_static_member(member, request, old_leader or "")
        else:
            self._rebalance(now_ms)

    def _resume_static_member(self, member: Member, request: JoinRequest, old_leader: str) -> None:
        """Let a static member continue with its assignment, without a rebalance."""
        self._update_subscribed_topics()
        self._effects.store()
        is_leader = self.members.leader == member.id
        if request.supports_skip_assignment:
            response = self._join_response(member, skip_assignment=is_leader)
        else:
            # An older client that finds itself the leader would send new assignments, which a stable group
            # ignores. The response names the leader's former id, so that the client acts as a follower.
            response = self._join_response(member, leader=old_leader)
        self._effects.respond_join(member, response)

    def _update_member(self, member: Member, request: JoinRequest, request_id: RequestId) -> None:
        # The client has abandoned an earlier request, which gets a response nevertheless.
        superseded = JoinResponse(error=ErrorCode.rebalance_in_progress, member_id=member.id)
        self._effects.respond_join(member, superseded)
        self.members.update(member, request)
        member.pending_join = request_id

    def _join_response(
        self, member: Member, *, leader: str | None = None, skip_assignment: bool = False
    ) -> JoinResponse:
        """The current generation; with the metadata of all members for the leader."""
        leader = leader or self.members.leader or ""
        return JoinResponse(
            member_id=member.id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=leader,
            skip_assignment=skip_assignment,
            members=self._joined_members() if leader == member.id else (),
        )

    def _joined_members(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(member_id=m.id, instance_id=m.instance_id, metadata=m.metadata(self.protocol))
            for m in self.members
        )

    # Rebalancing

    def _transition_to(self, state: GroupState, now_ms: int) -> None:
        assert state in TRANSITIONS[self.state], f"group {self.id} cannot change from {self.state} to {state}"
        self.state = state
        self.state_since_ms = now_ms

    def _rebalance(self, now_ms: int) -> None:
        if GroupState.PREPARING_REBALANCE in TRANSITIONS[self.state]:
            self._prepare_rebalance(now_ms)
        else:
            self._try_complete_joins(now_ms)

    def _try_complete_joins(self, now_ms: int) -> None:
        """Begin the generation if all have joined; an initial rebalance always waits for its delay."""
        if self.is_preparing_rebalance and not self._is_initial_rebalance and self.members.all_joined:
            self._complete_joins(now_ms)

    def _prepare_rebalance(self, now_ms: int) -> None:
        if self.is_completing_rebalance:
            self._revoke_assignments(now_ms)
        self._unsynced.clear()
        self._deadlines.stop_sync()
        self._is_initial_rebalance = self.is_empty
        self._transition_to(GroupState.PREPARING_REBALANCE, now_ms)
        timeout_ms = self.members.rebalance_timeout_ms
        if self._is_initial_rebalance:
            self._deadlines.start_initial_join(now_ms, self.settings.initial_rebalance_delay_ms, timeout_ms)
        elif self.members.all_joined:
            self._complete_joins(now_ms)
        else:
            self._deadlines.start_join(now_ms, timeout_ms)

    def _revoke_assignments(self, now_ms: int) -> None:
        for member in self.members:
            member.assignment = b""
            if self._effects.respond_sync(member, SyncResponse(error=ErrorCode.rebalance_in_progress)):
                self._extend_session(member, now_ms)

    def _join_deadline_passed(self, now_ms: int) -> None:
        if not self.is_preparing_rebalance:
            return
        if not (self._is_initial_rebalance and self._deadlines.extend_initial_join(now_ms)):
            self._complete_joins(now_ms)

    def _complete_joins(self, now_ms: int) -> None:
        self._deadlines.stop_join()
        for member in [member for member in self.members if not member.is_joining]:
            if member.instance_id is None:  # static members remain until their session expires
                self.members.remove(member.id)
        if len(self.members) and not self.members.elect_joined_leader():
            self._deadlines.start_join(now_ms, self.members.rebalance_timeout_ms)
        else:
            self._begin_generation(now_ms)

    def _begin_generation(self, now_ms: int) -> None:
        self.generation += 1
        self.protocol = self.members.elect_protocol() if len(self.members) else None
        self._update_subscribed_topics()
        if self.protocol is None:
            self._transition_to(GroupState.EMPTY, now_ms)
            self._effects.store()
            return
        self._transition_to(GroupState.COMPLETING_REBALANCE, now_ms)
        for member in self.members:
            self._effects.respond_join(member, self._join_response(member))
            member.is_new = False
            self._extend_session(member, now_ms)
            self._unsynced.add(member.id)
        self._deadlines.start_sync(now_ms, self.members.rebalance_timeout_ms)

    def _update_subscribed_topics(self) -> None:
        if self.protocol_type != CONSUMER_PROTOCOL:
            self.subscribed_topics = None
        else:
            metadata = (member.metadata(self.protocol) for member in self.members)
            self.subscribed_topics = read_subscriptions(metadata)

    # Syncing

    def _check_sync(self, request: SyncRequest) -> ErrorCode:
        error = self.check_generation(request.member_id, request.instance_id, request.generation)
        if error is not ErrorCode.none:
            return error
        if request.protocol_type not in {None, self.protocol_type}:
            return ErrorCode.inconsistent_group_protocol
        if request.protocol not in {None, self.protocol}:
            return ErrorCode.inconsistent_group_protocol
        if self.is_preparing_rebalance:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def _mark_synced(self, member_id: str) -> None:
        self._unsynced.discard(member_id)
        if not self._unsynced:
            self._deadlines.stop_sync()

    def _assign(self, assignments: dict[str, bytes], now_ms: int) -> None:
        self._transition_to(GroupState.STABLE, now_ms)
        for member in self.members:
            member.assignment = assignments.get(member.id, b"")
        self._effects.store()
        for member in self.members:
            if self._effects.respond_sync(member, self._sync_response(member)):
                self._extend_session(member, now_ms)

    def _sync_response(self, member: Member) -> SyncResponse:
        return SyncResponse(
            protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment
        )

    # Leaving and expiring

    def _remove_leaver(self, leaver: MemberIdentity) -> ErrorCode:
        member_id = leaver.member_id
        if member_id in self.members.pending:
            self.members.remove(member_id)
            return ErrorCode.none
        if member_id == UNKNOWN_MEMBER and leaver.instance_id is not None:
            member_id = self.members.static_member_id(leaver.instance_id) or UNKNOWN_MEMBER
        error = self.check_member(member_id, leaver.instance_id)
        if error is ErrorCode.none:
            self._remove_member(member_id)
        return error

    def _remove_member(self, member_id: str) -> None:
        """Remove a member; its pending requests get UNKNOWN_MEMBER_ID, after which a live client rejoins."""
        member = self.members.get(member_id)
        if member is not None:
            unknown = ErrorCode.unknown_member_id
            self._effects.respond_join(member, JoinResponse(error=unknown, member_id=UNKNOWN_MEMBER))
            self._effects.respond_sync(member, SyncResponse(error=unknown))
        self.members.remove(member_id)
        self._unsynced.discard(member_id)

    def _rebalance_after_removal(self, now_ms: int) -> None:
        if self.is_stable or self.is_completing_rebalance:
            self._prepare_rebalance(now_ms)
        else:
            self._try_complete_joins(now_ms)

    def _expire_pending_members(self, now_ms: int) -> None:
        expired = [member_id for member_id, at_ms in self.members.pending.items() if at_ms <= now_ms]
        for member_id in expired:
            self.members.remove(member_id)
        if expired:
            self._try_complete_joins(now_ms)

    def _expire_sessions(self, now_ms: int) -> None:
        expired = [m for m in self.members if m.expires_at_ms is not None and m.expires_at_ms <= now_ms]
        for member in expired:
            member.expires_at_ms = None  # set again with the response that the member waits for
            if not member.awaits_response:
                self._remove_member(member.id)
        if any(member.id not in self.members for member in expired):
            self._rebalance_after_removal(now_ms)

    def _remove_unsynced(self, now_ms: int) -> None:
        """Remove members that did not ask for their assignment: no member reads the partitions in it."""
        unsynced, self._unsynced = self._unsynced, set()
        for member_id in unsynced:
            self._remove_member(member_id)
        if unsynced:
            self._rebalance_after_removal(now_ms)

    def _extend_session(self, member: Member, now_ms: int) -> None:
        # Before its first generation a member expires with its join, which may take longer than a session.
        if not member.is_new:
            member.expires_at_ms = now_ms + member.session_timeout_ms


def _new_member_id(request: JoinRequest) -> str:
    return f"{request.instance_id or request.client_id}-{uuid.uuid4()}"
