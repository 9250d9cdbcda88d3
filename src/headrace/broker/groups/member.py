"""One member of a group: what it can do, what it was given, and what it waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Set

    from headrace.broker.groups.replies import Ticket
    from headrace.broker.groups.requests import JoinRequest


@dataclass(slots=True, kw_only=True)
class Member:
    """A member's place in its group; changed only by the group."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    is_new: bool = False
    """Until its first generation: it may not know its id yet, and is timed out even while it waits."""
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None
    expires_at_ms: int | None = None
    """When it counts as dead; None after a deadline that passed while it waited for the group's answer."""

    @property
    def is_joining(self) -> bool:
        """Whether its join waits for the answer."""
        return self.join_ticket is not None

    @property
    def is_excused(self) -> bool:
        """Whether a missing heartbeat is the group's doing: the member waits for an answer."""
        return not self.is_new and (self.join_ticket is not None or self.sync_ticket is not None)

    def metadata(self, protocol: str | None) -> bytes:
        """What the member sent for `protocol`."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: Set[str]) -> str:
        """The candidate that the member prefers."""
        return next(name for name, _ in self.protocols if name in candidates)

    def update(self, request: JoinRequest) -> None:
        """Take over what the member says of itself when it joins again."""
        self.protocols = request.protocols
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.session_timeout_ms = request.session_timeout_ms
