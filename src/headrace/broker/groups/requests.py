"""What members ask of a group, free of the wire's versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

UNKNOWN_MEMBER: Final = ""
"""The member id of a client that has none yet."""
NO_GENERATION: Final = -1
"""The generation of a client that takes no part in the group's rebalances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A client wants to be in the next generation."""

    group_id: str
    member_id: str
    """Empty for a client that has no id yet."""
    instance_id: str | None
    """Set for static members, which keep their place over a restart."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Names and metadata of the assignors it can work with, the preferred one first."""
    must_return: bool
    """Whether a new dynamic member is first told its id and has to join again with it (JoinGroup 4)."""
    can_skip_assignment: bool
    """Whether a returning static leader understands that it need not assign anything (JoinGroup 9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A member wants its assignment; the leader brings everybody's."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    """Who leaves: by member id, or by instance id alone when an administrator removes a static member."""

    member_id: str
    instance_id: str | None = None
