"""How a group stands at a moment: its state, generation, protocol and members, and what follows from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.broker.groups.membership import Membership
from headrace.broker.groups.replies import JoinedMember, JoinReply, SyncReply
from headrace.broker.groups.states import MOVES, GroupState
from headrace.broker.groups.subscription import subscribed_topics

if TYPE_CHECKING:
    from headrace.broker.groups.member import Member
    from headrace.broker.groups.settings import GroupSettings

CONSUMER_PROTOCOL: Final = "consumer"
"""The protocol type of consumers, whose subscriptions the broker can read."""


class Standing:
    """The facts of one group, and the questions that they answer; `Group` is what happens to them."""

    def __init__(self, group_id: str, settings: GroupSettings, now_ms: int) -> None:
        self.id = group_id
        self.settings = settings
        self.state = GroupState.EMPTY
        self.since_ms = now_ms
        """When the group came into its state."""
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.members = Membership()
        self.subscribed: frozenset[str] | None = None
        """The topics that its consumers read, when the broker can know them."""

    def move(self, state: GroupState, now_ms: int) -> None:
        """Come into another state; only along the table of moves."""
        assert state in MOVES[self.state], f"group {self.id} cannot go from {self.state} to {state}"
        self.state = state
        self.since_ms = now_ms

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether the request comes from a member that holds its place."""
        if self.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        if instance_id is not None:
            holder = self.members.static_id(instance_id)
            if holder is not None and holder != member_id:
                return ErrorCode.fenced_instance_id
            if holder is None:
                return ErrorCode.unknown_member_id
        return ErrorCode.none if member_id in self.members else ErrorCode.unknown_member_id

    def check_generation(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Whether the request comes from a member of the current generation."""
        error = self.check_member(member_id, instance_id)
        if error is ErrorCode.none and generation != self.generation:
            return ErrorCode.illegal_generation
        return error

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a consumer of the group reads `topic`; assumed when their subscriptions cannot be read."""
        if self.subscribed is None:
            return self.protocol_type == CONSUMER_PROTOCOL
        return topic in self.subscribed

    def learn_subscriptions(self) -> None:
        """Find out which topics the members read, from what they said when they joined."""
        if self.protocol_type != CONSUMER_PROTOCOL:
            self.subscribed = None
        else:
            self.subscribed = subscribed_topics(member.metadata(self.protocol) for member in self.members)

    def current(
        self, member: Member, *, leader: str | None = None, skip_assignment: bool = False
    ) -> JoinReply:
        """The generation as it is; with everybody's metadata when the member is told that it leads."""
        leader = leader or self.members.leader or ""
        return JoinReply(
            member_id=member.id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=leader,
            skip_assignment=skip_assignment,
            members=self._roll() if leader == member.id else (),
        )

    def _roll(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(member_id=m.id, instance_id=m.instance_id, metadata=m.metadata(self.protocol))
            for m in self.members
        )

    def assigned(self, member: Member) -> SyncReply:
        """What the member was given in this generation."""
        return SyncReply(
            protocol_type=self.protocol_type, protocol=self.protocol, assignment=member.assignment
        )
