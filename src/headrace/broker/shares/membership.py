"""Who is in a share group, and what each member reads.

Every member is given all partitions of the topics that it wants: a record goes to whoever asks first, so that
nothing waits for a slow member, and members come and go without a rebalance. Apache Kafka, whose partitions
lie on many brokers, spreads them instead. Members are not stored: after a restart they join again by
themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

JOIN: Final = 0
LEAVE: Final = -1

Assignment = tuple[tuple[UUID, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One heartbeat: who, in which epoch, and what it wants to read when that changed."""

    member_id: str
    epoch: int
    subscription: tuple[str, ...] | None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to a heartbeat; the assignment only when it is news."""

    error: ErrorCode = ErrorCode.none
    message: str | None = None
    epoch: int = 0
    assignment: Assignment | None = None


@dataclass(slots=True, kw_only=True)
class ShareMember:
    """One consumer of the group."""

    id: str
    client_id: str
    client_host: str
    rack: str | None = None
    subscription: tuple[str, ...] = ()
    assignment: Assignment = ()
    epoch: int = 0
    last_epoch: int = 0
    expires_at_ms: int = 0


@dataclass(slots=True)
class ShareGroup:
    """One share group."""

    id: str
    epoch: int = 0
    members: dict[str, ShareMember] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """Kafka's word for it."""
        return "Stable" if self.members else "Empty"

    def beat(
        self,
        beat: Beat,
        expires_at_ms: int,
        max_members: int,
        assign: Callable[[Sequence[str]], Assignment],
    ) -> Reply:
        """Let a member join or go on; `assign` gives the partitions of topics."""
        member = self.members.get(beat.member_id)
        if beat.epoch == JOIN:
            if member is None and len(self.members) >= max_members:
                message = f"the group has {max_members} members already"
                return Reply(error=ErrorCode.group_max_size_reached, message=message)
            if beat.subscription is None:
                return Reply(error=ErrorCode.invalid_request, message="a new member says what it reads")
            member = member or self._admit(beat)
        elif member is None:
            return Reply(error=ErrorCode.unknown_member_id, message="the member is not in the group")
        elif beat.epoch not in (member.epoch, member.last_epoch):
            return Reply(error=ErrorCode.fenced_member_epoch, message=f"the epoch is {member.epoch}")
        return self._go_on(member, beat, expires_at_ms, assign)

    def _admit(self, beat: Beat) -> ShareMember:
        member = ShareMember(id=beat.member_id, client_id=beat.client_id, client_host=beat.client_host)
        self.members[member.id] = member
        self.epoch += 1
        return member

    def _go_on(
        self,
        member: ShareMember,
        beat: Beat,
        expires_at_ms: int,
        assign: Callable[[Sequence[str]], Assignment],
    ) -> Reply:
        member.expires_at_ms = expires_at_ms
        if beat.rack is not None:
            member.rack = beat.rack
        if beat.subscription is not None:
            member.subscription = beat.subscription
        assignment = assign(member.subscription)
        is_changed = assignment != member.assignment
        if is_changed and member.epoch:
            self.epoch += 1
        # A client in an older epoch has not heard the last answer.
        is_news = is_changed or beat.epoch != member.epoch or not member.epoch
        member.assignment = assignment
        if is_changed or not member.epoch:
            member.last_epoch, member.epoch = member.epoch, self.epoch
        return Reply(epoch=member.epoch, assignment=assignment if is_news else None)

    def leave(self, member_id: str) -> bool:
        """Let a member go; False when it is not here."""
        if self.members.pop(member_id, None) is None:
            return False
        self.epoch += 1
        return True

    def expired(self, now_ms: int) -> Iterator[str]:
        """Members that were not heard of for too long."""
        return (member.id for member in list(self.members.values()) if member.expires_at_ms <= now_ms)

    def next_deadline_ms(self) -> int | None:
        """When the first member will have been silent for too long."""
        return min((member.expires_at_ms for member in self.members.values()), default=None)
