"""A connection with TLS, on the same readiness events as one without.

What differs: the handshake comes first and has the deadline of authentication; bytes that OpenSSL holds make
no socket readable, so they are drained; records are read from the file in pieces and encrypted, where
`sendfile` would send them.

OpenSSL works on memory, not on the socket: many clients send a TLS record for each Kafka record (librdkafka,
with records of a kilobyte), and OpenSSL reads a record from a socket with two system calls. The bytes of many
records are read from the socket by one. In the middle of a large request the socket becomes readable when
many bytes have arrived (`SO_RCVLOWAT`), which spares the client the wakeups, too.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.connection import MORE, Connection
from headrace.storage.segment import FileRange

if TYPE_CHECKING:
    from headrace.broker.server import BoundListener, Server

log = logging.getLogger(__name__)

PIECE_BYTES: Final = 128 * 1024
"""Bytes of a file that are read and encrypted at once."""
ENCRYPTED_BYTES: Final = 128 * 1024
"""Encrypted bytes that are read from a socket at once."""
MAX_DECRYPTED_BYTES: Final = 256 * 1024
"""Bytes that are decrypted at once."""
MAX_READS: Final = 4
"""Reads of one connection before other connections run."""
RECORD_BYTES: Final = 16 * 1024
"""The most bytes in a TLS record."""


class TlsSocket:
    """A non-blocking socket with TLS: the methods that a connection needs.

    `recv_into` and `send` raise `BlockingIOError` where those of a socket do, and an `OSError` otherwise.
    """

    def __init__(self, client: socket.socket, context: ssl.SSLContext, buffer: memoryview) -> None:
        self._socket = client
        self._buffer = buffer
        """For encrypted bytes on their way to OpenSSL; all connections share it."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._unsent: memoryview | None = None
        """Encrypted bytes that the socket has not taken yet."""
        self._has_encrypted_piece = False
        """Whether the first piece in line is encrypted, and not sent as a whole."""
        self._low_water_bytes = 1

    def fileno(self) -> int:
        """The descriptor of the socket."""
        return self._socket.fileno()

    @property
    def has_unsent_bytes(self) -> bool:
        """Whether encrypted bytes wait for the socket."""
        return self._unsent is not None

    @property
    def has_received_bytes(self) -> bool:
        """Whether bytes were received that did not fit into the last view."""
        return self._incoming.pending > 0 or self._tls.pending() > 0

    def peer_certificate(self) -> dict[str, Any] | None:
        """The certificate of the client, after the handshake."""
        return self._tls.getpeercert()

    def do_handshake(self) -> None:
        """Continue the handshake; raises `BlockingIOError` if it is not complete."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self.flush()
                self._receive()
            except ssl.SSLError:
                self._flush_if_possible()  # the alert that tells the client why
                raise
            else:
                self.flush()
                return

    def recv_into(self, view: memoryview) -> int:
        """Receive once, and decrypt into the view what is complete; 0 at the end of the stream."""
        received = self._decrypt(view) if self.has_received_bytes else None
        if received is None:
            self._receive()
            received = self._decrypt(view)
        if self._outgoing.pending:
            self._flush_if_possible()  # OpenSSL responds to what is not data: a new key
        if received is None:
            raise BlockingIOError
        return received

    def _receive(self) -> None:
        size = self._socket.recv_into(self._buffer)
        if size:
            self._incoming.write(self._buffer[:size])
        else:
            self._incoming.write_eof()

    def _decrypt(self, view: memoryview) -> int | None:
        """Bytes that were decrypted; None if no record is complete, and 0 at the end of the stream."""
        read, incoming = self._tls.read, self._incoming
        decrypted = 0
        limit = min(len(view), MAX_DECRYPTED_BYTES)
        try:
            while decrypted < limit:
                size = read(limit - decrypted, view[decrypted:])
                if not size:
                    break
                decrypted += size  # type: ignore[operator]  # with a buffer it is a number
                if not incoming.pending:
                    break
        except ssl.SSLWantReadError:
            return decrypted or None
        except OSError:
            if not decrypted:
                raise
            # What arrived before the error is served first: the next read raises it again.
        return decrypted

    def send(self, piece: bytes | memoryview, flags: int = 0) -> int:
        """Encrypt and send a whole piece. After a `BlockingIOError` it is sent again with the same piece."""
        if not self._has_encrypted_piece:
            self._tls.write(piece)
            self._has_encrypted_piece = True
        self.flush(flags)
        self._has_encrypted_piece = False
        return len(piece)

    def flush(self, flags: int = 0) -> None:
        """Send what is encrypted; raises `BlockingIOError` if the socket does not take it."""
        while self._unsent is not None or self._outgoing.pending:
            if self._unsent is None:
                self._unsent = memoryview(self._outgoing.read())
            sent = self._socket.send(self._unsent, flags)
            self._unsent = self._unsent[sent:] if sent < len(self._unsent) else None

    def _flush_if_possible(self) -> None:
        try:
            self.flush()
        except OSError:
            log.debug("bytes of the TLS protocol are not sent")

    def set_low_water(self, size: int) -> None:
        """Let the socket become readable when this many bytes have arrived, or the stream has ended."""
        if size != self._low_water_bytes:
            self._low_water_bytes = size
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)

    def close(self) -> None:
        """Close the socket, with a TLS close notification if that does not block."""
        with suppress(OSError, ValueError):  # what the ssl module raises before the other side has closed
            self._tls.unwrap()
        self._flush_if_possible()
        self._socket.close()


class TlsConnection(Connection):
    """A client of an SSL or SASL_SSL listener."""

    __slots__ = ("_is_secure", "_listener", "_tls")

    def __init__(self, server: Server, client: socket.socket, host: str, listener: BoundListener) -> None:
        assert listener.tls is not None
        self._listener = listener
        self._is_secure = False
        self._tls = TlsSocket(client, listener.tls.context, server.encrypted_buffer)
        super().__init__(server, self._tls, host, listener)

    # ---------------------------------------------------------------- handshake

    def _shake_hands(self) -> None:
        """Continue the handshake; called when the socket is readable or writable."""
        loop = self._server.loop
        try:
            self._tls.do_handshake()
        except BlockingIOError:
            if self._tls.has_unsent_bytes:
                loop.add_writer(self._fd, self._shake_hands)
            else:
                loop.remove_writer(self._fd)
            return
        except (OSError, ValueError) as fault:  # also what the ssl module raises
            log.warning("the TLS handshake of %s failed: %s", self.host, fault)
            self._server.failed_authentications += 1
            self.close()
            return
        loop.remove_writer(self._fd)
        self._is_secure = True
        self._server.handshake_done(self, self._listener, self._tls.peer_certificate())
        self._read_received()

    # ---------------------------------------------------------------- in

    def _readable(self) -> None:
        if not self._is_secure:
            self._shake_hands()
            return
        for _ in range(MAX_READS):
            super()._readable()
            if self.is_closed:
                return
            if self._is_paused or not self._tls.has_received_bytes:
                break
        else:
            self._server.loop.call_soon(self._read_received)
        self._tls.set_low_water(self._low_water_bytes)

    @property
    def _low_water_bytes(self) -> int:
        """How many bytes must arrive before the socket is readable.

        OpenSSL may hold a part of a record already: fewer bytes are still to come than are missing.
        """
        wanted = min(self._missing_bytes - 2 * RECORD_BYTES, ENCRYPTED_BYTES)
        return wanted if wanted > RECORD_BYTES else 1

    def _read_received(self) -> None:
        if not (self.is_closed or self._is_paused) and self._tls.has_received_bytes:
            self._readable()

    def _resume_paused(self) -> None:
        super()._resume_paused()
        if not (self.is_closed or self._is_paused):
            self._server.loop.call_soon(self._read_received)

    # ---------------------------------------------------------------- out

    def _send_queued(self) -> None:
        """Encrypt and send the pieces in line until none is left, or raise `BlockingIOError`."""
        out = self._out
        while out:
            piece = self._next_piece()
            self._tls.send(piece, MORE if len(out) > 1 else 0)
            self.last_active = self._server.loop.time()
            out.popleft()

    def _next_piece(self) -> memoryview:
        """The first piece in line, as a view: nothing is joined to it any more, so it can be repeated."""
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
