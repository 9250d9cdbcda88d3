"""One client's connection: reads requests, starts them in order, and sends the responses in the same order.

Sockets are used directly, on the loop's readiness events: a request is parsed in the buffer into which it is
read, and records are sent with `sendfile`. A connection without a pending request has no buffer: it reads
into one that all connections share. A connection whose client does not read its responses is not read from,
so that a slow client affects only itself.

Requests start in the order in which they arrive: a handler that is a coroutine runs at once, up to where it
first waits. While a long request runs in time slices (`scheduling.py`), later requests wait.
"""

from __future__ import annotations

import asyncio
import logging
import mmap
import os
import socket
import struct
import types
from collections import deque
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.handlers.produce import DelayedResponse
from headrace.broker.scheduling import TimeSliceFuture
from headrace.protocol.errors import ProtocolError
from headrace.storage.memory_log import MemoryRange
from headrace.storage.segment import FileRange

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    from headrace.broker.security.authentication import ConnectionAuthentication
    from headrace.broker.server import BoundListener, Server
    from headrace.broker.tls_connection import TlsSocket

log = logging.getLogger(__name__)

SIZE: Final = struct.Struct(">i")
MAX_UNANSWERED: Final = 64
"""The most pending requests of a connection before it is no longer read."""
MAX_HELD_BYTES: Final = 8 * 2**20
"""The most bytes of delayed records and queued responses of a connection before it is no longer read: more
than a client has in flight by default (five batches of a megabyte), so that its other requests are served."""
MAX_A_TURN: Final = 64
"""Requests of one connection that are handled before other connections run."""
MAX_UNSENT: Final = 16
"""Chunks of responses that are queued before they are sent."""
FIRST_BUFFER_BYTES: Final = 64 * 1024
"""A larger request reserves its memory before the rest of it is read."""
KEPT_BUFFER_BYTES: Final = 4 * 2**20
"""A buffer of up to this size is kept for the next request."""
COPY_BYTES: Final = 16 * 1024
"""Records up to this size are copied into the response: one system call is cheaper than two."""
MORE: Final = getattr(socket, "MSG_MORE", 0)
BLOCKED: Final = (BlockingIOError, InterruptedError)
"""The errors of a socket that is not ready."""

Chunk = bytes | memoryview | FileRange
ResponseChunks = list[object]


class PendingResponse:
    """The position of a response in the order of requests; `chunks` is None until it is complete."""

    __slots__ = ("api_key", "chunks", "future", "held_bytes", "started")

    def __init__(self, api_key: int, started: float) -> None:
        self.api_key = api_key
        self.started = started
        """When the request arrived."""
        self.chunks: ResponseChunks | None = None
        self.held_bytes = 0
        """Bytes reserved for the request until its response, and for the response until it is sent."""
        self.future: asyncio.Future[ResponseChunks] | None = None
        """The long poll of the response, which may be cancelled when the connection ends."""


class Connection:
    """The connection of a client."""

    __slots__ = (
        "_buffer",
        "_end",
        "_fd",
        "_held_bytes",
        "_is_closing",
        "_is_draining",
        "_is_muted",
        "_is_paused",
        "_is_working",
        "_is_writing",
        "_limit_bytes",
        "_muted_until",
        "_out",
        "_pending",
        "_reserved_at",
        "_reserved_bytes",
        "_respond",
        "_server",
        "_socket",
        "_start",
        "_view",
        "access",
        "authentication",
        "endpoint",
        "host",
        "is_closed",
        "last_active",
    )

    def __init__(
        self, server: Server, client: socket.socket | TlsSocket, host: str, listener: BoundListener
    ) -> None:
        self.host = host
        self.endpoint = listener.endpoint
        """The address that this client connects to."""
        self.access = listener.access(host)
        """What the client may do; None for everything."""
        self.authentication: ConnectionAuthentication | None = None
        """The SASL exchange of a client that must authenticate."""
        self.is_closed = False
        self.last_active = server.loop.time()
        self._server = server
        self._socket = client
        self._fd = client.fileno()
        self._buffer: bytearray | mmap.mmap | None = None
        self._view = memoryview(b"")
        self._start = 0
        self._end = 0
        self._held_bytes = 0
        self._pending: deque[PendingResponse] = deque()
        self._out: deque[Chunk] = deque()
        self._is_writing = False
        self._is_paused = False
        self._is_draining = False
        self._is_closing = False
        self._limit_bytes = server.request_limit_bytes
        self._respond: Callable[..., Any] = server.broker.respond
        self._is_muted = False
        """Whether the client is throttled: it is not read from."""
        self._muted_until = 0.0
        self._is_working = False
        """Whether a long request runs in slices: later requests wait."""
        self._reserved_bytes = 0
        self._reserved_at = 0.0
        server.loop.add_reader(self._fd, self._readable)

    @property
    def is_at_work(self) -> bool:
        """Whether the broker works on a request: a client that waits for it is not idle."""
        return bool(self._pending)

    @property
    def has_pending_responses(self) -> bool:
        """Whether a response is not complete or not sent."""
        return bool(self._pending or self._out)

    def drain(self) -> None:
        """Read no more requests; responses to those that were read are still sent."""
        self._is_draining = True
        self._pause()

    def close_when_sent(self) -> None:
        """Read no more requests, and end when the pending responses are sent."""
        self._is_closing = True
        self.drain()

    def require_authentication(self, authentication: ConnectionAuthentication, limit_bytes: int) -> None:
        """Serve only what `authentication` allows, in requests of up to `limit_bytes`."""
        self.authentication = authentication
        self._respond = authentication.respond
        self._limit_bytes = limit_bytes

    def authenticated(self, principal: str, *, is_limited: bool) -> None:
        """Serve the client as that principal; `is_limited` if its session has an end."""
        assert self.authentication is not None
        self._limit_bytes = self._server.request_limit_bytes
        self._respond = self.authentication.respond if is_limited else self._server.broker.respond
        self._server.authenticated(self, principal)

    def respond_changed(self) -> None:
        """Use the broker's current request handler, unless the client is not authenticated yet."""
        if self.authentication is None or self._respond != self.authentication.respond:
            self._respond = self._server.broker.respond

    def mute(self, throttle_ms: int) -> None:
        """Read no more requests for this time; responses are sent (KIP-219)."""
        loop = self._server.loop
        until = loop.time() + throttle_ms / 1000
        if until > self._muted_until and not self.is_closed:
            self._muted_until = until
            if not self._is_muted:
                self._is_muted = True
                self._pause()
                loop.call_at(until, self._unmute)

    def _unmute(self) -> None:
        loop = self._server.loop
        if self.is_closed:
            return
        if loop.time() < self._muted_until:
            loop.call_at(self._muted_until, self._unmute)
            return
        self._is_muted = False
        self._resume()

    def is_late(self, since: float) -> bool:
        """Whether memory was reserved before `since` for a request that has still not arrived as a whole."""
        return self._reserved_bytes > 0 and self._start != self._end and self._reserved_at < since

    def release_buffer(self) -> None:
        """Release the buffer if it is empty."""
        if self._start == self._end and self._buffer is not None:
            self._buffer, self._view, self._start, self._end = None, memoryview(b""), 0, 0
            self._release_memory()

    def memory_available(self) -> None:
        """Continue to read, if the connection waited for memory."""
        if not self.is_closed and self._start != self._end and not self._is_working:
            self._keep(self._view, self._start, self._end)
        self._resume()

    def _release_memory(self) -> None:
        self._server.memory.release(self._reserved_bytes)
        self._reserved_bytes = 0

    # ---------------------------------------------------------------- in

    def _readable(self) -> None:
        shared = self._buffer is None
        view = self._server.shared_buffer if shared else self._view[self._end :]
        if not view:
            self._consume_own()  # first the bytes that have arrived: that frees space
            return
        try:
            received = self._socket.recv_into(view)
        except BLOCKED:
            return
        except OSError:
            received = 0
        if received == 0:
            self.close()
            return
        self.last_active = self._server.loop.time()
        if shared:
            used = self._consume(view, 0, received)
            self._keep(view, used, received)
        else:
            self._end += received
            self._consume_own()

    @property
    def _missing_bytes(self) -> int:
        """Bytes that the request at the start of the buffer still needs; 0 if its size is not known."""
        arrived = self._end - self._start
        return 4 + SIZE.unpack_from(self._view, self._start)[0] - arrived if arrived >= 4 else 0

    def _consume_own(self) -> None:
        used = self._consume(self._view, self._start, self._end)
        self._keep(self._view, used, self._end)

    def _consume(self, view: memoryview, start: int, end: int) -> int:
        """Handle each whole request in the bytes. Returns the position after them."""
        limit = self._limit_bytes
        turns_left = MAX_A_TURN
        while end - start >= 4 and not self.is_closed:
            if self._is_full:
                self._pause()
                if self._server.memory.is_exhausted:
                    self._server.memory.wait(self)
                break
            if not turns_left:
                self._server.loop.call_soon(self._continue)
                break
            turns_left -= 1
            (size,) = SIZE.unpack_from(view, start)
            if not 8 <= size <= limit and not self._accepts_size(size):
                log.warning("%s sent a request of %d bytes: the connection is closed", self.host, size)
                self.close()
                break
            if end - start - 4 < size:
                break
            start += 4
            self._handle(view[start : start + size])
            start += size
            if len(self._out) >= MAX_UNSENT:
                self._write()
        if self._out and not self._is_writing:
            self._write()
        return start

    def _accepts_size(self, size: int) -> bool:
        """Whether a request of an unusual size is read: the limit changes when a client authenticates."""
        if self.authentication is not None and self.authentication.accepts_size(size):
            return True
        return 8 <= size <= self._limit_bytes

    @property
    def _is_full(self) -> bool:
        """Whether the client must first wait for, or read, the responses to its requests."""
        return (
            self._is_writing
            or self._is_working
            or self._is_muted
            or len(self._pending) >= MAX_UNANSWERED
            or self._held_bytes >= MAX_HELD_BYTES
            or (self._server.memory.is_exhausted and bool(self._pending))
        )

    def _keep(self, view: memoryview, start: int, end: int) -> None:
        """Keep the bytes of an incomplete request, with space for the rest."""
        if self._is_working:
            self._keep_in_place(view, start, end)
            return
        left = end - start
        if self.is_closed:
            return
        if not left:
            self._start = self._end = 0
            if len(self._view) > KEPT_BUFFER_BYTES:
                self.release_buffer()
            return
        capacity = self._capacity(view, start, left)
        if capacity is None:
            # The bytes stay where they are, or in a buffer of exactly their size, until memory is free.
            self._pause()
            self._server.memory.wait(self)
            capacity = left
        if self._buffer is None or len(self._buffer) < capacity:
            buffer = _make_buffer(capacity)
            fresh = memoryview(buffer)
            fresh[:left] = view[start:end]
            self._buffer, self._view = buffer, fresh
        elif view is not self._view or start:
            self._view[:left] = view[start:end]
        self._start, self._end = 0, left

    def _keep_in_place(self, view: memoryview, start: int, end: int) -> None:
        """Leave all bytes where they are: an earlier request is still being read there."""
        if view is self._server.shared_buffer:
            buffer = self._server.replace_shared_buffer()
            if self.is_closed:
                return
            self._buffer, self._view = buffer, view
        self._start, self._end = start, end

    def _capacity(self, view: memoryview, start: int, left: int) -> int | None:
        """The buffer that the request needs; None when there is no memory for it now.

        Memory for a large request is only allocated when its first bytes have arrived.
        """
        wanted = 4 + SIZE.unpack_from(view, start)[0] if left >= 4 else FIRST_BUFFER_BYTES
        if wanted <= FIRST_BUFFER_BYTES or left < FIRST_BUFFER_BYTES // 2:
            return max(min(wanted, FIRST_BUFFER_BYTES), left + 1)
        if left >= wanted:
            return left + 1  # the request is complete, and waits for earlier ones
        missing = wanted - self._reserved_bytes
        if missing > 0:
            if not self._server.reserve(missing):
                return None
            self._reserved_bytes = wanted
            self._reserved_at = self._server.loop.time()
        return max(wanted, left + 1)

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._server.loop.remove_reader(self._fd)

    def _resume(self) -> None:
        if self._is_paused:
            self._resume_paused()

    def _resume_paused(self) -> None:
        if self._is_closing and not self.has_pending_responses:
            self.close()
        if not (self.is_closed or self._is_draining or self._is_full or self._is_cramped):
            self._is_paused = False
            self._server.loop.add_reader(self._fd, self._readable)
            if self._start != self._end:
                self._server.loop.call_soon(self._continue)

    @property
    def _is_cramped(self) -> bool:
        """Whether the buffer is full with a part of a request that waits for memory."""
        return self._buffer is not None and self._start == 0 and self._end == len(self._view)

    def _continue(self) -> None:
        if not self.is_closed and not self._is_paused and self._buffer is not None:
            self._consume_own()

    # ---------------------------------------------------------------- requests

    def _handle(self, frame: memoryview) -> None:
        started = perf_counter()
        api_key = frame[1]  # all served APIs have a key below 256
        try:
            response = self._respond(self._server.broker, frame, self)
        except Exception as fault:  # noqa: BLE001  it is logged, and ends the connection
            self._fail(fault)
            return
        kind = response.__class__  # compared with what most responses are: `isawaitable` costs more
        if kind is bytes:
            self._send_response([response], api_key, started)
        elif kind is list:
            self._send_response(response, api_key, started)
        elif response is not None:
            self._respond_later(response, PendingResponse(api_key, started))
            self._server.requests.handled(api_key, perf_counter() - started, self.host)
            return
        self._server.requests.completed(api_key, perf_counter() - started, self.host)

    def _send_response(self, chunks: ResponseChunks, api_key: int, started: float) -> None:
        if self._pending:
            pending = PendingResponse(api_key, started)
            self._pending.append(pending)
            self._set(pending, chunks)
        else:
            self._queue(chunks)

    def _respond_later(self, response: Awaitable[Any], pending: PendingResponse) -> None:
        if isinstance(response, asyncio.Future):
            self._pending.append(pending)
            self._follow(pending, response)
            return
        held_bytes = response.held_bytes if isinstance(response, DelayedResponse) else 0
        steps = response.__await__()
        try:
            waits_for = next(steps)
        except StopIteration as end:
            self._take_result(end.value, pending)
        except Exception as fault:  # noqa: BLE001  it is logged, and ends the connection
            self._fail(fault)
        else:
            self._pending.append(pending)
            pending.held_bytes = held_bytes
            self._hold(held_bytes)
            self._wait(pending, steps, waits_for)

    def _take_result(self, result: Any, pending: PendingResponse) -> None:
        """The result of a handler that did not have to wait."""
        if isinstance(result, asyncio.Future):
            self._pending.append(pending)
            self._follow(pending, result)
            return
        if result is not None:
            chunks = [result] if isinstance(result, bytes) else result
            self._send_response(chunks, pending.api_key, pending.started)
        self._completed(pending)

    def _wait(self, pending: PendingResponse, steps: Generator[Any, Any, Any], waits_for: Any) -> None:
        """Let a handler wait: between two slices of its work, or for something else."""
        if isinstance(waits_for, TimeSliceFuture):
            self._is_working = True
            # As a task does that begins to wait for a future.
            waits_for._asyncio_future_blocking = False
            waits_for.add_done_callback(lambda _: self._work_on(pending, steps, waits_for))
            return
        # It continues when the connection ends: a join or a commit must not be left half done.
        self._server.keep(self._server.loop.create_task(self._await(pending, _resume(steps, waits_for))))

    def _work_on(
        self, pending: PendingResponse, steps: Generator[Any, Any, Any], last: TimeSliceFuture
    ) -> None:
        """The next slice of a long request."""
        self._is_working = False
        try:
            waits_for = next(steps)
        except StopIteration as end:
            self._finish(pending, end.value)
        except Exception as fault:  # noqa: BLE001  it is logged, and ends the connection
            self._fail(fault)
        else:
            if not isinstance(waits_for, TimeSliceFuture):
                last.time_slice.release()
            self._wait(pending, steps, waits_for)
        self._resume()

    def _follow(self, pending: PendingResponse, future: asyncio.Future[ResponseChunks]) -> None:
        pending.future = future
        future.add_done_callback(lambda done: self._complete(pending, done))

    async def _await(self, pending: PendingResponse, response: Awaitable[Any]) -> None:
        try:
            result = await response
        except Exception as fault:  # noqa: BLE001  it is logged, and ends the connection
            self._fail(fault)
        else:
            self._finish(pending, result)

    def _finish(self, pending: PendingResponse, result: Any) -> None:
        if isinstance(result, asyncio.Future):
            self._follow(pending, result)
        else:
            self._fill(pending, [result] if isinstance(result, bytes) else result or [])

    def _complete(self, pending: PendingResponse, done: asyncio.Future[ResponseChunks]) -> None:
        if done.cancelled():
            return
        fault = done.exception()
        if fault is None:
            self._fill(pending, done.result())
        else:
            self._fail(fault)

    def _fail(self, fault: BaseException) -> None:
        if isinstance(fault, ProtocolError):
            log.warning("%s: %s; the connection is closed", self.host, fault)
        else:
            log.error("a request of %s failed; the connection is closed", self.host, exc_info=fault)
        self.close()

    def _fill(self, pending: PendingResponse, chunks: ResponseChunks) -> None:
        if self.is_closed:
            return
        self._completed(pending)
        self._set(pending, chunks)
        while self._pending and self._pending[0].chunks is not None:
            first = self._pending.popleft()
            self._hold(-first.held_bytes)
            self._queue(first.chunks or [])
        if self._out and not self._is_writing:
            self._write()
        else:
            self._resume()

    def _completed(self, pending: PendingResponse) -> None:
        seconds = perf_counter() - pending.started
        self._server.requests.completed(pending.api_key, seconds, self.host)

    def _set(self, pending: PendingResponse, chunks: ResponseChunks) -> None:
        """Set the response of a pending request; it is sent after those of earlier requests."""
        pending.chunks = chunks
        size = sum(len(chunk) for chunk in chunks if isinstance(chunk, bytes | memoryview))
        size += sum(chunk.size for chunk in chunks if isinstance(chunk, MemoryRange))
        self._hold(size - pending.held_bytes)
        pending.held_bytes = size

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        if size >= 0:
            self._server.memory.add(size)
        else:
            self._server.memory.release(-size)

    # ---------------------------------------------------------------- out

    def _queue(self, chunks: ResponseChunks) -> None:
        """Queue a response; small chunks are joined."""
        out = self._out
        for chunk in chunks:
            piece = chunk
            if isinstance(piece, MemoryRange):
                out.extend(piece.chunks())
                continue
            if isinstance(piece, FileRange) and piece.size <= COPY_BYTES:
                piece = piece.read()
            last = out[-1] if out else None
            is_small = isinstance(piece, bytes) and len(piece) < COPY_BYTES
            if is_small and isinstance(last, bytes) and len(last) < COPY_BYTES:
                out[-1] = last + piece  # type: ignore[operator]  # both are bytes
            else:
                out.append(piece)  # type: ignore[arg-type]  # handlers give bytes and file ranges

    def _write(self) -> None:
        """Send what is in line, or the rest of it when the socket is writable again."""
        if self.is_closed:
            return
        try:
            self._send_queued()
        except BLOCKED:
            if not self._is_writing:
                self._is_writing = True
                self._server.loop.add_writer(self._fd, self._write)
            return
        except (OSError, ValueError):  # also what the ssl module raises
            self.close()
            return
        if self._is_writing:
            self._is_writing = False
            self._server.loop.remove_writer(self._fd)
        self._resume()

    def _send_queued(self) -> None:
        """Send the pieces in line until none is left, or raise one of `BLOCKED`."""
        out = self._out
        while out:
            chunk = out[0]
            if isinstance(chunk, FileRange):
                self._send_file(chunk)
            else:
                sent = self._socket.send(chunk, MORE if len(out) > 1 else 0)
                self.last_active = self._server.loop.time()
                if sent < len(chunk):
                    out[0] = memoryview(chunk)[sent:]
                else:
                    out.popleft()

    def _send_file(self, chunk: FileRange) -> None:
        file, position, size = chunk
        sent = os.sendfile(self._fd, file.fd, position, size)
        self.last_active = self._server.loop.time()
        if sent == 0:
            raise OSError("the file is shorter than the log says")
        if sent < size:
            self._out[0] = FileRange(file, position + sent, size - sent)
        else:
            self._out.popleft()

    def close(self) -> None:
        """Close the connection; responses that were not sent are dropped."""
        if self.is_closed:
            return
        self.is_closed = True
        loop = self._server.loop
        loop.remove_reader(self._fd)
        loop.remove_writer(self._fd)
        # The next connection may get the descriptor: from here on this one registers and removes nothing.
        self._is_paused, self._is_writing = True, False
        self._socket.close()
        for pending in self._pending:
            if pending.future is not None:
                pending.future.cancel()
        self._pending.clear()
        self._out.clear()
        self._hold(-self._held_bytes)
        self._release_memory()
        self._server.forget(self)


def _make_buffer(size: int) -> bytearray | mmap.mmap:
    """A buffer; the pages of a large one are allocated when bytes arrive."""
    return bytearray(size) if size <= KEPT_BUFFER_BYTES else mmap.mmap(-1, size)


@types.coroutine
def _resume(steps: Generator[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """A coroutine that continues one that was started outside of a task, and waits for `waits_for`."""
    try:
        yield waits_for
    except BaseException as fault:  # noqa: BLE001  the coroutine decides what a cancellation means
        try:
            waits_for = steps.throw(fault)
        except StopIteration as end:
            return end.value
        return (yield from _resume(steps, waits_for))
    return (yield from steps)
