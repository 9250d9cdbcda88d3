"""The members of a group: their leader, static members, pending members, protocols and subscriptions."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from headrace.broker.groups.records import StoredMember

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Set

    from headrace.broker.groups.messages import JoinRequest, RequestId

CONSUMER_PROTOCOL: Final = "consumer"
"""The protocol type of consumers, whose subscriptions the broker can read."""

MAX_TOPICS: Final = 25_000
"""Topic names that are read for one group, in about 5 ms; the topics of a group with more are unknown."""

_SUBSCRIPTION_HEAD: Final = struct.Struct(">hi")
_LENGTH: Final = struct.Struct(">h")


@dataclass(slots=True, kw_only=True)
class Member:
    """One member; only its group changes it."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    is_new: bool = False
    """Until its first generation: it may not know its id yet, and expires even while its join is pending."""
    pending_join: RequestId | None = None
    pending_sync: RequestId | None = None
    expires_at_ms: int | None = None
    """When its session expires; None after a deadline that passed while a request of it was pending."""

    @classmethod
    def restore(cls, stored: StoredMember, protocol: str, now_ms: int) -> Self:
        """The member from the record of its group, with a full session timeout."""
        return cls(
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

    def snapshot(self, protocol: str | None) -> StoredMember:
        """The member in the record of its group."""
        return StoredMember(
            member_id=self.id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=self.assignment,
        )

    @property
    def is_joining(self) -> bool:
        """Whether its join is pending."""
        return self.pending_join is not None

    @property
    def awaits_response(self) -> bool:
        """Whether a missing heartbeat is the group's fault: the member waits for a response."""
        return not self.is_new and (self.pending_join is not None or self.pending_sync is not None)

    @property
    def metadata_bytes(self) -> int:
        """The size of the metadata for all protocols, with their names."""
        return sum(len(name) + len(metadata) for name, metadata in self.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """The metadata that the member sent for `protocol`."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")

    def vote(self, candidates: Set[str]) -> str:
        """The candidate that the member prefers."""
        return next(name for name, _ in self.protocols if name in candidates)

    def update(self, request: JoinRequest) -> None:
        """Take over protocols and timeouts from a new join request."""
        self.protocols = request.protocols
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.session_timeout_ms = request.session_timeout_ms


class GroupMembers:
    """The members of one group in the order in which they joined; each instance id occurs at most once."""

    def __init__(self, members: Iterable[Member] = (), leader: str | None = None) -> None:
        self._members = {member.id: member for member in members}
        self._static = {member.instance_id: member.id for member in self if member.instance_id is not None}
        self._support: Counter[str] = Counter()
        """How many members support each protocol; kept up to date, since every join asks."""
        self.metadata_bytes = 0
        """The size of the metadata of all members."""
        for member in self:
            self._add_support(member)
        self.leader = leader if leader in self._members else next(iter(self._members), None)
        self.pending: dict[str, int] = {}
        """Ids of clients that received one and have not joined with it yet, and when these ids expire."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> Member | None:
        """The member with that id."""
        return self._members.get(member_id)

    def static_member_id(self, instance_id: str) -> str | None:
        """The id of the static member with that instance id."""
        return self._static.get(instance_id)

    @property
    def joining(self) -> int:
        """The number of members whose join is pending."""
        return sum(member.is_joining for member in self)

    @property
    def all_joined(self) -> bool:
        """Whether no member and no pending member is missing for the next generation."""
        return not self.pending and all(member.is_joining for member in self)

    @property
    def rebalance_timeout_ms(self) -> int:
        """The largest rebalance timeout of all members."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def add(self, member: Member) -> None:
        """Add a member; the first one becomes the leader."""
        assert member.id not in self._members
        assert member.instance_id is None or member.instance_id not in self._static
        self._members[member.id] = member
        self._add_support(member)
        if member.instance_id is not None:
            self._static[member.instance_id] = member.id
        if self.leader is None:
            self.leader = member.id
        self.pending.pop(member.id, None)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending member; the oldest member replaces a leader that left."""
        self.pending.pop(member_id, None)
        member = self._members.pop(member_id, None)
        if member is not None:
            self._withdraw_support(member)
            if member.instance_id is not None:
                del self._static[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._members), None)

    def update(self, member: Member, request: JoinRequest) -> None:
        """Take over protocols and timeouts from a member's new join request."""
        self._withdraw_support(member)
        member.update(request)
        self._add_support(member)

    def replace_static(self, member: Member, new_id: str) -> None:
        """Give a static member a new id; it keeps its position and its leadership."""
        assert member.instance_id is not None
        old_id, member.id = member.id, new_id
        # Rebuilt so that the member keeps its position in the order of joining.
        self._members = {each.id: each for each in self}
        self._static[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader has joined; False if no member has."""
        leader = None if self.leader is None else self._members[self.leader]
        if leader is not None and not leader.is_joining:
            leader = next((member for member in self if member.is_joining), None)
        if leader is None:
            return False
        self.leader = leader.id
        return True

    def _add_support(self, member: Member) -> None:
        self._support.update(_protocol_names(member))
        self.metadata_bytes += member.metadata_bytes

    def _withdraw_support(self, member: Member) -> None:
        self.metadata_bytes -= member.metadata_bytes
        for name in _protocol_names(member):
            self._support[name] -= 1
            if not self._support[name]:
                del self._support[name]

    def all_support(self, protocol: str) -> bool:
        """Whether every member supports the protocol."""
        return self._support[protocol] == len(self)

    def elect_protocol(self) -> str:
        """The common protocol that most members prefer; with equal votes, the one voted for first."""
        candidates = {name for name in self._support if self.all_support(name)}
        return Counter(member.vote(candidates) for member in self).most_common(1)[0][0]


def _protocol_names(member: Member) -> set[str]:
    return {name for name, _ in member.protocols}


def read_subscriptions(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """All topics of these subscriptions, or None if one cannot be read or they have too many topics."""
    topics: set[str] = set()
    remaining = MAX_TOPICS
    # Members of one application usually send the same bytes.
    for subscription in dict.fromkeys(subscriptions):
        names = read_subscription(subscription, remaining)
        if names is None:
            return None
        topics.update(names)
        remaining -= len(names)
    return frozenset(topics)


def read_subscription(subscription: bytes, limit: int = MAX_TOPICS) -> list[str] | None:
    """The topic names of one subscription, or None if there are more than `limit` or it cannot be read.

    All versions of that protocol begin with an int16 version and an array of topic names. Only assignors use
    what follows: user data, owned partitions and rack.
    """
    try:
        return _read_topic_names(subscription, limit)
    except (struct.error, UnicodeDecodeError, ValueError):
        return None


def _read_topic_names(subscription: bytes, limit: int) -> list[str]:
    version, count = _SUBSCRIPTION_HEAD.unpack_from(subscription)
    position = _SUBSCRIPTION_HEAD.size
    # A name takes at least two bytes: an impossible count is refused before anything is allocated for it.
    if version < 0 or not 0 <= count <= min((len(subscription) - position) // _LENGTH.size, limit):
        raise ValueError
    names = []
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(subscription, position)
        position += _LENGTH.size + length
        if length < 0 or position > len(subscription):
            raise ValueError
        names.append(subscription[position - length : position].decode())
    return names
