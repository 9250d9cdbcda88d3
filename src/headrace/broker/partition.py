"""A partition as the broker sees it: its log, and who waits for the next record."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.overflow.limiter import BacklogLimiter
    from headrace.storage.log import Log


class Partition:
    """One partition of a topic."""

    __slots__ = ("index", "limiter", "log", "topic", "waiters")

    def __init__(self, topic: str, index: int, log: Log) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.waiters: set[Callable[[], None]] = set()
        """Called when there is more to read, until they wait no more."""
        self.limiter: BacklogLimiter | None = None
        """Who decides about new records at the topic's bound; None for a topic without one."""

    def wait(self, wake: Callable[[], None]) -> None:
        """Have `wake` called when there is more to read."""
        self.waiters.add(wake)

    def stop_waiting(self, wake: Callable[[], None]) -> None:
        """Call no more."""
        self.waiters.discard(wake)

    def notify(self) -> None:
        """Tell those who wait that there is more to read."""
        for wake in tuple(self.waiters):
            wake()
