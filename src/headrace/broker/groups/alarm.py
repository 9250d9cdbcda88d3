"""One timer for many deadlines: it rings at the earliest, or a little before, and never late."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.clock import Clock, Timer


class Alarm:
    """Calls `ring` no later than the deadline that was set last.

    Heartbeats move deadlines back all the time. Leaving the timer where it is, and looking again when it
    rings, is far cheaper than setting it anew for each of them.
    """

    def __init__(self, clock: Clock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._timer: Timer | None = None
        self._at_ms = 0

    def set(self, at_ms: int | None) -> None:
        """Ring at `at_ms`; earlier than now is at once, None is never."""
        if at_ms is None:
            self.stop()
        elif self._timer is None or at_ms < self._at_ms:
            self.stop()
            self._at_ms = at_ms
            self._timer = self._clock.call_later(at_ms - self._clock.now_ms(), self._go_off)

    def stop(self) -> None:
        """Do not ring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _go_off(self) -> None:
        self._timer = None
        self._ring()
