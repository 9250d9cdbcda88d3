"""One group on a clock of its own, driven by hand: what the tests of its rules share."""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING

from headrace.broker.groups.group import Group
from headrace.broker.groups.replies import Answer, JoinReply, SyncReply, Ticket
from headrace.broker.groups.requests import JoinRequest, MemberIdentity, SyncRequest
from headrace.broker.groups.settings import GroupSettings
from headrace.broker.groups.snapshot import snapshot

if TYPE_CHECKING:
    from kio.schema.errors import ErrorCode

    from headrace.broker.groups.records import StoredGroup

SESSION_MS = 10_000
REBALANCE_MS = 30_000


def subscription(*topics: str) -> bytes:
    """What a consumer sends when it joins."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


def join_request(
    member_id: str = "",
    *,
    group_id: str = "g",
    instance: str | None = None,
    version: int = 9,
    protocols: tuple[tuple[str, bytes], ...] = (("range", subscription("t")),),
    protocol_type: str = "consumer",
    session_ms: int = SESSION_MS,
    rebalance_ms: int = REBALANCE_MS,
) -> JoinRequest:
    return JoinRequest(
        group_id=group_id,
        member_id=member_id,
        instance_id=instance,
        client_id="c",
        client_host="/127.0.0.1",
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        protocol_type=protocol_type,
        protocols=protocols,
        must_return=version >= 4,
        can_skip_assignment=version >= 9,
    )


def sync_request(
    member_id: str,
    generation: int,
    assignments: dict[str, bytes] | None = None,
    *,
    group_id: str = "g",
    instance: str | None = None,
    protocol_type: str | None = None,
    protocol: str | None = None,
) -> SyncRequest:
    return SyncRequest(
        group_id=group_id,
        member_id=member_id,
        instance_id=instance,
        generation=generation,
        protocol_type=protocol_type,
        protocol=protocol,
        assignments=tuple((assignments or {}).items()),
    )


class GroupHarness:
    """A group, the time, every answer that it gave, and every state that it wanted stored."""

    def __init__(self, **settings: int) -> None:
        self.now_ms = 1_000_000
        self.group = Group("g", GroupSettings(**settings), self.now_ms)
        self.answers: dict[Ticket, JoinReply | SyncReply] = {}
        self.stored: list[StoredGroup] = []
        self._tickets = itertools.count()

    def join(self, member_id: str = "", **details: object) -> Ticket:
        ticket = Ticket(next(self._tickets))
        self.group.join(join_request(member_id, **details), ticket, self.now_ms)  # type: ignore[arg-type]
        return self._settle(ticket)

    def sync(self, member_id: str, assignments: dict[str, bytes] | None = None, **details: object) -> Ticket:
        ticket = Ticket(next(self._tickets))
        generation = details.pop("generation", self.group.generation)
        request = sync_request(member_id, generation, assignments, **details)  # type: ignore[arg-type]
        self.group.sync(request, ticket, self.now_ms)
        return self._settle(ticket)

    def heartbeat(
        self, member_id: str, generation: int | None = None, instance: str | None = None
    ) -> ErrorCode:
        generation = self.group.generation if generation is None else generation
        return self.group.heartbeat(member_id, instance, generation, self.now_ms)

    def leave(self, *leavers: str | MemberIdentity) -> list[ErrorCode]:
        identities = [MemberIdentity(member_id=each) if isinstance(each, str) else each for each in leavers]
        results = self.group.leave(identities, self.now_ms)
        self._settle(Ticket(-1))
        return results

    def advance(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while (due_ms := self.group.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.group.tick(self.now_ms)
            self._settle(Ticket(-1))
        self.now_ms = end_ms

    def joined(self, ticket: Ticket) -> JoinReply:
        reply = self.answers[ticket]
        assert isinstance(reply, JoinReply)
        return reply

    def synced(self, ticket: Ticket) -> SyncReply:
        reply = self.answers[ticket]
        assert isinstance(reply, SyncReply)
        return reply

    def enter(self, **details: object) -> Ticket:
        """Join as a new dynamic client does, in two steps."""
        first = self.join(**details)
        return self.join(self.joined(first).member_id, **details)

    def stable(self, count: int, **details: object) -> list[str]:
        """Bring `count` new members into a stable generation; the first one leads."""
        tickets = [self.enter(**details) for _ in range(count)]
        self.advance(self.group.settings.initial_rebalance_delay_ms)
        replies = [self.joined(ticket) for ticket in tickets]
        ids = [reply.member_id for reply in replies]
        self.assign(*ids)
        return ids

    def assign(self, *member_ids: str) -> None:
        """Let the leader give every member its own id as assignment, and everybody fetch it."""
        leader = self.group.members.leader
        assert leader is not None
        self.sync(leader, {member_id: member_id.encode() for member_id in member_ids})
        for member_id in member_ids:
            if member_id != leader:
                self.sync(member_id)

    def _settle(self, ticket: Ticket) -> Ticket:
        for effect in self.group.take_effects():
            if not isinstance(effect, Answer):
                self.stored.append(snapshot(self.group))
                continue
            assert effect.ticket not in self.answers, "a request was answered twice"
            self.answers[effect.ticket] = effect.reply
        return ticket
