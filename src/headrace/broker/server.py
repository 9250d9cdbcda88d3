"""The server: accepts connections on all listeners, closes idle ones, and drains when the broker stops.

A connection on a listener with authentication must authenticate before a deadline, and the number of
connections that have not yet is limited; one more closes the oldest of them.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.connection import Connection
from headrace.broker.memory_pool import RequestMemoryPool
from headrace.broker.security.authentication import MAX_REQUEST_BYTES, ConnectionAuthentication
from headrace.broker.security.certificates import NoMatchingRule
from headrace.broker.tls_connection import ENCRYPTED_BYTES, TlsConnection
from headrace.storage.folder import OPEN_FILES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.broker.broker import Broker
    from headrace.broker.listeners import Endpoint, Listener
    from headrace.broker.security.acls import Access
    from headrace.broker.security.certificates import TlsContexts
    from headrace.broker.security.sasl import Exchange

log = logging.getLogger(__name__)

SHARED_BUFFER_BYTES: Final = 256 * 1024
SWEEP_SECONDS: Final = 5.0
SPARE_DESCRIPTORS: Final = 32
"""File descriptors for other uses than connections and logs: a compaction process, a checkpoint."""
RETRY_SECONDS: Final = 0.1
"""A connection that could not be accepted is retried after this time."""
ARRIVAL_SECONDS: Final = 30.0
"""How long a large request may take to arrive while other connections wait for its memory."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoundListener:
    """A listener with its socket."""

    listener: Listener
    socket: socket.socket
    endpoint: Endpoint
    """The address that its clients connect to."""
    mechanisms: Mapping[str, Callable[[], Exchange]] | None = None
    """The SASL mechanisms that its clients must authenticate with; None without SASL."""
    tls: TlsContexts | None = None
    """The TLS contexts; None without TLS."""
    access: Callable[[str], Access | None] = lambda _host: None
    """What a client from a host may do before it is authenticated; None for everything."""


class Server:
    """The listeners and connections of a broker."""

    def __init__(self, broker: Broker, listeners: Sequence[BoundListener]) -> None:
        self.broker = broker
        self.loop = broker.loop
        self.request_limit_bytes = broker.config.request_limit_bytes
        self.replace_shared_buffer()
        self.encrypted_buffer = memoryview(bytearray(ENCRYPTED_BYTES))
        """Takes what TLS connections receive, until it is decrypted."""
        self.memory = RequestMemoryPool(broker.config.connection_memory_bytes, self.loop.call_soon)
        self._idle_seconds = broker.config.idle_connection_ms / 1000
        self._sweep_seconds = min(SWEEP_SECONDS, self._idle_seconds)
        self._listeners = listeners
        self._unauthenticated: dict[Connection, asyncio.TimerHandle] = {}
        """Connections that are being authenticated, the oldest first, with the timers that end them."""
        self._connections: set[Connection] = set()
        self.requests = broker.requests
        self.accepted = 0
        """Connections since the start, for metrics; likewise the two below."""
        self.refused = 0
        self.failed_authentications = 0
        self._by_host: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper = self.loop.call_later(self._sweep_seconds, self._sweep)
        self._last_descriptor = _descriptor_limit() - 2 * log_file_limit() - SPARE_DESCRIPTORS
        self._max_connections = broker.config.max_connections
        self._max_per_host = broker.config.max_connections_per_ip
        self._retries: dict[BoundListener, asyncio.TimerHandle] = {}
        for listener in listeners:
            self._listen(listener)

    def __len__(self) -> int:
        return len(self._connections)

    def _listen(self, listener: BoundListener) -> None:
        self._retries.pop(listener, None)
        self.loop.add_reader(listener.socket.fileno(), partial(self._accept, listener))

    def _accept(self, listener: BoundListener) -> None:
        try:
            client, address = listener.socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as fault:
            # Out of descriptors or memory: the connection stays in the queue and is retried later.
            log.warning("a connection could not be accepted, and is tried again soon: %s", fault)
            self.loop.remove_reader(listener.socket.fileno())
            self._retries[listener] = self.loop.call_later(RETRY_SECONDS, self._listen, listener)
            return
        host = address[0].removeprefix("::ffff:")  # an IPv4 client on an IPv6 socket
        refusal = self._refusal(client, host)
        if refusal is not None:
            log.warning("a connection from %s is refused: %s", host, refusal)
            self.refused += 1
            client.close()
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        kind = Connection if listener.tls is None else TlsConnection
        try:
            connection = kind(self, client, host, listener)
        except (OSError, ValueError) as fault:
            log.info("%s went away before it was served: %s", host, fault)
            client.close()
            return
        self.accepted += 1
        self._by_host[host] += 1
        self._connections.add(connection)
        if listener.mechanisms is not None:
            authentication = ConnectionAuthentication(self.broker, connection, listener.mechanisms)
            connection.require_authentication(authentication, MAX_REQUEST_BYTES)
        if listener.mechanisms is not None or listener.tls is not None:
            self._await_authentication(connection)

    def handshake_done(
        self, connection: Connection, listener: BoundListener, certificate: Mapping[str, Any] | None
    ) -> None:
        """The TLS handshake is complete; without SASL the certificate identifies the client."""
        if listener.mechanisms is not None:
            return
        try:
            principal = self.broker.security.certificate_principal(certificate)
        except NoMatchingRule as fault:
            log.warning("%s is not authenticated: %s", connection.host, fault)
            self.failed_authentications += 1
            connection.close()
            return
        self.authenticated(connection, principal)

    def _await_authentication(self, connection: Connection) -> None:
        settings = self.broker.config.security
        if len(self._unauthenticated) >= settings.max_unauthenticated:
            oldest = next(iter(self._unauthenticated))
            log.warning("%s is closed before it was authenticated: others wait", oldest.host)
            oldest.close()
        delay = settings.authentication_timeout_ms / 1000
        self._unauthenticated[connection] = self.loop.call_later(delay, self._end_late, connection)

    def _end_late(self, connection: Connection) -> None:
        log.warning("%s was not authenticated in time: closed", connection.host)
        self.failed_authentications += 1
        connection.close()

    def authenticated(self, connection: Connection, principal: str) -> None:
        """Keep an authenticated connection, with the rights of its principal."""
        connection.access = self.broker.security.access(principal, connection.host)
        log.debug("%s is %s", connection.host, principal)
        self._stop_timer(connection)

    def _stop_timer(self, connection: Connection) -> None:
        timer = self._unauthenticated.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _refusal(self, client: socket.socket, host: str) -> str | None:
        """Why a connection cannot be served, or None."""
        if client.fileno() > self._last_descriptor:
            return "nearly all file descriptors are in use; raise the limit (ulimit -n)"
        if self._by_host[host] >= self._max_per_host:
            return f"{host} has {self._max_per_host} connections already (max.connections.per.ip)"
        if len(self._connections) >= self._max_connections:
            return f"there are {self._max_connections} connections already (max.connections)"
        return None

    def respond_changed(self) -> None:
        """Let the requests of open connections be measured for quotas, or no more."""
        for connection in self._connections:
            connection.respond_changed()

    def replace_shared_buffer(self) -> bytearray:
        """Allocate a new shared buffer; the old one belongs to the caller."""
        old = getattr(self, "_shared", bytearray())
        self._shared = bytearray(SHARED_BUFFER_BYTES)
        self.shared_buffer = memoryview(self._shared)
        return old

    def reserve(self, size: int) -> bool:
        """Reserve memory for a large request; unused buffers of connections are released first."""
        if not self.memory.reserve(size):
            for connection in self._connections:
                connection.release_buffer()
            return self.memory.reserve(size)
        return True

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self._connections.discard(connection)
        self._stop_timer(connection)
        self._by_host[connection.host] -= 1
        if not self._by_host[connection.host]:
            del self._by_host[connection.host]
        self.memory.forget(connection)
        self.broker.sessions.disconnected(connection)
        self.broker.shares.disconnected(connection)

    def keep(self, task: asyncio.Task[None]) -> None:
        """Keep a reference to a task that works on a response until it is done."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _sweep(self) -> None:
        """Release the buffers of idle connections, and close those that were idle for too long."""
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
        """Accept no new requests, complete those in flight, and close every connection."""
        self._sweeper.cancel()
        for retry in self._retries.values():
            retry.cancel()
        for listener in self._listeners:
            self.loop.remove_reader(listener.socket.fileno())
            listener.socket.close()
        for connection in self._connections:
            connection.drain()
        deadline = self.loop.time() + grace_seconds
        while self.loop.time() < deadline and any(c.has_pending_responses for c in self._connections):
            await asyncio.sleep(0.01)
        for connection in tuple(self._connections):
            connection.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _descriptor_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def log_file_limit() -> int:
    """The most log files open for reading and for writing; the rest is for connections."""
    return max(8, min(OPEN_FILES, _descriptor_limit() // 8))


def listen(host: str, port: int) -> socket.socket:
    """A non-blocking listening socket."""
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
