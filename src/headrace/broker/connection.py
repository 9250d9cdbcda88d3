"""One client's connection: bytes in, requests handled in order, answers out in the same order.

Sockets are used directly, on the loop's readiness events: a request is read into one reused buffer and walked
where it lies, records leave by `sendfile`. A connection that has nothing under way holds no buffer, reads go
to one that all connections share. A client that does not read its answers is not read from either, so that it
harms nobody but itself.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Final

from headrace.broker.apis import answer_request
from headrace.broker.handlers.produce import HeldAnswer
from headrace.protocol.errors import ProtocolError
from headrace.storage.memory_batches import MemoryRange
from headrace.storage.segment import FileRange

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from headrace.broker.server import Server

log = logging.getLogger(__name__)

SIZE: Final = struct.Struct(">i")
MAX_UNANSWERED: Final = 64
"""Requests of one connection that may wait for their answers before it is no longer read."""
MAX_HELD_BYTES: Final = 8 * 2**20
"""Records of one connection that may wait for room in their topics before it is no longer read: more than a
client has under way by default (five batches of a megabyte), so that its other requests are served."""
MAX_A_TURN: Final = 64
"""Requests of one connection that are handled before the others have their turn."""
MAX_UNSENT: Final = 16
"""Pieces of answers that are put in line before they are sent."""
FIRST_BUFFER_BYTES: Final = 64 * 1024
COPY_BYTES: Final = 16 * 1024
"""Records up to this size are copied into the answer: one system call is cheaper than two."""
MORE: Final = getattr(socket, "MSG_MORE", 0)

Chunk = bytes | memoryview | FileRange
Answers = list[object]


class Slot:
    """The place of an answer in the order of requests; `chunks` is None until it is there."""

    __slots__ = ("chunks", "future", "held_bytes")

    def __init__(self) -> None:
        self.chunks: Answers | None = None
        self.held_bytes = 0
        """What is kept of the request until it can be answered."""
        self.future: asyncio.Future[Answers] | None = None
        """What the answer comes from, when nothing is lost by giving it up: a long poll."""


class Connection:
    """A client, from its connect to its end."""

    __slots__ = (
        "_buffer",
        "_end",
        "_fd",
        "_held_bytes",
        "_is_draining",
        "_is_paused",
        "_is_writing",
        "_out",
        "_server",
        "_slots",
        "_socket",
        "_start",
        "_view",
        "host",
        "is_closed",
        "last_active",
    )

    def __init__(self, server: Server, client: socket.socket, host: str) -> None:
        self.host = host
        self.is_closed = False
        self.last_active = server.loop.time()
        self._server = server
        self._socket = client
        self._fd = client.fileno()
        self._buffer: bytearray | None = None
        self._view = memoryview(b"")
        self._start = 0
        self._end = 0
        self._held_bytes = 0
        self._slots: deque[Slot] = deque()
        self._out: deque[Chunk] = deque()
        self._is_writing = False
        self._is_paused = False
        self._is_draining = False
        server.loop.add_reader(self._fd, self._readable)

    @property
    def is_at_work(self) -> bool:
        """Whether the broker is busy with a request: a client that is quiet meanwhile waits for us."""
        return bool(self._slots)

    @property
    def owes_answers(self) -> bool:
        """Whether an answer is still to be found or to be sent."""
        return bool(self._slots or self._out)

    def drain(self) -> None:
        """Read no more requests; answers to those that were read are still sent."""
        self._is_draining = True
        self._pause()

    def release_buffer(self) -> None:
        """Give the buffer back when there is nothing in it."""
        if self._start == self._end:
            self._buffer, self._view, self._start, self._end = None, memoryview(b""), 0, 0

    # ---------------------------------------------------------------- in

    def _readable(self) -> None:
        shared = self._buffer is None
        view = self._server.shared_buffer if shared else self._view[self._end :]
        try:
            received = self._socket.recv_into(view)
        except (BlockingIOError, InterruptedError):
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

    def _consume_own(self) -> None:
        used = self._consume(self._view, self._start, self._end)
        self._keep(self._view, used, self._end)

    def _consume(self, view: memoryview, start: int, end: int) -> int:
        """Handle each whole request in the bytes; gives the position of what is left."""
        limit = self._server.request_limit_bytes
        turns_left = MAX_A_TURN
        while end - start >= 4 and not self.is_closed:
            if self._is_full:
                self._pause()
                break
            if not turns_left:
                self._server.loop.call_soon(self._continue)
                break
            turns_left -= 1
            (size,) = SIZE.unpack_from(view, start)
            if not 8 <= size <= limit:
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

    @property
    def _is_full(self) -> bool:
        """Whether the client must first wait for, or read, the answers to what it has asked."""
        return self._is_writing or len(self._slots) >= MAX_UNANSWERED or self._held_bytes >= MAX_HELD_BYTES

    def _keep(self, view: memoryview, start: int, end: int) -> None:
        """Keep the bytes of an unfinished request, with room for more of it."""
        left = end - start
        if self.is_closed:
            return
        if not left:
            self._start = self._end = 0
            return
        wanted = 4 + SIZE.unpack_from(view, start)[0] if left >= 4 else FIRST_BUFFER_BYTES
        # A length is only believed as far as bytes have arrived: room at most doubles.
        capacity = max(min(wanted, max(FIRST_BUFFER_BYTES, 2 * left)), left + 1)
        if self._buffer is None or len(self._buffer) < capacity:
            buffer = bytearray(capacity)
            buffer[:left] = view[start:end]
            self._buffer, self._view = buffer, memoryview(buffer)
        elif view is not self._view or start:
            self._view[:left] = view[start:end]
        self._start, self._end = 0, left

    def _pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            self._server.loop.remove_reader(self._fd)

    def _resume(self) -> None:
        if self._is_paused and not (self.is_closed or self._is_draining or self._is_full):
            self._is_paused = False
            self._server.loop.add_reader(self._fd, self._readable)
            if self._start != self._end:
                self._server.loop.call_soon(self._continue)

    def _continue(self) -> None:
        if not self.is_closed and not self._is_paused and self._buffer is not None:
            self._consume_own()

    # ---------------------------------------------------------------- requests

    def _handle(self, frame: memoryview) -> None:
        try:
            answer = answer_request(self._server.broker, frame, self.host, self)
        except ProtocolError as fault:
            log.warning("%s: %s; the connection is closed", self.host, fault)
            self.close()
            return
        except Exception:
            log.exception("a request of %s failed; the connection is closed", self.host)
            self.close()
            return
        if answer is None:
            return
        if inspect.isawaitable(answer):
            self._answer_later(answer)
        else:
            self._answer([answer] if isinstance(answer, bytes) else answer)

    def _answer(self, chunks: Answers) -> None:
        if self._slots:
            slot = Slot()
            slot.chunks = chunks
            self._slots.append(slot)
        else:
            self._queue(chunks)

    def _answer_later(self, answer: Awaitable[bytes | Answers | None]) -> None:
        slot = Slot()
        self._slots.append(slot)
        if isinstance(answer, asyncio.Future):
            slot.future = answer
            answer.add_done_callback(lambda done: self._complete(slot, done))
            return
        if isinstance(answer, HeldAnswer):
            slot.held_bytes = answer.held_bytes
            self._held_bytes += slot.held_bytes
        # It goes on when the connection ends: what it began (a join, a commit) is not to be left half done.
        self._server.keep(self._server.loop.create_task(self._await(slot, answer)))

    async def _await(self, slot: Slot, answer: Awaitable[bytes | Answers | None]) -> None:
        try:
            chunks = await answer
        except ProtocolError as fault:
            log.warning("%s: %s; the connection is closed", self.host, fault)
            self.close()
        except Exception:
            log.exception("a request of %s failed; the connection is closed", self.host)
            self.close()
        else:
            self._fill(slot, [chunks] if isinstance(chunks, bytes) else chunks or [])

    def _complete(self, slot: Slot, done: asyncio.Future[Answers]) -> None:
        if done.cancelled():
            return
        fault = done.exception()
        if fault is None:
            self._fill(slot, done.result())
        else:
            log.error("a request of %s failed; the connection is closed", self.host, exc_info=fault)
            self.close()

    def _fill(self, slot: Slot, chunks: Answers) -> None:
        if self.is_closed:
            return
        slot.chunks = chunks
        self._held_bytes -= slot.held_bytes
        while self._slots and self._slots[0].chunks is not None:
            self._queue(self._slots.popleft().chunks or [])
        if self._out and not self._is_writing:
            self._write()
        else:
            self._resume()

    # ---------------------------------------------------------------- out

    def _queue(self, chunks: Answers) -> None:
        """Put an answer in line; small pieces are joined into one."""
        out = self._out
        for chunk in chunks:
            piece = chunk
            if isinstance(piece, MemoryRange):
                out.extend(piece.pieces())
                continue
            if isinstance(piece, FileRange) and piece.size <= COPY_BYTES:
                piece = piece.read()
            last = out[-1] if out else None
            if isinstance(piece, bytes) and isinstance(last, bytes) and len(last) < COPY_BYTES:
                out[-1] = last + piece
            else:
                out.append(piece)  # type: ignore[arg-type]  # handlers give bytes and file ranges

    def _write(self) -> None:
        out = self._out
        try:
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
        except (BlockingIOError, InterruptedError):
            if not self._is_writing:
                self._is_writing = True
                self._server.loop.add_writer(self._fd, self._write)
            return
        except OSError:
            self.close()
            return
        if self._is_writing:
            self._is_writing = False
            self._server.loop.remove_writer(self._fd)
        self._resume()

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
        """End the connection; answers that were not sent are dropped."""
        if self.is_closed:
            return
        self.is_closed = True
        loop = self._server.loop
        loop.remove_reader(self._fd)
        loop.remove_writer(self._fd)
        self._socket.close()
        for slot in self._slots:
            if slot.future is not None:
                slot.future.cancel()
        self._slots.clear()
        self._out.clear()
        self._server.forget(self)
