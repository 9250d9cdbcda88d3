"""A clock that a test advances."""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class VirtualTimer:
    """A scheduled call of a virtual clock."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    @property
    def is_pending(self) -> bool:
        return self._callback is not None


class VirtualClock:
    """A clock that makes the scheduled calls, in order, while it is advanced."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._order = itertools.count()
        self._timers: list[tuple[int, int, VirtualTimer]] = []

    def now_ms(self) -> int:
        return self._now_ms

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> VirtualTimer:
        timer = VirtualTimer(callback)
        at_ms = self._now_ms + max(round(delay_ms), 0)
        heapq.heappush(self._timers, (at_ms, next(self._order), timer))
        return timer

    def advance(self, ms: int) -> None:
        """Advance by `ms`; calls that are scheduled in the meantime are made too, if they are due."""
        end_ms = self._now_ms + ms
        while self._timers and self._timers[0][0] <= end_ms:
            at_ms, _, timer = heapq.heappop(self._timers)
            self._now_ms = max(self._now_ms, at_ms)
            timer.fire()
        self._now_ms = end_ms

    @property
    def pending(self) -> int:
        """The number of scheduled calls."""
        return sum(timer.is_pending for _, _, timer in self._timers)
