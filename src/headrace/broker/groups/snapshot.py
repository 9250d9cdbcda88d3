"""A group as the log keeps it, and a group made from that again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.groups.group import Group
from headrace.broker.groups.member import Member
from headrace.broker.groups.membership import Membership
from headrace.broker.groups.records import NO_TIME, StoredGroup, StoredMember
from headrace.broker.groups.states import GroupState

if TYPE_CHECKING:
    from headrace.broker.groups.settings import GroupSettings


def snapshot(group: Group) -> StoredGroup:
    """What of a group must survive a restart."""
    return StoredGroup(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.members.leader,
        since_ms=group.since_ms,
        members=tuple(_store_member(member, group.protocol) for member in group.members),
    )


def restore(group_id: str, stored: StoredGroup, settings: GroupSettings, now_ms: int) -> Group:
    """The group as it was: its members get a whole session to be heard of, and go on without a rebalance."""
    group = Group(group_id, settings, now_ms if stored.since_ms == NO_TIME else stored.since_ms)
    members = [_restore_member(member, stored.protocol or "", now_ms) for member in stored.members]
    group.members = Membership(members, stored.leader)
    group.state = GroupState.STABLE if members else GroupState.EMPTY
    group.generation = stored.generation
    group.protocol_type = stored.protocol_type or None
    group.protocol = stored.protocol
    group.learn_subscriptions()
    if len(members) > settings.max_size:
        group.distrust(now_ms)  # the limit was lowered: the last to join again are turned away
    return group


def _store_member(member: Member, protocol: str | None) -> StoredMember:
    return StoredMember(
        member_id=member.id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=member.session_timeout_ms,
        subscription=member.metadata(protocol),
        assignment=member.assignment,
    )


def _restore_member(stored: StoredMember, protocol: str, now_ms: int) -> Member:
    return Member(
        id=stored.member_id,
        instance_id=stored.instance_id,
        client_id=stored.client_id,
        client_host=stored.client_host,
        rebalance_timeout_ms=stored.rebalance_timeout_ms,
        session_timeout_ms=stored.session_timeout_ms,
        protocols=((protocol, stored.subscription),),
        assignment=stored.assignment,
        expires_at_ms=now_ms + stored.session_timeout_ms,
    )
