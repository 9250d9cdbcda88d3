"""Change feeds over HTTP, as server-sent events: what a browser's `EventSource` reads.

    GET /                    the views, as JSON
    GET /changes/revenue     the rows of the view, and then its changes, for as long as the client stays

Every event has the token of its change as `id`. A client that was cut off sends the last one back as
`Last-Event-ID` (browsers do so by themselves) and goes on right after it; `?since=` does the same. Where that
is no longer possible the answer is 410, on which browsers stop trying: the page then opens a feed anew.
An event `skipped` tells how many records of the view could not be read so far.

Only `GET` is served, heads are bounded in size and time, and a client that does not take what it asked for is
hung up on. Every client has its own feed, so that a slow one is a matter between it and its feed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from headrace.client.cluster import Cluster
from headrace.errors import HeadraceError
from headrace.feeds.catalogue import read_views
from headrace.feeds.events import (
    PIECE_BYTES,
    SILENCE,
    STREAM_HEAD,
    batches_of,
    document,
    last_event,
    pieces_of,
    skipped_event,
)
from headrace.feeds.feed import ChangeFeed
from headrace.feeds.request import Refused, Request, read_head

if TYPE_CHECKING:
    from typing import Any

CLIENTS: Final = 200
"""Each has a thread that waits for the broker."""
HEAD_S: Final = 10.0
STUCK_S: Final = 30.0
LAST_WORDS_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What is served, and to whom."""

    broker: str
    view: str | None = None
    """The only one; all of them where none is named."""
    origins: tuple[str, ...] = ()
    """Web pages of these origins may read the feeds; `*` stands for all."""
    any_host: bool = False
    """Whether requests may name any host: on a loopback address only those for this machine are answered,
    so that no web page elsewhere gets at the views by giving its own name to this address."""
    clients: int = CLIENTS
    head_s: float = HEAD_S
    """How long a client may take to say what it wants."""
    stuck_s: float = STUCK_S
    """How long a client may take nothing before it is hung up on."""


@dataclass(slots=True)
class ChangeServer:
    """Serves feeds on one address, from `start` to `close`."""

    offer: Offer
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Listen; the port, which is the machine's choice where it is given as 0."""
        # The limit bounds what is kept of a head, and of what a client sends after it.
        self._server = await asyncio.start_server(self._accept, host, port, limit=PIECE_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Hang up on everybody."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def clients(self) -> int:
        """How many there are now."""
        return len(self._tasks)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        except HeadraceError as fault:
            status = fault.status if isinstance(fault, Refused) else HTTPStatus.BAD_GATEWAY
            with contextlib.suppress(OSError, TimeoutError):
                await self._send(writer, document(status, {"error": str(fault)}))
        except (OSError, TimeoutError):
            pass  # it has gone, or takes nothing: there is nobody to tell
        finally:
            await _hang_up(writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_head(reader, within_s=self.offer.head_s)
        request.check_host(any_host=self.offer.any_host)
        if len(self._tasks) > self.offer.clients:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many clients: try again later")
        await self._respond(request, reader, writer)

    async def _respond(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if request.path == "/":
            await self._send(writer, document(HTTPStatus.OK, await self._views()))
            return
        feed = self._feed(request)
        gone = asyncio.get_running_loop().create_task(reader.read(1))
        try:
            await self._stream(request, feed, writer, gone)
        finally:
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)

    def _feed(self, request: Request) -> ChangeFeed:
        folder, _, view = request.path.removeprefix("/").partition("/")
        if folder != "changes" or not view or "/" in view:
            raise Refused(HTTPStatus.NOT_FOUND, "there are / and /changes/VIEW")
        if self.offer.view not in (None, view):
            raise Refused(HTTPStatus.NOT_FOUND, f"only the view {self.offer.view!r} is served here")
        since = request.headers.get("last-event-id") or request.query.get("since")
        return ChangeFeed(view, self.offer.broker, since=since or None)

    async def _stream(
        self, request: Request, feed: ChangeFeed, writer: asyncio.StreamWriter, gone: asyncio.Task[bytes]
    ) -> None:
        """Send the feed until one of the two ends it; the first batch is there before the head is sent."""
        head = STREAM_HEAD + self._permission(request) + "\r\nretry: 2000\n\n"
        skipped = 0
        try:
            async with contextlib.aclosing(batches_of(feed)) as batches:
                async for batch in batches:
                    if gone.done():
                        return
                    silence = SILENCE if batch is None and not head else ""
                    await self._send(writer, (head + silence).encode())
                    head = ""
                    for piece in pieces_of(batch or ()):
                        await self._send(writer, piece)
                    if feed.skipped > skipped:
                        skipped = feed.skipped
                        await self._send(writer, skipped_event(skipped).encode())
        except Refused as fault:
            if head and fault.status is not HTTPStatus.BAD_GATEWAY:
                raise
            # A browser that gets an error's status gives up. What passes by itself ends the stream instead,
            # and so does a fault in the middle: the client asks again with its last token.
            await self._send(writer, (head + last_event(fault)).encode())

    def _permission(self, request: Request) -> str:
        """The header by which a browser lets pages of other origins read the answer."""
        origin = request.headers.get("origin", "")
        if "*" in self.offer.origins:
            return "Access-Control-Allow-Origin: *\r\n"
        allowed = origin in self.offer.origins
        return f"Access-Control-Allow-Origin: {origin}\r\nVary: Origin\r\n" if allowed else ""

    async def _views(self) -> dict[str, Any]:
        views = await asyncio.to_thread(_read_views, self.offer.broker)
        return {
            "views": [
                {
                    "view": view.name,
                    "key": view.key,
                    "columns": view.columns,
                    "changes": f"/changes/{view.name}",
                }
                for view in views
                if self.offer.view in (None, view.name)
            ]
        }

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if data:
            writer.write(data)
            await asyncio.wait_for(writer.drain(), self.offer.stuck_s)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await asyncio.wait_for(writer.wait_closed(), LAST_WORDS_S)
    except (OSError, TimeoutError):
        writer.transport.abort()


def _read_views(broker: str) -> list[Any]:
    with Cluster.of(broker, client_id="headrace-changes") as cluster:
        cluster.any()  # a broker that is away is told at once
        return list(read_views(cluster).values())
