"""The two deadlines of a rebalance: when a group stops waiting for joins, and then for syncs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

MIN_REBALANCE_WAIT_MS: Final = 100
"""A client may ask for a rebalance timeout of 0, with which a group would check its members continuously."""


class RebalanceDeadlines:
    """When a group stops waiting for joins, and then for syncs."""

    def __init__(self) -> None:
        self._join_at_ms: int | None = None
        self._sync_at_ms: int | None = None
        self._delay_ms = 0
        self._delay_left_ms = 0
        self._has_new_members = False

    def start_join(self, now_ms: int, timeout_ms: int) -> None:
        """Wait for joins until the largest rebalance timeout has passed."""
        self._join_at_ms = now_ms + max(timeout_ms, MIN_REBALANCE_WAIT_MS)

    def start_initial_join(self, now_ms: int, delay_ms: int, timeout_ms: int) -> None:
        """Wait `delay_ms` for more members, repeatedly while new ones join, up to `timeout_ms`."""
        self._delay_ms = delay_ms
        self._delay_left_ms = max(timeout_ms - delay_ms, 0)
        self._has_new_members = False
        self._join_at_ms = now_ms + delay_ms

    def member_added(self) -> None:
        """A new member extends the initial wait by another delay."""
        self._has_new_members = True

    def extend_initial_join(self, now_ms: int) -> bool:
        """Wait for another delay; False if no member was added or the timeout has passed."""
        if not self._has_new_members or self._delay_left_ms == 0 or self._delay_ms == 0:
            return False
        self._has_new_members = False
        delay_ms = min(self._delay_ms, self._delay_left_ms)
        self._delay_left_ms -= delay_ms
        self._join_at_ms = now_ms + delay_ms
        return True

    def start_sync(self, now_ms: int, timeout_ms: int) -> None:
        """Wait for the syncs of all members."""
        self._sync_at_ms = now_ms + max(timeout_ms, MIN_REBALANCE_WAIT_MS)

    def stop_join(self) -> None:
        """Stop waiting for joins."""
        self._join_at_ms = None

    def stop_sync(self) -> None:
        """Stop waiting for syncs."""
        self._sync_at_ms = None

    def take_join(self, now_ms: int) -> bool:
        """Whether the deadline for joins has passed; True once."""
        if self._join_at_ms is None or self._join_at_ms > now_ms:
            return False
        self._join_at_ms = None
        return True

    def take_sync(self, now_ms: int) -> bool:
        """Whether the deadline for syncs has passed; True once."""
        if self._sync_at_ms is None or self._sync_at_ms > now_ms:
            return False
        self._sync_at_ms = None
        return True

    def earliest(self, others: Iterable[int]) -> int | None:
        """The earliest of these deadlines and `others`."""
        own = (at_ms for at_ms in (self._join_at_ms, self._sync_at_ms) if at_ms is not None)
        return min((*own, *others), default=None)
