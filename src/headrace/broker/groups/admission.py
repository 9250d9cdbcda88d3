"""Whether a client that wants to join is let in, and how: the rules of JoinGroup, without their effects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from headrace.broker.groups.requests import UNKNOWN_MEMBER
from headrace.broker.groups.states import GroupState

if TYPE_CHECKING:
    from headrace.broker.groups.member import Member
    from headrace.broker.groups.requests import JoinRequest
    from headrace.broker.groups.standing import Standing


@dataclass(frozen=True, slots=True)
class Refuse:
    """The client stays out, for this reason."""

    error: ErrorCode


@dataclass(frozen=True, slots=True)
class TellId:
    """A newcomer gets its member id, and has to join again with it, so that a lost answer leaves no ghost."""


@dataclass(frozen=True, slots=True)
class Add:
    """The client becomes a new member."""


@dataclass(frozen=True, slots=True)
class Replace:
    """The client takes the place of a static member: the same instance, started anew."""

    member: Member


@dataclass(frozen=True, slots=True)
class Update:
    """The member joins the next generation."""

    member: Member


@dataclass(frozen=True, slots=True)
class ShowCurrent:
    """Nothing has changed for the member: it is told the generation that it is in."""

    member: Member


Verdict = Refuse | TellId | Add | Replace | Update | ShowCurrent


def judge_join(group: Standing, request: JoinRequest) -> Verdict:
    """What becomes of a client that wants to join."""
    if group.state is GroupState.DEAD:
        return Refuse(ErrorCode.coordinator_not_available)
    if not _has_room(group, request):
        return Refuse(ErrorCode.group_max_size_reached)
    if not _shares_a_protocol(group, request):
        return Refuse(ErrorCode.inconsistent_group_protocol)
    if request.member_id == UNKNOWN_MEMBER:
        return _judge_newcomer(group, request)
    if request.member_id in group.members.pending:
        return _judge_returning_newcomer(request)
    return _judge_member(group, request)


def _has_room(group: Standing, request: JoinRequest) -> bool:
    limit = group.settings.max_size
    member = group.members.get(request.member_id) or _holder(group, request)
    if group.state is GroupState.EMPTY:
        return True
    if group.state is GroupState.PREPARING_REBALANCE:
        # Those who have joined count, and not the members: after the limit was lowered, the last to come go.
        has_joined = member is not None and member.is_joining
        return has_joined or len(group.members) < limit or group.members.joining < limit
    return member is not None or len(group.members) < limit


def _shares_a_protocol(group: Standing, request: JoinRequest) -> bool:
    if len(group.members) == 0:
        return bool(request.protocol_type and request.protocols)
    if request.protocol_type != group.protocol_type:
        return False
    return any(group.members.is_common(name) for name, _ in request.protocols)


def _judge_newcomer(group: Standing, request: JoinRequest) -> Verdict:
    if request.instance_id is None:
        return TellId() if request.must_return else Add()
    member = _holder(group, request)
    return Add() if member is None else Replace(member)


def _holder(group: Standing, request: JoinRequest) -> Member | None:
    """The member whose static place a client without an id comes back to."""
    if request.member_id != UNKNOWN_MEMBER or request.instance_id is None:
        return None
    holder = group.members.static_id(request.instance_id)
    return None if holder is None else group.members.get(holder)


def _judge_returning_newcomer(request: JoinRequest) -> Verdict:
    # Static members are never told to come back, so an instance id here is a client's mistake.
    return Add() if request.instance_id is None else Refuse(ErrorCode.invalid_request)


def _judge_member(group: Standing, request: JoinRequest) -> Verdict:
    error = group.check_member(request.member_id, request.instance_id)
    member = group.members.get(request.member_id)
    if error is not ErrorCode.none or member is None:
        return Refuse(error)
    is_unchanged = member.protocols == request.protocols
    if group.state is GroupState.COMPLETING_REBALANCE and is_unchanged:
        return ShowCurrent(member)  # the answer to its first join was lost
    # A leader that joins again wants to assign anew: topics may have changed though its subscription has not.
    if group.state is GroupState.STABLE and is_unchanged and group.members.leader != member.id:
        return ShowCurrent(member)
    return Update(member)
