"""Requests to a group and its responses, independent of the protocol version.

A group does not send responses itself. It collects `Effects`, which the coordinator carries out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NewType

from kio.schema.errors import ErrorCode

if TYPE_CHECKING:
    from headrace.broker.groups.members import Member

UNKNOWN_MEMBER: Final = ""
"""The member id of a client that has none yet."""
MAX_METADATA_BYTES: Final = 2 * 2**20
"""Metadata of all members of a group, and assignments of all members, in bytes: a group is one record."""
NO_GENERATION: Final = -1
"""The generation of a client that does not take part in rebalances."""

RequestId = NewType("RequestId", int)
"""Identifies a request whose response is pending."""


# Requests


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A client joins the next generation."""

    group_id: str
    member_id: str
    """Empty for a client that has no id yet."""
    instance_id: str | None
    """Set for static members, which keep their assignment across a restart."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Names and metadata of the assignors that the client supports, the preferred one first."""
    requires_known_member_id: bool
    """Whether a new dynamic member receives its id first and joins again with it (JoinGroup 4)."""
    supports_skip_assignment: bool
    """Whether a static leader that rejoins understands `skip_assignment` (JoinGroup 9)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A member asks for its assignment; the leader sends the assignments of all members."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    """A member that leaves, by member id, or by instance id alone when an administrator removes it."""

    member_id: str
    instance_id: str | None = None


# Responses


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResponse:
    """The generation that a member has joined, or an error."""

    error: ErrorCode = ErrorCode.none
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = field(default=())
    """All members, for the leader; empty for followers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResponse:
    """A member's assignment, or an error."""

    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


# Effects


@dataclass(frozen=True, slots=True)
class SendResponse:
    """Send this response to a pending request."""

    request_id: RequestId
    response: JoinResponse | SyncResponse


@dataclass(frozen=True, slots=True)
class StoreGroup:
    """Write the group to the log before the responses that follow are sent."""


Effect = SendResponse | StoreGroup


class Effects:
    """The effects that a group requests, in order; each request gets exactly one response."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []

    def store(self) -> None:
        """Request that the group is written to the log."""
        self._effects.append(StoreGroup())

    def respond(self, request_id: RequestId, response: JoinResponse | SyncResponse) -> None:
        """Respond to a request."""
        self._effects.append(SendResponse(request_id, response))

    def respond_join(self, member: Member, response: JoinResponse) -> None:
        """Respond to the member's pending join, if there is one."""
        if member.pending_join is not None:
            self.respond(member.pending_join, response)
            member.pending_join = None

    def respond_sync(self, member: Member, response: SyncResponse) -> bool:
        """Respond to the member's pending sync; False if there is none."""
        if member.pending_sync is None:
            return False
        self.respond(member.pending_sync, response)
        member.pending_sync = None
        return True

    def take(self) -> list[Effect]:
        """All effects since the last call."""
        effects, self._effects = self._effects, []
        return effects
