"""The listener: takes connections in, looks after idle ones, and drains when the broker stops."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING, Final

from headrace.broker.connection import Connection

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger(__name__)

SHARED_BUFFER_BYTES: Final = 256 * 1024
SWEEP_SECONDS: Final = 5.0


class Server:
    """Everything between the broker and its sockets."""

    def __init__(self, broker: Broker, listener: socket.socket) -> None:
        self.broker = broker
        self.loop = broker.loop
        self.request_limit_bytes = broker.config.request_limit_bytes
        self.shared_buffer = memoryview(bytearray(SHARED_BUFFER_BYTES))
        self._idle_seconds = broker.config.idle_connection_ms / 1000
        self._listener = listener
        self._connections: set[Connection] = set()
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)
        self.loop.add_reader(listener.fileno(), self._accept)

    def __len__(self) -> int:
        return len(self._connections)

    def _accept(self) -> None:
        try:
            client, address = self._listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as fault:
            log.warning("a connection could not be taken in: %s", fault)
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connections.add(Connection(self, client, address[0]))

    def forget(self, connection: Connection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)

    def _sweep(self) -> None:
        """Take buffers back from quiet connections, and end those that were quiet for too long."""
        now = self.loop.time()
        for connection in tuple(self._connections):
            quiet = now - connection.last_active
            if quiet > SWEEP_SECONDS:
                connection.release_buffer()
            if quiet > self._idle_seconds and connection.is_idle:
                connection.close()
        self._sweeper = self.loop.call_later(SWEEP_SECONDS, self._sweep)

    async def close(self, grace_seconds: float = 2.0) -> None:
        """Take nothing new in, let what is under way end, and close every connection."""
        self._sweeper.cancel()
        self.loop.remove_reader(self._listener.fileno())
        self._listener.close()
        deadline = self.loop.time() + grace_seconds
        while self.loop.time() < deadline and any(not c.is_idle for c in self._connections):
            await asyncio.sleep(0.01)
        for connection in tuple(self._connections):
            connection.close()


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
