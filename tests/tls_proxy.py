"""TLS before a server that is built without it, as with a TLS terminator in front of a database."""

import asyncio
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import psycopg
import trustme

from headrace.testing.postgres import PostgresServer

SSL_REQUEST = struct.pack(">ii", 8, 80877103)
"""With it a client of PostgreSQL asks for TLS, before the handshake."""


class TlsProxy:
    """Passes what arrives by TLS on a port of localhost to a server, and its answers back.

    `ca` is the file of the authority to trust, and `other_ca` that of another one.
    """

    def __init__(self, host: str, port: int, folder: Path, *, postgres: bool = False) -> None:
        self._target = (host, port)
        self._postgres = postgres
        self.ca, self.other_ca = folder / "ca.pem", folder / "other-ca.pem"
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.ca))
        trustme.CA().cert_pem.write_to_path(str(self.other_ca))
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(self._context)
        self.connections = 0
        """How many connections have completed a handshake."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _close(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._postgres:
                assert await reader.readexactly(len(SSL_REQUEST)) == SSL_REQUEST
                writer.write(b"S")
                await writer.drain()
            await writer.start_tls(self._context)
            self.connections += 1
            server_reader, server_writer = await asyncio.open_connection(*self._target)
            await asyncio.gather(_pass(reader, server_writer), _pass(server_reader, writer))
        except (OSError, AssertionError, asyncio.IncompleteReadError):
            pass  # the client did not like the certificate, or did not use TLS
        finally:
            writer.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


@contextmanager
def secured_postgres(role: str, password: str, *rights: str) -> Iterator[TlsProxy]:
    """A proxy in front of a PostgreSQL with the database `shop` of a role that authenticates by SCRAM."""
    with TemporaryDirectory(prefix="headrace-") as folder, PostgresServer(Path(folder), tcp=True) as server:
        with psycopg.connect(server.url(), autocommit=True) as connection:
            options = " ".join(("LOGIN", *rights))
            connection.execute(f"CREATE ROLE {role} {options} PASSWORD '{password}'")
            connection.execute(f"CREATE DATABASE shop OWNER {role}")
        port = urlsplit(server.url()).port or 0
        with TlsProxy("127.0.0.1", port, Path(folder), postgres=True) as proxy:
            yield proxy
