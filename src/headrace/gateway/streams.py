"""Change feeds and topics as server-sent events, which the `EventSource` of browsers reads, and WebSockets.

Every event has a token as its id. A client that reconnects sends the last one as `Last-Event-ID` (browsers do
it automatically) and continues after it. If that is no longer possible, the status is 410, and browsers stop
reconnecting: the page then opens a new stream. An event `skipped` holds the number of unreadable records so
far, and an event `end` the reason why a stream ends. A WebSocket gets the same events as JSON texts,
`{"event": …, "id": …, "data": …}`.

Each stream has a thread of its own that waits for the broker, so that a slow client delays no other. A client
that does not read is disconnected.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import HeadraceError
from headrace.feeds.feed import Change, ChangeFeed
from headrace.gateway.errors import HttpError, http_error
from headrace.gateway.http_protocol import ABORT
from headrace.gateway.topic_reader import TopicReader, TopicRecord, parse_start

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence

    from headrace.gateway.options import GatewayOptions

HEARTBEAT_S: Final = 15.0
"""The interval of comments while there are no events; they reveal dead connections."""
CHUNK_BYTES: Final = 64 << 10
HEARTBEAT: Final = b":\n\n"
"""A comment, which clients ignore."""
STREAM_HEADERS: Final = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
    (b"connection", b"close"),
)
TURN_EVENTS: Final = 100
TRY_AGAIN_LATER: Final = 1013
"""The close code of a WebSocket whose stream ended with an error."""


class StreamEvent(NamedTuple):
    """One event: its name, its token, and its content as JSON in one line."""

    name: str
    id: str
    data: str

    def to_sse(self) -> bytes:
        """The event as a server-sent event."""
        token = f"id: {self.id}\n" if self.id else ""
        return f"event: {self.name}\n{token}data: {self.data}\n\n".encode()

    def to_json(self) -> str:
        """The event as a JSON text."""
        token = f'"id":"{self.id}",' if self.id else ""
        return f'{{"event":"{self.name}",{token}"data":{self.data}}}'


EventSource = Change | TopicRecord | StreamEvent


def to_event(item: EventSource) -> StreamEvent:
    """The event of a change or of a record."""
    if isinstance(item, StreamEvent):
        return item
    name = item.kind if isinstance(item, Change) else "record"
    return StreamEvent(name, item.token, item.to_json())


def skipped_event(count: int) -> StreamEvent:
    """The event with the number of unreadable records so far."""
    return StreamEvent("skipped", "", json.dumps({"records": count}))


def end_event(fault: HeadraceError) -> StreamEvent:
    """The event with the reason why a stream ends."""
    return StreamEvent("end", "", json.dumps({"error": str(fault)}))


class EventStreams:
    """The streams of one gateway."""

    def __init__(self, options: GatewayOptions) -> None:
        self._options = options
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def clients(self) -> int:
        """The number of open streams."""
        return len(self._tasks)

    def changes(self, bootstrap: str, view: str, since: str | None) -> EventStream:
        """The rows of a view, then its changes."""
        return EventStream(self, self._options, lambda: _change_events(bootstrap, view, since))

    def records(self, bootstrap: str, topic: str, query: Mapping[str, str], after: str | None) -> EventStream:
        """The records of a topic from a position on."""
        start = parse_start(query, after)
        return EventStream(self, self._options, lambda: _record_events(TopicReader(bootstrap, topic, start)))

    @contextlib.contextmanager
    def admit(self) -> Any:
        """Count the current task as a stream; raises an error with 503 beyond the limit."""
        task = asyncio.current_task()
        assert task is not None
        if len(self._tasks) >= self._options.max_streams:
            raise HttpError(HTTPStatus.SERVICE_UNAVAILABLE, "too many streams: try again later")
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)

    async def close(self) -> None:
        """End all streams."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class EventStream:
    """One stream of events. As an ASGI application it responds with server-sent events."""

    def __init__(
        self, streams: EventStreams, options: GatewayOptions, open_: Callable[[], AsyncGenerator[Any]]
    ) -> None:
        self._streams = streams
        self._timeout_s = options.send_timeout_s
        self._open = open_

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send events until client or stream ends it; the head is sent with the first batch."""
        with self._streams.admit(), contextlib.suppress(ConnectionError):
            client = _SseClient(scope, send, self._timeout_s)
            gone = asyncio.ensure_future(_until_disconnected(receive))
            try:
                await self._send_all(client, gone)
            finally:
                gone.cancel()
                await asyncio.gather(gone, return_exceptions=True)

    async def serve_socket(self, socket: Any) -> None:
        """Send events as texts until client or stream ends it."""
        with self._streams.admit(), contextlib.suppress(ConnectionError):
            client = _SocketClient(socket, self._timeout_s)
            await self._send_all(client, client.gone)

    async def _send_all(self, client: _SseClient | _SocketClient, gone: asyncio.Future[Any]) -> None:
        try:
            async with contextlib.aclosing(_with_heartbeats(self._open())) as batches:
                async for batch in batches:
                    if gone.done():
                        return
                    await client.open()
                    await client.send(batch)
        except HeadraceError as fault:
            error = http_error(fault)
            if not client.is_open and error.status is not HTTPStatus.BAD_GATEWAY:
                raise error from fault
            # Browsers do not reconnect after an error status. An error that may pass, or occurs within the
            # stream, ends the stream instead: the client reconnects with its last token.
            await client.open()
            await client.send([end_event(fault)])
        await client.close()


class _SseClient:
    """The response with server-sent events."""

    def __init__(self, scope: Any, send: Any, timeout_s: float) -> None:
        self._abort = scope.get(ABORT)
        self._send = send
        self._timeout_s = timeout_s
        self.is_open = False

    async def open(self) -> None:
        if not self.is_open:
            self.is_open = True
            await self._write({"type": "http.response.start", "status": 200, "headers": list(STREAM_HEADERS)})
            await self._write_body(b"retry: 2000\n\n")

    async def send(self, batch: Sequence[EventSource] | None) -> None:
        if batch is None:
            await self._write_body(HEARTBEAT)
            return
        for chunk in _chunks(to_event(item).to_sse() for item in batch):
            await self._write_body(chunk)
            await asyncio.sleep(0)  # a view has many rows: other requests have their turn

    async def close(self) -> None:
        await self._write({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write_body(self, body: bytes) -> None:
        await self._write({"type": "http.response.body", "body": body, "more_body": True})

    async def _write(self, message: Any) -> None:
        await _within(self._send(message), self._timeout_s, self._abort)


class _SocketClient:
    """A WebSocket."""

    def __init__(self, socket: Any, timeout_s: float) -> None:
        self._socket = socket
        self._abort = socket.scope.get(ABORT)
        self._timeout_s = timeout_s
        self.is_open = False
        self.gone: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._listener: asyncio.Task[Any] | None = None

    async def open(self) -> None:
        if not self.is_open:
            self.is_open = True
            await self._socket.accept()
            self._listener = asyncio.ensure_future(_until_disconnected(self._socket.receive))
            self._listener.add_done_callback(self._on_gone)

    async def send(self, batch: Sequence[EventSource] | None) -> None:
        for number, item in enumerate(batch or (), 1):
            message = {"type": "websocket.send", "text": to_event(item).to_json()}
            await _within(self._socket.send(message), self._timeout_s, self._abort)
            if number % TURN_EVENTS == 0:
                await asyncio.sleep(0)

    def _on_gone(self, _: Any) -> None:
        if not self.gone.done():
            self.gone.set_result(None)

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
        with contextlib.suppress(RuntimeError):  # it is closed already
            await self._socket.close(TRY_AGAIN_LATER)


async def _within(sending: Any, timeout_s: float, abort: Callable[[], None] | None) -> None:
    """Send, or disconnect a client that does not read."""
    try:
        async with asyncio.timeout(timeout_s):
            await sending
    except TimeoutError:
        if abort is not None:
            abort()
        raise ConnectionAbortedError("the client does not read") from None
    except HeadraceError:
        raise
    except Exception as fault:  # each server has its own error for a disconnected client
        raise ConnectionResetError(str(fault)) from fault


async def _until_disconnected(receive: Any) -> None:
    while (await receive())["type"] not in ("http.disconnect", "websocket.disconnect"):
        pass


async def _with_heartbeats(batches: AsyncGenerator[Any]) -> AsyncGenerator[Any]:
    """The batches, and None when a heartbeat is due."""
    loop = asyncio.get_running_loop()
    sent_at = loop.time()
    async with contextlib.aclosing(batches):
        async for batch in batches:
            is_due = loop.time() - sent_at > HEARTBEAT_S
            yield None if is_due and not batch else batch
            sent_at = loop.time() if batch or is_due else sent_at


async def _change_events(
    bootstrap: str, view: str, since: str | None
) -> AsyncGenerator[Sequence[EventSource]]:
    feed = ChangeFeed(view, bootstrap, since=since)
    skipped = 0
    async with contextlib.aclosing(feed.async_batches()) as batches:
        async for batch in batches:
            yield [*batch, skipped_event(feed.skipped)] if feed.skipped > skipped else batch
            skipped = feed.skipped


async def _record_events(reader: TopicReader) -> AsyncGenerator[Sequence[EventSource]]:
    skipped = 0
    async with contextlib.aclosing(reader.async_batches()) as batches:
        async for batch in batches:
            yield [*batch, skipped_event(reader.skipped)] if reader.skipped > skipped else batch
            skipped = reader.skipped


def _chunks(events: Iterable[bytes]) -> Any:
    """The events in chunks."""
    piece, size = list[bytes](), 0
    for event in events:
        piece.append(event)
        size += len(event)
        if size >= CHUNK_BYTES:
            yield b"".join(piece)
            piece, size = [], 0
    if piece:
        yield b"".join(piece)
