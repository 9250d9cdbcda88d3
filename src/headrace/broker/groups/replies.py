"""What a group tells the members that wait, and what it wants kept: the contents of its outbox."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NewType

from kio.schema.errors import ErrorCode

from headrace.broker.groups.requests import NO_GENERATION

Ticket = NewType("Ticket", int)
"""The number of a request that waits for its answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """A member as its leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
    """The generation that a member is in, or why it is in none."""

    error: ErrorCode = ErrorCode.none
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = field(default=())
    """Everybody, for the leader; nobody, for the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReply:
    """A member's assignment, or why it has none."""

    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Answer:
    """The request of this ticket gets this reply."""

    ticket: Ticket
    reply: JoinReply | SyncReply


@dataclass(frozen=True, slots=True)
class Store:
    """The group as it is now must survive a restart, before the answers that follow are given."""


Effect = Answer | Store
