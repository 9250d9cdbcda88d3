"""A limit on bytes per second, so that compaction leaves the disk to producers and readers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Throttle:
    """Lets `bytes_per_s` pass on average since it was made, by waiting; None lets all pass."""

    def __init__(
        self,
        bytes_per_s: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._started = clock()
        self._spent = 0

    def spend(self, count: int) -> None:
        """Return when `count` more bytes are within the limit."""
        if self._bytes_per_s is None:
            return
        self._spent += count
        due = self._started + self._spent / self._bytes_per_s
        wait = due - self._clock()
        if wait > 0:
            self._sleep(wait)
