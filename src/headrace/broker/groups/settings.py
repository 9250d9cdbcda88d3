"""Settings of groups and offsets, with the names of Kafka's documentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError
from headrace.storage.config import Option, integer, option

if TYPE_CHECKING:
    from collections.abc import Mapping


class InvalidGroupSettings(HeadraceError):
    """A group setting out of its range; the message has the range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Timeouts, sizes and retention of groups."""

    min_session_timeout_ms: int = 6_000
    """`group.min.session.timeout.ms`: smaller session timeouts are rejected."""
    max_session_timeout_ms: int = 1_800_000
    """`group.max.session.timeout.ms`: larger session timeouts are rejected."""
    initial_rebalance_delay_ms: int = 0
    """`group.initial.rebalance.delay.ms`: how long an empty group waits for more members after the first.

    Apache Kafka's default is 3,000. With 0 one consumer starts at once, and each later one costs a rebalance.
    """
    max_size: int = 2**31 - 1
    """`group.max.size`: the largest number of members."""
    new_member_join_timeout_ms: int = 300_000
    """How long a member's first join may be pending; it cannot send heartbeats before it has its id."""
    offset_metadata_max_bytes: int = 4_096
    """`offset.metadata.max.bytes`: the longest metadata of a committed offset."""
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    """`offsets.retention.minutes`, in milliseconds: how long offsets are kept after the last member left."""
    offsets_retention_check_interval_ms: int = 600_000
    """`offsets.retention.check.interval.ms`: how often expired offsets and empty groups are removed."""

    def __post_init__(self) -> None:
        for name, minimum in _MINIMA.items():
            value = getattr(self, name)
            if value < minimum:
                raise InvalidGroupSettings(f"{name} is {value}: the minimum is {minimum}")
        if self.max_session_timeout_ms < self.min_session_timeout_ms:
            raise InvalidGroupSettings(
                f"max_session_timeout_ms ({self.max_session_timeout_ms}) is below min_session_timeout_ms "
                f"({self.min_session_timeout_ms}): no member could join"
            )

    def allows_session_timeout(self, timeout_ms: int) -> bool:
        """Whether a member may have this session timeout."""
        return self.min_session_timeout_ms <= timeout_ms <= self.max_session_timeout_ms


_MINIMA = {
    "min_session_timeout_ms": 1,
    "max_session_timeout_ms": 1,
    "initial_rebalance_delay_ms": 0,
    "max_size": 1,
    "new_member_join_timeout_ms": 1,
    "offset_metadata_max_bytes": 0,
    "offsets_retention_ms": 1,
    "offsets_retention_check_interval_ms": 1,
}

_CONSUMER: Final = "Accepted; groups of the consumer protocol (KIP-848) are not served."
_STREAMS: Final = "Accepted; groups of the streams protocol (KIP-1071) are not served."
_SESSION_MS: Final = integer(45_000, 60_000)
_HEARTBEAT_MS: Final = integer(5_000, 15_000)
_ASSIGNMENT_MS: Final = integer(0, 15_000)

UNSERVED_OPTIONS: Final[Mapping[str, Option]] = {
    each.name: each
    for each in (
        option("consumer.assignment.interval.ms", "int", 1_000, _ASSIGNMENT_MS, _CONSUMER),
        option("consumer.heartbeat.interval.ms", "int", 5_000, _HEARTBEAT_MS, _CONSUMER),
        option("consumer.session.timeout.ms", "int", 45_000, _SESSION_MS, _CONSUMER),
        option("streams.assignment.interval.ms", "int", 1_000, _ASSIGNMENT_MS, _STREAMS),
        option("streams.heartbeat.interval.ms", "int", 5_000, _HEARTBEAT_MS, _STREAMS),
        option("streams.initial.rebalance.delay.ms", "int", 3_000, integer(0), _STREAMS),
        option("streams.num.standby.replicas", "int", 0, integer(0, 2), _STREAMS),
        option("streams.session.timeout.ms", "int", 45_000, _SESSION_MS, _STREAMS),
    )
}
"""Settings for group protocols that are not served, with the defaults and bounds of Apache Kafka 4.3.

They are stored and described, so that tools which set them for every group work. Classic consumer groups have
no group settings, as in Apache Kafka: members send theirs when they join.
"""
