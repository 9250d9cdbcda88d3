"""Change feeds over HTTP as server-sent events, which the `EventSource` of browsers reads.

    GET /                    the views, as JSON
    GET /changes/revenue     the rows of the view, then its changes, until the client disconnects

Every event has the token of its change as `id`. A client that reconnects sends the last one as
`Last-Event-ID` (browsers do it automatically) and continues after it; `?since=` does the same. If that is no
longer possible, the status is 410, and browsers stop reconnecting: the page then opens a new feed. An event
`skipped` holds the number of unreadable records so far.

Only `GET` is served. Request heads are bounded in size and time, and a client that does not read is
disconnected. Every client has its own feed, so that a slow one delays no other.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import re
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from headrace.client.cluster import Cluster
from headrace.errors import HeadraceError
from headrace.feeds.catalog import read_views
from headrace.feeds.errors import InvalidToken, TokenExpired, UnknownView
from headrace.feeds.feed import ChangeFeed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
    from typing import Any

    from headrace.feeds.feed import Change

LINE: Final = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.[01]")
FIELD: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
MAX_LINE_BYTES: Final = 8_000
MAX_HEADERS: Final = 100
LOCAL_HOSTS: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})


class HttpError(HeadraceError):
    """An error with an HTTP status."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The path, query and headers of a request."""

    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    """Keys are in lower case."""

    def check_host(self, *, any_host: bool) -> None:
        """Raise an error for a request to another host than this machine."""
        host = self.headers.get("host", "localhost").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if not any_host and name not in LOCAL_HOSTS:
            raise HttpError(HTTPStatus.MISDIRECTED_REQUEST, "this server accepts only requests for localhost")


async def read_head(reader: asyncio.StreamReader, *, within_s: float) -> Request:
    """The request of a client, or `HttpError`; raises `TimeoutError` if it does not arrive in time."""
    try:
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), within_s)
    except asyncio.LimitOverrunError:
        raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request head is too large") from None
    except asyncio.IncompleteReadError:
        raise ConnectionError("the client disconnected before the end of its request") from None
    return parse_head(head)


def parse_head(head: bytes) -> Request:
    """Parse a request head.

    >>> parse_head(b"GET /changes/a%20b?since=x HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n").path
    '/changes/a b'
    """
    first, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    line = LINE.fullmatch(first)
    if line is None or len(first) > MAX_LINE_BYTES:
        raise HttpError(HTTPStatus.BAD_REQUEST, "not an HTTP request")
    if line[1] != b"GET":
        raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, "only GET is supported")
    headers = _headers(lines)
    if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
        raise HttpError(HTTPStatus.BAD_REQUEST, "requests with a body are not supported")
    try:
        target = urlsplit(line[2].decode())
        query = dict(parse_qsl(target.query, max_num_fields=20))
    except ValueError:
        raise HttpError(HTTPStatus.BAD_REQUEST, "the URL is invalid") from None
    return Request(path=unquote(target.path), query=query, headers=headers)


def _headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    if len(lines) > MAX_HEADERS:
        raise HttpError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too many headers")
    for line in lines:
        found = FIELD.fullmatch(line)
        if found is None:
            raise HttpError(HTTPStatus.BAD_REQUEST, "a header is invalid")
        headers[found[1].decode().lower()] = found[2].decode("latin-1")
    return headers


HEARTBEAT_S: Final = 15.0
"""The interval of comments while there are no changes; they reveal dead connections."""
CHUNK_BYTES: Final = 64 << 10
STREAM_HEAD: Final = (
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-store\r\n"
    "X-Accel-Buffering: no\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n"
)
HEARTBEAT: Final = ":\n\n"
"""A comment, which clients ignore."""


async def batches_of(feed: ChangeFeed) -> AsyncGenerator[list[Change] | None]:
    """The batches of a feed, and None when a heartbeat is due; errors become `HttpError`."""
    loop = asyncio.get_running_loop()
    said_at = loop.time() - HEARTBEAT_S
    try:
        async with contextlib.aclosing(feed.async_batches()) as batches:
            async for batch in batches:
                quiet = loop.time() - said_at > HEARTBEAT_S
                yield None if quiet and not batch else batch
                said_at = loop.time() if batch or quiet else said_at
    except HeadraceError as fault:
        raise HttpError(_status_of(fault), str(fault)) from fault


def _status_of(fault: HeadraceError) -> HTTPStatus:
    match fault:
        case UnknownView():
            return HTTPStatus.NOT_FOUND
        case InvalidToken():
            return HTTPStatus.BAD_REQUEST
        case TokenExpired():
            return HTTPStatus.GONE
    return HTTPStatus.BAD_GATEWAY


def event_chunks(batch: Iterable[Change]) -> Iterator[bytes]:
    """The server-sent events of some changes, in chunks."""
    piece, size = list[bytes](), 0
    for change in batch:
        piece.append(encode_event(change))
        size += len(piece[-1])
        if size >= CHUNK_BYTES:
            yield b"".join(piece)
            piece, size = [], 0
    yield b"".join(piece)


def encode_event(change: Change) -> bytes:
    """A change as a server-sent event: its kind, its token as the id, key and row as JSON."""
    return f"event: {change.kind}\nid: {change.token}\ndata: {change.to_json()}\n\n".encode()


def skipped_event(count: int) -> str:
    """The event with the number of unreadable records so far."""
    return f"event: skipped\ndata: {json.dumps({'records': count})}\n\n"


def end_event(fault: HeadraceError) -> str:
    """The event with the reason why a stream ends."""
    return f"event: end\ndata: {json.dumps({'error': str(fault)})}\n\n"


def json_response(status: HTTPStatus, content: Any) -> bytes:
    """A complete response with a JSON body."""
    body = json.dumps(content, ensure_ascii=False).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


MAX_CLIENTS: Final = 200
"""Each has a thread that waits for the broker."""
HEAD_TIMEOUT_S: Final = 10.0
SEND_TIMEOUT_S: Final = 30.0
CLOSE_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """The options of a `ChangeServer`."""

    broker: str
    view: str | None = None
    """The only view that is served; None for all."""
    origins: tuple[str, ...] = ()
    """Origins whose web pages may read the feeds (CORS); `*` allows all."""
    any_host: bool = False
    """Whether the Host header may be any name. On a loopback address only local names are accepted, so that
    no web page can read the views by DNS rebinding."""
    max_clients: int = MAX_CLIENTS
    head_timeout_s: float = HEAD_TIMEOUT_S
    """How long a client may take to send its request."""
    send_timeout_s: float = SEND_TIMEOUT_S
    """How long a client may not read before it is disconnected."""


@dataclass(slots=True)
class ChangeServer:
    """An HTTP server of change feeds."""

    options: ServerOptions
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """Start to listen; returns the port, which the system chooses if `port` is 0."""
        # The limit bounds the buffer for a request head and for what follows it.
        self._server = await asyncio.start_server(self._accept, host, port, limit=CHUNK_BYTES)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, and disconnect all clients."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def clients(self) -> int:
        """The number of connected clients."""
        return len(self._tasks)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        except HeadraceError as fault:
            status = fault.status if isinstance(fault, HttpError) else HTTPStatus.BAD_GATEWAY
            with contextlib.suppress(OSError, TimeoutError):
                await self._send(writer, json_response(status, {"error": str(fault)}))
        except (OSError, TimeoutError):
            pass  # the client has disconnected, or does not read
        finally:
            await _disconnect(writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await read_head(reader, within_s=self.options.head_timeout_s)
        request.check_host(any_host=self.options.any_host)
        if len(self._tasks) > self.options.max_clients:
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, "too many clients: try again later")
        await self._respond(request, reader, writer)

    async def _respond(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if request.path == "/":
            await self._send(writer, json_response(HTTPStatus.OK, await self._views()))
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
            raise HttpError(HTTPStatus.NOT_FOUND, "unknown path: use / or /changes/VIEW")
        if self.options.view not in (None, view):
            raise HttpError(HTTPStatus.NOT_FOUND, f"only the view {self.options.view!r} is served")
        since = request.headers.get("last-event-id") or request.query.get("since")
        return ChangeFeed(view, self.options.broker, since=since or None)

    async def _stream(
        self, request: Request, feed: ChangeFeed, writer: asyncio.StreamWriter, gone: asyncio.Task[bytes]
    ) -> None:
        """Send the feed until client or feed ends it; the head is sent with the first batch."""
        head = STREAM_HEAD + self._cors_header(request) + "\r\nretry: 2000\n\n"
        skipped = 0
        try:
            async with contextlib.aclosing(batches_of(feed)) as batches:
                async for batch in batches:
                    if gone.done():
                        return
                    silence = HEARTBEAT if batch is None and not head else ""
                    await self._send(writer, (head + silence).encode())
                    head = ""
                    for piece in event_chunks(batch or ()):
                        await self._send(writer, piece)
                    if feed.skipped > skipped:
                        skipped = feed.skipped
                        await self._send(writer, skipped_event(skipped).encode())
        except HttpError as fault:
            if head and fault.status is not HTTPStatus.BAD_GATEWAY:
                raise
            # Browsers do not reconnect after an error status. An error that may pass, or occurs within the
            # stream, ends the stream instead: the client reconnects with its last token.
            await self._send(writer, (head + end_event(fault)).encode())

    def _cors_header(self, request: Request) -> str:
        """The CORS header that lets pages of other origins read the response."""
        origin = request.headers.get("origin", "")
        if "*" in self.options.origins:
            return "Access-Control-Allow-Origin: *\r\n"
        allowed = origin in self.options.origins
        return f"Access-Control-Allow-Origin: {origin}\r\nVary: Origin\r\n" if allowed else ""

    async def _views(self) -> dict[str, Any]:
        views = await asyncio.to_thread(_read_views, self.options.broker)
        return {
            "views": [
                {
                    "view": view.name,
                    "key": view.key,
                    "columns": view.columns,
                    "changes": f"/changes/{view.name}",
                }
                for view in views
                if self.options.view in (None, view.name)
            ]
        }

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if data:
            writer.write(data)
            await asyncio.wait_for(writer.drain(), self.options.send_timeout_s)


def is_loopback(host: str) -> bool:
    """Whether the address is reachable only from this machine.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


async def _disconnect(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await asyncio.wait_for(writer.wait_closed(), CLOSE_TIMEOUT_S)
    except (OSError, TimeoutError):
        writer.transport.abort()


def _read_views(broker: str) -> list[Any]:
    with Cluster.of(broker, client_id="headrace-changes") as cluster:
        cluster.any()  # an unreachable broker is an error at once
        return list(read_views(cluster).values())
