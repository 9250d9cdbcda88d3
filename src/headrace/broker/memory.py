"""The memory of all connections together: large requests reserve theirs before they are read.

A request that does not fit waits, unread, until others are done. Small requests need no reservation, so that
a broker whose budget is taken still serves administrators, heartbeats and commits.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Holder(Protocol):
    """A connection that waits for memory."""

    def memory_is_free(self) -> None:
        """Try again: others have given memory back."""
        ...


class ConnectionMemory:
    """How many bytes of requests and of unsent responses the connections hold."""

    def __init__(self, limit_bytes: int, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._call_soon = call_soon
        self._waiting: deque[Holder] = deque()
        self._is_waking = False

    @property
    def is_awaited(self) -> bool:
        """Whether a connection waits for memory."""
        return bool(self._waiting)

    @property
    def is_exhausted(self) -> bool:
        """Whether nobody should take in more work than it has."""
        return self.used_bytes >= self.limit_bytes

    def reserve(self, size: int) -> bool:
        """Take `size` bytes if they are free."""
        if self.used_bytes + size > self.limit_bytes and self.used_bytes:
            return False
        self.used_bytes += size
        return True

    def add(self, size: int) -> None:
        """Count bytes that are held already."""
        self.used_bytes += size

    def give_back(self, size: int) -> None:
        """Free bytes, and let those who wait try again."""
        self.used_bytes -= size
        if size and self._waiting and not self._is_waking:
            self._is_waking = True
            self._call_soon(self._wake)

    def wait(self, holder: Holder) -> None:
        """Have `holder` called when memory is free."""
        if holder not in self._waiting:
            self._waiting.append(holder)

    def forget(self, holder: Holder) -> None:
        """Call a connection no more that has ended."""
        if holder in self._waiting:
            self._waiting.remove(holder)

    def _wake(self) -> None:
        self._is_waking = False
        waiting, self._waiting = self._waiting, deque()
        for holder in waiting:
            holder.memory_is_free()
