"""The memory pool of all connections: large requests reserve memory before they are read.

A request that does not fit stays unread until memory is released. Small requests need no reservation, so that
heartbeats, commits and administrators are served even when the pool is exhausted.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class MemoryWaiter(Protocol):
    """A connection that waits for memory."""

    def memory_available(self) -> None:
        """Try again: memory has been released."""
        ...


class RequestMemoryPool:
    """Counts the bytes of requests that are read and of responses that are not sent yet."""

    def __init__(self, limit_bytes: int, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._call_soon = call_soon
        self._waiting: deque[MemoryWaiter] = deque()
        self._is_waking = False

    @property
    def is_awaited(self) -> bool:
        """Whether a connection waits for memory."""
        return bool(self._waiting)

    @property
    def is_exhausted(self) -> bool:
        """Whether connections with pending requests should not read more."""
        return self.used_bytes >= self.limit_bytes

    def reserve(self, size: int) -> bool:
        """Reserve `size` bytes if they are available."""
        if self.used_bytes + size > self.limit_bytes and self.used_bytes:
            return False
        self.used_bytes += size
        return True

    def add(self, size: int) -> None:
        """Count bytes that are in use already."""
        self.used_bytes += size

    def release(self, size: int) -> None:
        """Release bytes, and let waiting connections try again."""
        self.used_bytes -= size
        if size and self._waiting and not self._is_waking:
            self._is_waking = True
            self._call_soon(self._wake)

    def wait(self, waiter: MemoryWaiter) -> None:
        """Notify `waiter` when memory is released."""
        if waiter not in self._waiting:
            self._waiting.append(waiter)

    def forget(self, waiter: MemoryWaiter) -> None:
        """Remove a connection that has closed."""
        if waiter in self._waiting:
            self._waiting.remove(waiter)

    def _wake(self) -> None:
        self._is_waking = False
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            waiter.memory_available()
