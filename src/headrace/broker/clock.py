"""Time as the broker's decisions see it: asked for, never looked at, so that tests can move it by hand."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class Timer(Protocol):
    """A call that is still to come."""

    def cancel(self) -> None:
        """Forget the call; harmless when it has happened."""
        ...


class Clock(Protocol):
    """Where decisions get the time from, and where they leave calls for later."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, as records carry them."""
        ...

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Have `callback` called on the broker's loop after `delay_ms`."""
        ...


class LoopClock:
    """The real clock, on the event loop of the broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        """Have the loop call `callback` after `delay_ms`."""
        return self._loop.call_later(max(delay_ms, 0) / 1000, callback)
