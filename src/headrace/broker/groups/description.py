"""Groups as tools see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.broker.groups.states import GroupState

if TYPE_CHECKING:
    from headrace.broker.groups.standing import Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    """One member: who it is, where it runs, and what it was given."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """One group at a moment."""

    group_id: str
    state: GroupState
    protocol_type: str
    protocol: str
    """Empty unless the group is stable: between generations there is no choice to show."""
    members: tuple[MemberDescription, ...]


def describe(group: Standing) -> GroupDescription:
    """The group as it is now."""
    protocol = group.protocol if group.state is GroupState.STABLE else None
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
