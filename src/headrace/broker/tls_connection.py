"""A connection with TLS, on the same readiness events as one without.

What differs: the handshake comes first and has the deadline of authentication; bytes that OpenSSL has
decrypted already make no socket readable, so they are drained; records are read from the file in pieces and
encrypted, where `sendfile` would send them; a piece that was begun to be sent is repeated as it was.
"""

from __future__ import annotations

import logging
import os
import ssl
from typing import TYPE_CHECKING, ClassVar, Final

from headrace.broker.connection import Connection
from headrace.storage.segment import FileRange

if TYPE_CHECKING:
    import socket

    from headrace.broker.server import BoundListener, Server

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 128 * 1024
"""Bytes of a file that are read and encrypted at once."""
MAX_READS: Final = 16
"""Reads of one connection before other connections run; a read returns up to 16 KB."""


class TlsConnection(Connection):
    """A client of an SSL or SASL_SSL listener."""

    BLOCKED: ClassVar[tuple[type[OSError], ...]] = (
        *Connection.BLOCKED,
        ssl.SSLWantReadError,
        ssl.SSLWantWriteError,
    )

    __slots__ = ("_is_secure", "_listener", "_tls")

    def __init__(self, server: Server, client: socket.socket, host: str, listener: BoundListener) -> None:
        assert listener.tls is not None
        self._listener = listener
        self._is_secure = False
        self._tls: ssl.SSLSocket = listener.tls.context.wrap_socket(
            client, server_side=True, do_handshake_on_connect=False
        )
        super().__init__(server, self._tls, host, listener)

    # ---------------------------------------------------------------- handshake

    def _shake_hands(self) -> None:
        """Continue the handshake; called when the socket is readable or writable."""
        loop = self._server.loop
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            loop.remove_writer(self._fd)
            return
        except ssl.SSLWantWriteError:
            loop.add_writer(self._fd, self._shake_hands)
            return
        except (OSError, ValueError) as fault:  # also what the ssl module raises
            log.warning("the TLS handshake of %s failed: %s", self.host, fault)
            self._server.failed_authentications += 1
            self.close()
            return
        loop.remove_writer(self._fd)
        self._is_secure = True
        self._server.handshake_done(self, self._listener, self._tls.getpeercert())
        if not self.is_closed and self._tls.pending():
            self._readable()

    # ---------------------------------------------------------------- in

    def _readable(self) -> None:
        if not self._is_secure:
            self._shake_hands()
            return
        for _ in range(MAX_READS):
            super()._readable()
            if self.is_closed or self._is_paused or not self._tls.pending():
                return
        self._server.loop.call_soon(self._read_pending)

    def _read_pending(self) -> None:
        if not (self.is_closed or self._is_paused) and self._tls.pending():
            self._readable()

    def _resume_paused(self) -> None:
        super()._resume_paused()
        if not (self.is_closed or self._is_paused):
            self._server.loop.call_soon(self._read_pending)

    # ---------------------------------------------------------------- out

    def _send_queued(self) -> None:
        """Encrypt and send the pieces in line until none is left, or raise one of `BLOCKED`."""
        out = self._out
        while out:
            piece = self._next_piece()
            sent = self._tls.send(piece)
            self.last_active = self._server.loop.time()
            if sent < len(piece):
                out[0] = piece[sent:]
            else:
                out.popleft()

    def _next_piece(self) -> memoryview:
        """The first piece in line, as a view: nothing is joined to it any more.

        OpenSSL requires that a chunk that could not be sent is sent again with the same bytes.
        """
        out = self._out
        first = out[0]
        if isinstance(first, FileRange):
            piece = memoryview(self._read_file(first))
            out.appendleft(piece)
            return piece
        if not isinstance(first, memoryview):
            first = out[0] = memoryview(first)
        return first

    def _read_file(self, chunk: FileRange) -> bytes:
        """The first bytes of a range; the rest of it stays queued."""
        file, position, size = chunk
        data = os.pread(file.fd, min(size, PIECE_BYTES), position)
        if not data:
            raise OSError("the file is shorter than the log says")
        if len(data) < size:
            self._out[0] = FileRange(file, position + len(data), size - len(data))
        else:
            self._out.popleft()
        return data

    def close(self) -> None:
        """Close the connection, with a TLS close notification if that does not block."""
        if not self.is_closed and self._is_secure:
            try:
                self._tls.unwrap()
            except (OSError, ValueError):
                log.debug("%s got no close_notify", self.host)
        super().close()
