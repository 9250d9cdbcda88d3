"""The listener: takes connections in, looks after idle ones, and drains when the broker stops."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections import Counter
from typing import TYPE_CHECKING, Final

from headrace.broker.connection import Connection
from headrace.broker.memory_pool import RequestMemoryPool
from headrace.storage.folder import OPEN_FILES

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger(__name__)

SHARED_BUFFER_BYTES: Final = 256 * 1024
SWEEP_SECONDS: Final = 5.0
SPARE_DESCRIPTORS: Final = 32
"""File descriptors that are neither for connections nor for logs: a process for compaction, a checkpoint."""
RETRY_SECONDS: Final = 0.1
"""After this time a connection that could not be taken in is tried again."""
ARRIVAL_SECONDS: Final = 30.0
"""How long a large request may take to arrive while other connections wait for its memory."""


class Server:
    """Everything between the broker and its sockets."""

    def __init__(self, broker: Broker, listener: socket.socket) -> None:
        self.broker = broker
        self.loop = broker.loop
        self.request_limit_bytes = broker.config.request_limit_bytes
        self.replace_shared_buffer()
        self.memory = RequestMemoryPool(broker.config.connection_memory_bytes, self.loop.call_soon)
        self._idle_seconds = broker.config.idle_connection_ms / 1000
        self._sweep_seconds = min(SWEEP_SECONDS, self._idle_seconds)
        self._listener = listener
        self._connections: set[Connection] = set()
        self._by_host: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper = self.loop.call_later(self._sweep_seconds, self._sweep)
        self._last_descriptor = _descriptor_limit() - 2 * log_file_limit() - SPARE_DESCRIPTORS
        self._max_connections = broker.config.max_connections
        self._max_per_host = broker.config.max_connections_per_ip
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
        host = address[0]
        refusal = self._refusal(client, host)
        if refusal is not None:
            log.warning("a connection from %s is refused: %s", host, refusal)
            client.close()
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._by_host[host] += 1
        self._connections.add(Connection(self, client, host))

    def _refusal(self, client: socket.socket, host: str) -> str | None:
        """Why a connection cannot be served; None when it can."""
        if client.fileno() > self._last_descriptor:
            return "nearly all file descriptors are in use; raise the limit (ulimit -n)"
        if self._by_host[host] >= self._max_per_host:
            return f"{host} has {self._max_per_host} connections already (max.connections.per.ip)"
        if len(self._connections) >= self._max_connections:
            return f"there are {self._max_connections} connections already (max.connections)"
        return None

    def replace_shared_buffer(self) -> bytearray:
        """Begin a new shared buffer; the old one belongs to the caller."""
        old = getattr(self, "_shared", bytearray())
        self._shared = bytearray(SHARED_BUFFER_BYTES)
        self.shared_buffer = memoryview(self._shared)
        return old

    def reserve(self, size: int) -> bool:
        """Reserve memory for a large request; buffers that connections keep unused are given back first."""
        if not self.memory.reserve(size):
            for connection in self._connections:
                connection.release_buffer()
            return self.memory.reserve(size)
        return True

    def forget(self, connection: Connection) -> None:
        """A connection has ended."""
        self._connections.discard(connection)
        self._by_host[connection.host] -= 1
        if not self._by_host[connection.host]:
            del self._by_host[connection.host]
        self.memory.forget(connection)
        self.broker.sessions.disconnected(connection)
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
            elif self.memory.is_awaited and connection.is_late(now - ARRIVAL_SECONDS):
                log.warning("%s is too slow with a large request, and others wait: closed", connection.host)
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


def _descriptor_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def log_file_limit() -> int:
    """How many log files may be open to be read, and how many to be written; the rest is for connections."""
    return max(8, min(OPEN_FILES, _descriptor_limit() // 8))


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
