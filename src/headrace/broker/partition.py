"""A partition as the broker sees it: its log, and who waits for the next record."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.storage.partition import PartitionLog


class Partition:
    """One partition of a topic."""

    __slots__ = ("index", "log", "topic", "waiters")

    def __init__(self, topic: str, index: int, log: PartitionLog) -> None:
        self.topic = topic
        self.index = index
        self.log = log
        self.waiters: set[Callable[[], None]] = set()
        """Called when there is more to read; each takes itself out when it has had enough."""

    def notify(self) -> None:
        """Tell those who wait that there is more to read."""
        for wake in tuple(self.waiters):
            wake()
