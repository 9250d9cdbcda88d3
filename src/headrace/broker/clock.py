"""The broker's clock and timers.

Coordinators do not read the time themselves: they receive a `BrokerClock`, so that tests can use a virtual
one.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class Timer(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call; does nothing after it was made."""
        ...


class BrokerClock(Protocol):
    """The current time, and calls after a delay."""

    def now_ms(self) -> int:
        """The current time as a record timestamp: milliseconds since 1970."""
        ...

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` on the broker's event loop after `delay_ms`."""
        ...


class EventLoopClock:
    """The system clock, with timers of the event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Call `callback` on the event loop after `delay_ms`."""
        return self._loop.call_later(max(delay_ms, 0) / 1000, callback)


class DeadlineTimer:
    """Calls `on_deadline` no later than the deadline that was set last.

    Heartbeats postpone deadlines all the time. The timer is not moved for each of them: it fires early, and
    is then set again.
    """

    def __init__(self, clock: BrokerClock, on_deadline: Callable[[], None]) -> None:
        self._clock = clock
        self._on_deadline = on_deadline
        self._timer: Timer | None = None
        self._at_ms = 0

    def set(self, at_ms: int | None) -> None:
        """Fire at `at_ms`, at once if that has passed; None stops the timer."""
        if at_ms is None:
            self.stop()
        elif self._timer is None or at_ms < self._at_ms:
            self.stop()
            self._at_ms = at_ms
            self._timer = self._clock.call_later(at_ms - self._clock.now_ms(), self._fire)

    def stop(self) -> None:
        """Do not fire."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._on_deadline()
