"""The control socket of a running broker: a Unix socket in the data folder, for who owns that folder.

A client that connects gets a snapshot of the data folder in two steps, each answered by a line of JSON. The
connect prepares it, and the line `complete` from the client sets its moment. The snapshot exists as long as
the connection: a client that crashes leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from headrace.storage.folder import FolderSnapshot

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.broker.broker import Broker

log = logging.getLogger(__name__)

SOCKET: Final = "control"
COMPLETE: Final = b"complete\n"
MAX_PATH_BYTES: Final = 100
"""Longer paths do not fit into the address of a Unix socket."""
RETRY_SECONDS: Final = 0.002


class ControlServer:
    """Serves the control socket."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._path = broker.config.data / SOCKET
        self._listener: socket.socket | None = None
        self._server: asyncio.AbstractServer | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen; a socket that a crash has left is replaced."""
        self._path.unlink(missing_ok=True)
        self._listener = listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with socket_address(self._path) as address:
            listener.bind(address)
        self._path.chmod(0o600)
        self._server = await asyncio.start_unix_server(self._accept, sock=listener)

    async def close(self) -> None:
        """Listen no more, and delete the snapshots that are in use."""
        if self._server is not None:
            self._server.close()
        if self._listener is not None:
            self._listener.close()
            self._path.unlink(missing_ok=True)
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = self._broker.loop.create_task(self._serve(reader, writer))
        self._clients.add(client)
        client.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        snapshot = FolderSnapshot(self._broker.folder)
        try:
            await self._broker.in_background(snapshot.prepare)
            writer.write(json.dumps({"snapshot": snapshot.path.name}).encode() + b"\n")
            if await reader.readline() != COMPLETE:
                return
            while not snapshot.try_complete():
                await asyncio.sleep(RETRY_SECONDS)
            writer.write(b'{"complete": true}\n')
            await reader.read()
        except OSError as fault:
            log.warning("a snapshot of the data folder could not be made: %s", fault)
            writer.write(json.dumps({"error": str(fault)}).encode() + b"\n")
        finally:
            writer.close()
            await self._broker.in_background(snapshot.delete)


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """A block in which this text is the address of the Unix socket at `path`, however long that is."""
    if len(os.fsencode(path)) <= MAX_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
