"""The listener: takes connections in, looks after idle ones, and drains when the broker stops."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from typing import TYPE_CHECKING, Final

from headrace.broker.connection import Connection

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger(__name__)

SHARED_BUFFER_BYTES: Final = 256 * 1024
SWEEP_SECONDS: Final = 5.0
RESERVED_DESCRIPTORS: Final = 64
"""File descriptors that no connection gets: those that are served need files to be opened."""
RETRY_SECONDS: Final = 0.1
"""After this time a connection that could not be taken in is tried again."""


class Server:
    """Everything between the broker and its sockets."""

    def __init__(self, broker: Broker, listener: socket.socket) -> None:
        self.broker = broker
        self.loop = broker.loop
        self.request_limit_bytes = broker.config.request_limit_bytes
        self.shared_buffer = memoryview(bytearray(SHARED_BUFFER_BYTES))
        self._idle_seconds = broker.config.idle_connection_ms / 1000
        self._sweep_seconds = min(SWEEP_SECONDS, self._idle_seconds)
        self._listener = listener
        self._connections: set[Connection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper = self.loop.call_later(self._sweep_seconds, self._sweep)
        self._last_descriptor = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - RESERVED_DESCRIPTORS
        self._retry: asyncio.TimerHandle | None = None
        self._listen()

    def __len__(self) -> int:
        return len(self._connections)

    def _listen(self) -> None:
        self.loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        try:
            client, address = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as fault:
            # Out of descriptors or memory: the connection stays in the queue, and asking at once is no use.
            log.warning("a connection could not be taken in, tried again soon: %s", fault)
            self.loop.remove_reader(self._listener.fileno())
            self._retry = self.loop.call_later(RETRY_SECONDS, self._listen)
            return
        if client.fileno() > self._last_descriptor:
            log.warning("a connection of %s is refused: nearly all file descriptors are in use", address[0])
            client.close()
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.add(Connection(self, client, address[0]))

    def forget(self, connection: Connection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        self.broker.shares.disconnected(connection)

    def keep(self, task: asyncio.Task[None]) -> None:
        """Hold a task that works on an answer until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _sweep(self) -> None:
        """Take buffers back from quiet connections, and end those that were quiet for too long."""
        now = self.loop.time()
        for connection in tuple(self._connections):
            quiet = now - connection.last_active
            if quiet > SWEEP_SECONDS:
                connection.release_buffer()
            if quiet > self._idle_seconds and not connection.is_at_work:
                connection.close()
        self._sweeper = self.loop.call_later(self._sweep_seconds, self._sweep)

    async def close(self, grace_seconds: float = 2.0) -> None:
        """Take nothing new in, let what is under way end, and close every connection."""
        self._sweeper.cancel()
        if self._retry is not None:
            self._retry.cancel()
        self.loop.remove_reader(self._listener.fileno())
        self._listener.close()
        for connection in self._connections:
            connection.drain()
        deadline = self.loop.time() + grace_seconds
        while self.loop.time() < deadline and any(c.owes_answers for c in self._connections):
            await asyncio.sleep(0.01)
        for connection in tuple(self._connections):
            connection.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket that does not block."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
