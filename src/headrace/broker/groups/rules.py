"""Decisions about a group: who may join, who may commit, when a rebalance is over, which offsets expire."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.broker.groups.members import CONSUMER_PROTOCOL
from headrace.broker.groups.messages import MAX_METADATA_BYTES, UNKNOWN_MEMBER
from headrace.broker.groups.records import NO_TIME

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.broker.groups.group import Group
    from headrace.broker.groups.members import Member
    from headrace.broker.groups.messages import JoinRequest
    from headrace.broker.groups.records import CommittedOffset


MIN_REBALANCE_WAIT_MS: Final = 100
"""A client may ask for a rebalance timeout of 0, with which a group would check its members continuously."""


class RebalanceDeadlines:
    """When a group stops waiting for joins, and then for syncs."""

    def __init__(self) -> None:
        self._join_at_ms: int | None = None
        self._sync_at_ms: int | None = None
        self._delay_ms = 0
        self._delay_left_ms = 0
        self._has_new_members = False

    def start_join(self, now_ms: int, timeout_ms: int) -> None:
        """Wait for joins until the largest rebalance timeout has passed."""
        self._join_at_ms = now_ms + max(timeout_ms, MIN_REBALANCE_WAIT_MS)

    def start_initial_join(self, now_ms: int, delay_ms: int, timeout_ms: int) -> None:
        """Wait `delay_ms` for more members, repeatedly while new ones join, up to `timeout_ms`."""
        self._delay_ms = delay_ms
        self._delay_left_ms = max(timeout_ms - delay_ms, 0)
        self._has_new_members = False
        self._join_at_ms = now_ms + delay_ms

    def member_added(self) -> None:
        """A new member extends the initial wait by another delay."""
        self._has_new_members = True

    def extend_initial_join(self, now_ms: int) -> bool:
        """Wait for another delay; False if no member was added or the timeout has passed."""
        if not self._has_new_members or self._delay_left_ms == 0 or self._delay_ms == 0:
            return False
        self._has_new_members = False
        delay_ms = min(self._delay_ms, self._delay_left_ms)
        self._delay_left_ms -= delay_ms
        self._join_at_ms = now_ms + delay_ms
        return True

    def start_sync(self, now_ms: int, timeout_ms: int) -> None:
        """Wait for the syncs of all members."""
        self._sync_at_ms = now_ms + max(timeout_ms, MIN_REBALANCE_WAIT_MS)

    def stop_join(self) -> None:
        """Stop waiting for joins."""
        self._join_at_ms = None

    def stop_sync(self) -> None:
        """Stop waiting for syncs."""
        self._sync_at_ms = None

    def take_join(self, now_ms: int) -> bool:
        """Whether the deadline for joins has passed; True once."""
        if self._join_at_ms is None or self._join_at_ms > now_ms:
            return False
        self._join_at_ms = None
        return True

    def take_sync(self, now_ms: int) -> bool:
        """Whether the deadline for syncs has passed; True once."""
        if self._sync_at_ms is None or self._sync_at_ms > now_ms:
            return False
        self._sync_at_ms = None
        return True

    def earliest(self, others: Iterable[int]) -> int | None:
        """The earliest of these deadlines and `others`."""
        own = (at_ms for at_ms in (self._join_at_ms, self._sync_at_ms) if at_ms is not None)
        return min((*own, *others), default=None)


# JoinGroup


@dataclass(frozen=True, slots=True)
class RejectJoin:
    """The client does not become a member."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class RequireMemberId:
    """The client receives its member id and joins again with it, so that a lost response leaves no member."""


@dataclass(frozen=True, slots=True)
class AddMember:
    """The client becomes a new member."""


@dataclass(frozen=True, slots=True)
class ReplaceStaticMember:
    """The client replaces a static member: the same instance after a restart."""

    member: Member


@dataclass(frozen=True, slots=True)
class UpdateMember:
    """The member joins the next generation."""

    member: Member


@dataclass(frozen=True, slots=True)
class ReturnCurrentGeneration:
    """Nothing has changed for the member: the response is its current generation."""

    member: Member


JoinDecision = (
    RejectJoin | RequireMemberId | AddMember | ReplaceStaticMember | UpdateMember | ReturnCurrentGeneration
)


def decide_join(group: Group, request: JoinRequest) -> JoinDecision:
    """How the group handles a join request."""
    if group.is_dead:
        return RejectJoin(ErrorCode.coordinator_not_available)
    if not _has_room(group, request) or not _fits(group, request):
        return RejectJoin(ErrorCode.group_max_size_reached)
    if not _has_common_protocol(group, request):
        return RejectJoin(ErrorCode.inconsistent_group_protocol)
    if request.member_id == UNKNOWN_MEMBER:
        return _decide_new(group, request)
    if request.member_id in group.members.pending:
        return _decide_pending(request)
    return _decide_known(group, request)


def _has_room(group: Group, request: JoinRequest) -> bool:
    limit = group.settings.max_size
    member = group.members.get(request.member_id) or _static_member(group, request)
    if group.is_empty:
        return True
    if group.is_preparing_rebalance:
        # Members that have joined count, not all members: after the limit was lowered, the last to join are
        # rejected.
        has_joined = member is not None and member.is_joining
        return has_joined or len(group.members) < limit or group.members.joining < limit
    return member is not None or len(group.members) < limit


def _fits(group: Group, request: JoinRequest) -> bool:
    """Whether the group stays small enough to be stored as one record; Apache Kafka stores at most 1 MB."""
    member = group.members.get(request.member_id) or _static_member(group, request)
    replaced = 0 if member is None else member.metadata_bytes
    added = sum(len(name) + len(metadata) for name, metadata in request.protocols)
    return group.members.metadata_bytes - replaced + added <= MAX_METADATA_BYTES


def _has_common_protocol(group: Group, request: JoinRequest) -> bool:
    if len(group.members) == 0:
        return bool(request.protocol_type and request.protocols)
    if request.protocol_type != group.protocol_type:
        return False
    return any(group.members.all_support(name) for name, _ in request.protocols)


def _decide_new(group: Group, request: JoinRequest) -> JoinDecision:
    if request.instance_id is None:
        return RequireMemberId() if request.requires_known_member_id else AddMember()
    member = _static_member(group, request)
    return AddMember() if member is None else ReplaceStaticMember(member)


def _static_member(group: Group, request: JoinRequest) -> Member | None:
    """The static member that a client without a member id replaces."""
    if request.member_id != UNKNOWN_MEMBER or request.instance_id is None:
        return None
    member_id = group.members.static_member_id(request.instance_id)
    return None if member_id is None else group.members.get(member_id)


def _decide_pending(request: JoinRequest) -> JoinDecision:
    # Static members never have to join again with an id: an instance id here is a client's mistake.
    return AddMember() if request.instance_id is None else RejectJoin(ErrorCode.invalid_request)


def _decide_known(group: Group, request: JoinRequest) -> JoinDecision:
    error = group.check_member(request.member_id, request.instance_id)
    member = group.members.get(request.member_id)
    if error is not ErrorCode.none or member is None:
        return RejectJoin(error)
    is_unchanged = member.protocols == request.protocols
    if group.is_completing_rebalance and is_unchanged:
        return ReturnCurrentGeneration(member)  # the response to its first join was lost
    # A leader that rejoins wants a new assignment: topics may have changed although its subscription has not.
    if group.is_stable and is_unchanged and group.members.leader != member.id:
        return ReturnCurrentGeneration(member)
    return UpdateMember(member)


# Commits and deletions


def check_commit(
    group: Group, member_id: str, generation: int, instance_id: str | None, *, transactional: bool
) -> ErrorCode:
    """Whether a client may commit: a member of the generation, or any client of a group without members."""
    if group.is_dead:
        return ErrorCode.coordinator_not_available
    if generation < 0 and group.is_empty:
        return ErrorCode.none
    if generation >= 0 or member_id != UNKNOWN_MEMBER or instance_id is not None:
        error = group.check_generation(member_id, instance_id, generation)
        if error is not ErrorCode.none:
            return error
    elif not transactional and not group.is_empty:
        # Old transactional clients do not send their membership; other clients have to.
        return ErrorCode.unknown_member_id
    if not transactional and group.is_completing_rebalance:
        return ErrorCode.rebalance_in_progress
    return ErrorCode.none


def check_delete(group: Group | None) -> ErrorCode:
    """Whether the group may be deleted: it must exist and have no members."""
    if group is None or group.is_dead:
        return ErrorCode.group_id_not_found
    return ErrorCode.none if group.is_empty else ErrorCode.non_empty_group


def check_offset_delete(group: Group | None) -> ErrorCode:
    """Whether offsets of the group may be deleted; with members only if the broker knows their topics."""
    error = check_delete(group)
    if error is ErrorCode.non_empty_group and group is not None and group.protocol_type == CONSUMER_PROTOCOL:
        return ErrorCode.none
    return error


# Retention


def expired_offsets(
    group: Group, offsets: Mapping[tuple[str, int], CommittedOffset], now_ms: int
) -> list[tuple[str, int]]:
    """The partitions whose offsets have expired, by the rules of `offsets.retention.minutes`.

    A group that had members keeps its offsets for the retention time after the last member left. While it is
    stable, it loses the offsets of topics that it no longer reads. A group that only commits loses an offset
    that was not committed again within the retention time.
    """
    return [
        partition
        for partition, committed in offsets.items()
        if not group.is_subscribed_to(partition[0]) and _is_expired(group, committed, now_ms)
    ]


def _is_expired(group: Group, committed: CommittedOffset, now_ms: int) -> bool:
    unused_since_ms = _unused_since_ms(group, committed)
    if unused_since_ms is None:
        return False
    if committed.expires_at_ms != NO_TIME:
        return now_ms >= committed.expires_at_ms
    return now_ms - unused_since_ms >= group.settings.offsets_retention_ms


def _unused_since_ms(group: Group, committed: CommittedOffset) -> int | None:
    if group.protocol_type is None:
        return committed.committed_at_ms
    if group.is_empty:
        return group.state_since_ms
    knows_topics = group.protocol_type == CONSUMER_PROTOCOL and group.subscribed_topics is not None
    if knows_topics and group.is_stable:
        return committed.committed_at_ms
    return None
