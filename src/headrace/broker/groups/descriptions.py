"""Descriptions of groups and members, as DescribeGroups returns them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.broker.groups.group import Group, GroupState


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
