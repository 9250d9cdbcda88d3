"""Who is in a group: members, their leader, static places, and the newcomers who were told to come back."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.broker.groups.member import Member
    from headrace.broker.groups.requests import JoinRequest


class Membership:
    """The members of one group in the order of their coming; every instance id at most once."""

    def __init__(self, members: Iterable[Member] = (), leader: str | None = None) -> None:
        self._members = {member.id: member for member in members}
        self._static = {member.instance_id: member.id for member in self if member.instance_id is not None}
        self._support: Counter[str] = Counter()
        """How many members support each protocol; counted on the way, for every join asks."""
        for member in self:
            self._support.update(_names(member))
        self.leader = leader if leader in self._members else next(iter(self._members), None)
        self.pending: dict[str, int] = {}
        """Ids handed out to newcomers who have not joined with them yet, and when they lapse."""

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def __contains__(self, member_id: object) -> bool:
        return member_id in self._members

    def get(self, member_id: str) -> Member | None:
        """The member of that id."""
        return self._members.get(member_id)

    def static_id(self, instance_id: str) -> str | None:
        """The id of the member that holds this static place."""
        return self._static.get(instance_id)

    @property
    def joining(self) -> int:
        """How many wait for the answer to their join."""
        return sum(member.is_joining for member in self)

    @property
    def all_joined(self) -> bool:
        """Whether nobody is missing for the next generation."""
        return not self.pending and all(member.is_joining for member in self)

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long the slowest member may take to join."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def add(self, member: Member) -> None:
        """Let a member in; the first one leads."""
        assert member.id not in self._members
        assert member.instance_id is None or member.instance_id not in self._static
        self._members[member.id] = member
        self._support.update(_names(member))
        if member.instance_id is not None:
            self._static[member.instance_id] = member.id
        if self.leader is None:
            self.leader = member.id
        self.pending.pop(member.id, None)

    def remove(self, member_id: str) -> None:
        """Let a member or a pending newcomer go; the longest-serving member leads if the leader went."""
        self.pending.pop(member_id, None)
        member = self._members.pop(member_id, None)
        if member is not None:
            self._withdraw(member)
            if member.instance_id is not None:
                del self._static[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self._members), None)

    def update(self, member: Member, request: JoinRequest) -> None:
        """Take over what a member says of itself when it joins again."""
        self._withdraw(member)
        member.update(request)
        self._support.update(_names(member))

    def replace(self, member: Member, new_id: str) -> None:
        """Give a static member a new id in its old place, leadership included."""
        assert member.instance_id is not None
        old_id, member.id = member.id, new_id
        # Rebuilt so that the member keeps its place in the order of coming.
        self._members = {each.id: each for each in self}
        self._static[member.instance_id] = new_id
        if self.leader == old_id:
            self.leader = new_id

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is among those who joined; False when nobody has."""
        leader = None if self.leader is None else self._members[self.leader]
        if leader is not None and not leader.is_joining:
            leader = next((member for member in self if member.is_joining), None)
        if leader is None:
            return False
        self.leader = leader.id
        return True

    def _withdraw(self, member: Member) -> None:
        for name in _names(member):
            self._support[name] -= 1
            if not self._support[name]:
                del self._support[name]

    def is_common(self, protocol: str) -> bool:
        """Whether every member supports the protocol."""
        return self._support[protocol] == len(self)

    def elect_protocol(self) -> str:
        """The common protocol that most members prefer; among equals, the one voted for first."""
        candidates = {name for name in self._support if self.is_common(name)}
        return Counter(member.vote(candidates) for member in self).most_common(1)[0][0]


def _names(member: Member) -> set[str]:
    return {name for name, _ in member.protocols}
