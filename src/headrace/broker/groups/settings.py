"""The limits of groups and offsets, under the names that Kafka's documentation gives them."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import HeadraceError


class InvalidGroupSettings(HeadraceError):
    """A setting of groups that cannot be meant; the message names it and says what is allowed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """How long groups wait, how large they grow, and how long their offsets are kept."""

    min_session_timeout_ms: int = 6_000
    """`group.min.session.timeout.ms`: a member that asks for less is refused."""
    max_session_timeout_ms: int = 1_800_000
    """`group.max.session.timeout.ms`: a member that asks for more is refused."""
    initial_rebalance_delay_ms: int = 0
    """`group.initial.rebalance.delay.ms`: how long an empty group waits for more members after the first.

    Apache Kafka's default is 3,000. Here a lone consumer starts at once; each later one costs a rebalance.
    """
    max_size: int = 2**31 - 1
    """`group.max.size`: members that a group takes at most."""
    new_member_join_timeout_ms: int = 300_000
    """How long the first join of a member may wait; it cannot send heartbeats before it has its id."""
    offset_metadata_max_bytes: int = 4_096
    """`offset.metadata.max.bytes`: the longest note that may be kept beside an offset."""
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    """`offsets.retention.minutes`, in milliseconds: how long offsets outlive their group's last member."""
    offsets_retention_check_interval_ms: int = 600_000
    """`offsets.retention.check.interval.ms`: how often expired offsets and empty groups are looked for."""

    def __post_init__(self) -> None:
        for name, lowest in _LOWEST.items():
            value = getattr(self, name)
            if value < lowest:
                raise InvalidGroupSettings(f"{name} is {value}: give it {lowest} or more")
        if self.max_session_timeout_ms < self.min_session_timeout_ms:
            raise InvalidGroupSettings(
                f"max_session_timeout_ms ({self.max_session_timeout_ms}) is below min_session_timeout_ms "
                f"({self.min_session_timeout_ms}), so that no member could join: raise it"
            )

    def allows_session_timeout(self, timeout_ms: int) -> bool:
        """Whether a member may ask for this session timeout."""
        return self.min_session_timeout_ms <= timeout_ms <= self.max_session_timeout_ms


_LOWEST = {
    "min_session_timeout_ms": 1,
    "max_session_timeout_ms": 1,
    "initial_rebalance_delay_ms": 0,
    "max_size": 1,
    "new_member_join_timeout_ms": 1,
    "offset_metadata_max_bytes": 0,
    "offsets_retention_ms": 1,
    "offsets_retention_check_interval_ms": 1,
}
