"""The two clocks of a rebalance: how long a group waits for joins, and then for syncs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

SHORTEST_WAIT_MS: Final = 100
"""A client may ask for no rebalance timeout at all; looking again at once, a group would do nothing else."""


class Deadlines:
    """When a group stops waiting; at most one wait for joins and one for syncs is under way."""

    def __init__(self) -> None:
        self._join_at_ms: int | None = None
        self._sync_at_ms: int | None = None
        self._delay_ms = 0
        self._delay_left_ms = 0
        self._more_came = False

    def await_joins(self, now_ms: int, timeout_ms: int) -> None:
        """Wait until the slowest member must have joined."""
        self._join_at_ms = now_ms + max(timeout_ms, SHORTEST_WAIT_MS)

    def await_first_joins(self, now_ms: int, delay_ms: int, timeout_ms: int) -> None:
        """Wait a little for more members than the first, and again while they come, up to the timeout."""
        self._delay_ms = delay_ms
        self._delay_left_ms = max(timeout_ms - delay_ms, 0)
        self._more_came = False
        self._join_at_ms = now_ms + delay_ms

    def more_members_came(self) -> None:
        """Note a new member: the first wait is worth another round."""
        self._more_came = True

    def wait_for_more(self, now_ms: int) -> bool:
        """Wait another round of the first rebalance; False when nobody came or the time is used up."""
        if not self._more_came or self._delay_left_ms == 0 or self._delay_ms == 0:
            return False
        self._more_came = False
        round_ms = min(self._delay_ms, self._delay_left_ms)
        self._delay_left_ms -= round_ms
        self._join_at_ms = now_ms + round_ms
        return True

    def await_sync(self, now_ms: int, timeout_ms: int) -> None:
        """Wait until every member must have asked for its assignment."""
        self._sync_at_ms = now_ms + max(timeout_ms, SHORTEST_WAIT_MS)

    def stop_join(self) -> None:
        """End the wait for joins."""
        self._join_at_ms = None

    def stop_sync(self) -> None:
        """End the wait for syncs."""
        self._sync_at_ms = None

    def take_join(self, now_ms: int) -> bool:
        """Whether the wait for joins has run out; told once."""
        if self._join_at_ms is None or self._join_at_ms > now_ms:
            return False
        self._join_at_ms = None
        return True

    def take_sync(self, now_ms: int) -> bool:
        """Whether the wait for syncs has run out; told once."""
        if self._sync_at_ms is None or self._sync_at_ms > now_ms:
            return False
        self._sync_at_ms = None
        return True

    def earliest(self, others: Iterable[int]) -> int | None:
        """The first of these deadlines and `others`."""
        own = (at_ms for at_ms in (self._join_at_ms, self._sync_at_ms) if at_ms is not None)
        return min((*own, *others), default=None)
