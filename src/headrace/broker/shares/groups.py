"""Share groups, their members, heartbeats and settings.

Every member is assigned all partitions of the topics that it subscribes to: a record goes to the member that
fetches first, no record waits for a slow member, and members join and leave without a rebalance. In Apache
Kafka, whose partitions are on many brokers, each member gets some of them. Members are not stored: they
rejoin after a restart.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from headrace.broker.clock import DeadlineTimer
from headrace.broker.shares.settings import ShareGroupConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from headrace.broker.clock import BrokerClock
    from headrace.broker.shares.records import ShareStateLog
    from headrace.broker.shares.settings import ShareSettings

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1

Assignment = tuple[tuple[UUID, tuple[int, ...]], ...]
Assignor: TypeAlias = "Callable[[Sequence[str]], Assignment]"
"""Gives all partitions of the subscribed topics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeat:
    """A heartbeat of a member; the subscription is None if it has not changed."""

    member_id: str
    epoch: int
    subscription: tuple[str, ...] | None
    rack: str | None = None
    client_id: str = ""
    client_host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeatResult:
    """The response to a heartbeat; the assignment is None if it has not changed."""

    error: ErrorCode = ErrorCode.none
    message: str | None = None
    epoch: int = 0
    assignment: Assignment | None = None


@dataclass(slots=True, kw_only=True)
class ShareGroupMember:
    """A member of a share group."""

    id: str
    client_id: str
    client_host: str
    rack: str | None = None
    subscription: tuple[str, ...] = ()
    assignment: Assignment = ()
    epoch: int = 0
    previous_epoch: int = 0
    expires_at_ms: int = 0


@dataclass(slots=True)
class ShareGroup:
    """One share group."""

    id: str
    epoch: int = 0
    members: dict[str, ShareGroupMember] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """The name of its state in Kafka's tools."""
        return "Stable" if self.members else "Empty"

    def heartbeat(
        self, heartbeat: ShareHeartbeat, expires_at_ms: int, max_members: int, assign: Assignor
    ) -> ShareHeartbeatResult:
        """Let a member join or continue."""
        member = self.members.get(heartbeat.member_id)
        if heartbeat.epoch == JOIN_EPOCH:
            if member is None and len(self.members) >= max_members:
                message = f"the group has its maximum of {max_members} members"
                return ShareHeartbeatResult(error=ErrorCode.group_max_size_reached, message=message)
            if heartbeat.subscription is None:
                message = "SubscribedTopicNames must be set when a member joins"
                return ShareHeartbeatResult(error=ErrorCode.invalid_request, message=message)
            member = member or self._add_member(heartbeat)
        elif member is None:
            return _UNKNOWN_MEMBER
        elif heartbeat.epoch not in (member.epoch, member.previous_epoch):
            message = f"the epoch of the member is {member.epoch}"
            return ShareHeartbeatResult(error=ErrorCode.fenced_member_epoch, message=message)
        return self._update_member(member, heartbeat, expires_at_ms, assign)

    def _add_member(self, heartbeat: ShareHeartbeat) -> ShareGroupMember:
        member = ShareGroupMember(
            id=heartbeat.member_id, client_id=heartbeat.client_id, client_host=heartbeat.client_host
        )
        self.members[member.id] = member
        self.epoch += 1
        return member

    def _update_member(
        self, member: ShareGroupMember, heartbeat: ShareHeartbeat, expires_at_ms: int, assign: Assignor
    ) -> ShareHeartbeatResult:
        member.expires_at_ms = expires_at_ms
        if heartbeat.rack is not None:
            member.rack = heartbeat.rack
        if heartbeat.subscription is not None:
            member.subscription = heartbeat.subscription
        assignment = assign(member.subscription)
        is_changed = assignment != member.assignment
        if is_changed and member.epoch:
            self.epoch += 1
        # A client with an older epoch has not received the last response.
        must_send = is_changed or heartbeat.epoch != member.epoch or not member.epoch
        member.assignment = assignment
        if is_changed or not member.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch
        return ShareHeartbeatResult(epoch=member.epoch, assignment=assignment if must_send else None)

    def remove(self, member_id: str) -> bool:
        """Remove a member; False if it is unknown."""
        if self.members.pop(member_id, None) is None:
            return False
        self.epoch += 1
        return True

    def expired_members(self, now_ms: int) -> Iterator[str]:
        """The members whose session has expired."""
        return (member.id for member in list(self.members.values()) if member.expires_at_ms <= now_ms)

    def next_deadline_ms(self) -> int | None:
        """When the next session expires."""
        return min((member.expires_at_ms for member in self.members.values()), default=None)


class ShareGroups:
    """All share groups of a broker, with their settings and session timers."""

    def __init__(
        self,
        state: ShareStateLog,
        clock: BrokerClock,
        settings: ShareSettings,
        *,
        assign: Assignor,
        on_member_expired: Callable[[str, str], None],
    ) -> None:
        self._state = state
        self._clock = clock
        self._settings = settings
        self._assign = assign
        self._on_member_expired = on_member_expired
        self._groups: dict[str, ShareGroup] = {}
        self._configs: dict[str, ShareGroupConfig] = {}
        self._timers: dict[str, DeadlineTimer] = {}

    def load(self, groups: Iterable[str], configs: Mapping[str, ShareGroupConfig]) -> None:
        """Restore groups and settings; members rejoin."""
        self._configs = dict(configs)
        for group_id in groups:
            self._register(ShareGroup(group_id))

    def close(self) -> None:
        """Stop all timers."""
        for timer in self._timers.values():
            timer.stop()

    def __contains__(self, group_id: object) -> bool:
        return group_id in self._groups

    def all(self) -> list[ShareGroup]:
        """All share groups, sorted by id."""
        return [group for _, group in sorted(self._groups.items())]

    def get(self, group_id: str) -> ShareGroup | None:
        """The group with that id."""
        return self._groups.get(group_id)

    def config(self, group_id: str) -> ShareGroupConfig:
        """The settings of a group, which need not exist yet."""
        return self._configs.get(group_id) or ShareGroupConfig()

    def configured(self) -> list[str]:
        """The ids of groups with settings that are not defaults."""
        return [group_id for group_id, config in self._configs.items() if config.overrides]

    def configure(self, group_id: str, configs: Mapping[str, str]) -> ShareGroupConfig:
        """Replace the settings of a group."""
        config = ShareGroupConfig.parse(configs)
        self._state.save_config(group_id, configs)
        self._configs[group_id] = config
        return config

    def check_empty(self, group_id: str) -> ErrorCode:
        """Whether the group exists and has no members, so that its offsets may be changed."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.group_id_not_found
        return ErrorCode.non_empty_group if group.members else ErrorCode.none

    def remove(self, group_id: str) -> None:
        """Remove a group without members."""
        self._state.delete_group(group_id)
        self._timers.pop(group_id).stop()
        del self._groups[group_id]

    def heartbeat(self, group_id: str, heartbeat: ShareHeartbeat) -> ShareHeartbeatResult:
        """Let a member join, continue or leave."""
        group = self._groups.get(group_id)
        if heartbeat.epoch == LEAVE_EPOCH:
            if group is None or not group.remove(heartbeat.member_id):
                return _UNKNOWN_MEMBER
            # Its session remains until it is closed: clients acknowledge their last records after leaving.
            return ShareHeartbeatResult(epoch=LEAVE_EPOCH)
        if group is None:
            if heartbeat.epoch > 0:
                return _UNKNOWN_MEMBER
            group = self.create(group_id)
            if group is None:
                message = f"the broker has its maximum of {self._settings.max_groups} share groups"
                return ShareHeartbeatResult(error=ErrorCode.group_max_size_reached, message=message)
        expires_at_ms = self._clock.now_ms() + self.config(group_id).session_timeout_ms
        response = group.heartbeat(heartbeat, expires_at_ms, self._settings.max_members, self._assign)
        self._timers[group_id].set(group.next_deadline_ms())
        return response

    def create(self, group_id: str) -> ShareGroup | None:
        """A new group without members; None if there are too many groups."""
        if len(self._groups) >= self._settings.max_groups:
            return None
        group = ShareGroup(group_id)
        self._state.save_group(group_id)
        self._register(group)
        return group

    def _register(self, group: ShareGroup) -> None:
        self._groups[group.id] = group
        self._timers[group.id] = DeadlineTimer(self._clock, lambda: self._expire_members(group))

    def _expire_members(self, group: ShareGroup) -> None:
        for member in group.expired_members(self._clock.now_ms()):
            group.remove(member)
            self._on_member_expired(group.id, member)
        self._timers[group.id].set(group.next_deadline_ms())


_UNKNOWN_MEMBER = ShareHeartbeatResult(
    error=ErrorCode.unknown_member_id, message="the group has no member with this id"
)
