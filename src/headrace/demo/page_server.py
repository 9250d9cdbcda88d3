"""The page of the demo, on this machine only: its files, the change feeds of its views, and what is live.

GET /                    the page; /page.css and /page.js belong to it
GET /changes/revenue     a change feed, as `headrace changes --http` serves it
GET /live                the state of the whole, twice a second, as server-sent events
"""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Self

from headrace.feeds.events import STREAM_HEAD
from headrace.feeds.server import ChangeServer, Offer

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.feeds.request import Request

HOST: Final = "127.0.0.1"
EVERY_S: Final = 0.5
FILES: Final = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
POLICY: Final = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"


@dataclass(slots=True)
class PageServer(ChangeServer):
    """Change feeds, the page, and its state, which `live` tells whenever it is asked."""

    live: Callable[[], Any] = dict

    async def _respond(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if request.path in FILES:
            await self._send(writer, _file(*FILES[request.path]))
        elif request.path == "/live":
            await self._tell(writer)
        else:
            await ChangeServer._respond(self, request, reader, writer)

    async def _tell(self, writer: asyncio.StreamWriter) -> None:
        """Send the state again and again; a client that has gone ends it with an error of the socket."""
        await self._send(writer, (STREAM_HEAD + "\r\nretry: 1000\n\n").encode())
        while True:
            await self._send(writer, f"data: {json.dumps(self.live())}\n\n".encode())
            await asyncio.sleep(EVERY_S)


class Page:
    """The server in a thread of its own, from `__enter__` to `__exit__`."""

    def __init__(self, broker: str, live: Callable[[], Any], port: int = 0) -> None:
        self.url = ""
        self._server = PageServer(Offer(broker=broker), live=live)
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="page", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        port = self._do(self._server.start(HOST, self._port))
        self.url = f"http://{HOST}:{port}/"
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def _file(name: str, kind: str) -> bytes:
    body = files("headrace.demo").joinpath("page", name).read_bytes()
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: {kind}; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
        f"Content-Security-Policy: {POLICY}\r\nX-Content-Type-Options: nosniff\r\nCache-Control: no-store\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body
