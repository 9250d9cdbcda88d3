"""A harness that drives one group with a manual clock."""

from __future__ import annotations

import itertools
import struct
from typing import TYPE_CHECKING

from headrace.broker.groups.group import Group
from headrace.broker.groups.messages import (
    JoinRequest,
    JoinResponse,
    MemberIdentity,
    RequestId,
    SendResponse,
    SyncRequest,
    SyncResponse,
)
from headrace.broker.groups.settings import GroupSettings

if TYPE_CHECKING:
    from kio.schema.errors import ErrorCode

    from headrace.broker.groups.records import StoredGroup

SESSION_MS = 10_000
REBALANCE_MS = 30_000


def subscription(*topics: str) -> bytes:
    """The subscription that a consumer sends with its join."""
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
        requires_known_member_id=version >= 4,
        supports_skip_assignment=version >= 9,
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
    """A group, the time, all responses, and all snapshots that were stored."""

    def __init__(self, **settings: int) -> None:
        self.now_ms = 1_000_000
        self.group = Group("g", GroupSettings(**settings), self.now_ms)
        self.responses: dict[RequestId, JoinResponse | SyncResponse] = {}
        self.stored: list[StoredGroup] = []
        self._request_ids = itertools.count()

    def join(self, member_id: str = "", **details: object) -> RequestId:
        request_id = RequestId(next(self._request_ids))
        self.group.join(join_request(member_id, **details), request_id, self.now_ms)  # type: ignore[arg-type]
        return self._take_effects(request_id)

    def sync(
        self, member_id: str, assignments: dict[str, bytes] | None = None, **details: object
    ) -> RequestId:
        request_id = RequestId(next(self._request_ids))
        generation = details.pop("generation", self.group.generation)
        request = sync_request(member_id, generation, assignments, **details)  # type: ignore[arg-type]
        self.group.sync(request, request_id, self.now_ms)
        return self._take_effects(request_id)

    def heartbeat(
        self, member_id: str, generation: int | None = None, instance: str | None = None
    ) -> ErrorCode:
        generation = self.group.generation if generation is None else generation
        return self.group.heartbeat(member_id, instance, generation, self.now_ms)

    def leave(self, *leavers: str | MemberIdentity) -> list[ErrorCode]:
        identities = [MemberIdentity(member_id=each) if isinstance(each, str) else each for each in leavers]
        results = self.group.leave(identities, self.now_ms)
        self._take_effects(RequestId(-1))
        return results

    def advance(self, ms: int) -> None:
        end_ms = self.now_ms + ms
        while (due_ms := self.group.next_deadline_ms()) is not None and due_ms <= end_ms:
            self.now_ms = max(self.now_ms, due_ms)
            self.group.expire(self.now_ms)
            self._take_effects(RequestId(-1))
        self.now_ms = end_ms

    def joined(self, request_id: RequestId) -> JoinResponse:
        reply = self.responses[request_id]
        assert isinstance(reply, JoinResponse)
        return reply

    def synced(self, request_id: RequestId) -> SyncResponse:
        reply = self.responses[request_id]
        assert isinstance(reply, SyncResponse)
        return reply

    def enter(self, **details: object) -> RequestId:
        """Join as a new dynamic client does, in two steps."""
        first = self.join(**details)
        return self.join(self.joined(first).member_id, **details)

    def stable(self, count: int, **details: object) -> list[str]:
        """Bring `count` new members into a stable generation; the first one leads."""
        requests = [self.enter(**details) for _ in range(count)]
        self.advance(self.group.settings.initial_rebalance_delay_ms)
        replies = [self.joined(request_id) for request_id in requests]
        ids = [reply.member_id for reply in replies]
        self.assign(*ids)
        return ids

    def assign(self, *member_ids: str) -> None:
        """Let the leader assign each member its own id, and all members sync."""
        leader = self.group.members.leader
        assert leader is not None
        self.sync(leader, {member_id: member_id.encode() for member_id in member_ids})
        for member_id in member_ids:
            if member_id != leader:
                self.sync(member_id)

    def _take_effects(self, request_id: RequestId) -> RequestId:
        for effect in self.group.take_effects():
            if not isinstance(effect, SendResponse):
                self.stored.append(self.group.snapshot())
                continue
            assert effect.request_id not in self.responses, "a request got two responses"
            self.responses[effect.request_id] = effect.response
        return request_id
