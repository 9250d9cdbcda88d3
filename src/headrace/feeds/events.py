"""Changes as server-sent events, and whatever else is said over HTTP, as bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError
from headrace.feeds.errors import BadToken, TokenGone, UnknownView
from headrace.feeds.request import Refused

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Iterator

    from headrace.feeds.feed import Change, ChangeFeed

BEAT_S: Final = 15.0
"""After so long without a change a comment is sent: proxies stay, and a dead connection is noticed."""
PIECE_BYTES: Final = 64 << 10
STREAM_HEAD: Final = (
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-store\r\n"
    "X-Accel-Buffering: no\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n"
)
SILENCE: Final = ":\n\n"
"""A comment, which clients pass over."""


async def batches_of(feed: ChangeFeed) -> AsyncGenerator[list[Change] | None]:
    """The batches of a feed, and None for a silence; what goes wrong is told as HTTP does."""
    loop = asyncio.get_running_loop()
    said_at = loop.time() - BEAT_S
    try:
        async with contextlib.aclosing(feed.async_batches()) as batches:
            async for batch in batches:
                quiet = loop.time() - said_at > BEAT_S
                yield None if quiet and not batch else batch
                said_at = loop.time() if batch or quiet else said_at
    except HeadraceError as fault:
        raise Refused(_status_of(fault), str(fault)) from fault


def _status_of(fault: HeadraceError) -> HTTPStatus:
    match fault:
        case UnknownView():
            return HTTPStatus.NOT_FOUND
        case BadToken():
            return HTTPStatus.BAD_REQUEST
        case TokenGone():
            return HTTPStatus.GONE
    return HTTPStatus.BAD_GATEWAY


def pieces_of(batch: Iterable[Change]) -> Iterator[bytes]:
    """The events of some changes, in pieces that a client can take one after the other."""
    piece, size = list[bytes](), 0
    for change in batch:
        piece.append(event_of(change))
        size += len(piece[-1])
        if size >= PIECE_BYTES:
            yield b"".join(piece)
            piece, size = [], 0
    yield b"".join(piece)


def event_of(change: Change) -> bytes:
    """A change as an event: its kind, its token as the id, and the key and the row as JSON."""
    return f"event: {change.kind}\nid: {change.token}\ndata: {change.to_json()}\n\n".encode()


def skipped_event(count: int) -> str:
    """The event that says how many records could not be read so far."""
    return f"event: skipped\ndata: {json.dumps({'records': count})}\n\n"


def last_event(fault: HeadraceError) -> str:
    """The event that says why a stream ends."""
    return f"event: end\ndata: {json.dumps({'error': str(fault)})}\n\n"


def document(status: HTTPStatus, content: Any) -> bytes:
    """A whole answer in JSON."""
    body = json.dumps(content, ensure_ascii=False).encode() + b"\n"
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: application/json; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
