"""Uvicorn's HTTP protocol with limits on what a client sends, and on how long it takes.

Uvicorn bounds neither the size of a request head nor the time until a request is complete. Here a head may
have 64 KiB and 100 fields, and head and body have time limits. A client that exceeds them gets 408, 414 or
431, and is disconnected. `scope["headrace.abort"]` disconnects a client without waiting until it has read
what was sent.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    import asyncio

    from headrace.gateway.options import GatewayOptions

MAX_HEAD_BYTES: Final = 64 << 10
MAX_URL_BYTES: Final = 8_000
MAX_HEADERS: Final = 100
LINGER_S: Final = 1.0
ABORT: Final = "headrace.abort"


class _Refused(Exception):
    """Ends the parser: the response was sent."""


def limited_protocol(options: GatewayOptions) -> type[HttpToolsProtocol]:
    """The protocol class with the time limits of these options."""
    return type(
        "LimitedProtocol",
        (_LimitedProtocol,),
        {"head_timeout_s": options.head_timeout_s, "body_timeout_s": options.body_timeout_s},
    )


class _LimitedProtocol(HttpToolsProtocol):
    head_timeout_s: float
    body_timeout_s: float

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._is_reading_head = True
        self._is_complete = True
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        self._start_timer(self.head_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._has_ended():
            return
        if self._is_reading_head:
            self._head_bytes += len(data)
        was_reading_head = self._is_reading_head
        super().data_received(data)
        if self._has_ended():
            return
        if self._is_reading_head and self._head_bytes > MAX_HEAD_BYTES:
            self.refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request head is too large")
        elif self._is_complete:
            self._stop_timer()
        elif self._timer is None or was_reading_head != self._is_reading_head:
            # Only a request that did not arrive as a whole needs a timer.
            self._start_timer(self.head_timeout_s if self._is_reading_head else self.body_timeout_s)

    def _has_ended(self) -> bool:
        return self._is_refused or self.transport.is_closing()

    def on_message_begin(self) -> None:
        self._is_complete = False
        self._is_reading_head = True
        super().on_message_begin()
        self.scope[ABORT] = self.transport.abort  # type: ignore[typeddict-unknown-key]  # our own

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_URL_BYTES:
            self._refuse_and_stop(HTTPStatus.REQUEST_URI_TOO_LONG, "the URL is too long")

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            self._refuse_and_stop(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too many headers")

    def on_headers_complete(self) -> None:
        self._is_reading_head = False
        self._head_bytes = 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_complete = True
        self._is_reading_head = True
        super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        self._stop_timer()
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP."""
        if not self._is_refused:
            self.refuse(HTTPStatus.BAD_REQUEST, msg)

    def refuse(self, status: HTTPStatus, message: str) -> None:
        """Send an error, and disconnect."""
        self._is_refused = True
        self._stop_timer()
        body = json.dumps({"error": message}).encode() + b"\n"
        cycle: Any = self.cycle  # None before the first request
        if cycle is None or cycle.response_complete or not cycle.response_started:
            self.transport.write(
                f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode()
                + body
            )
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self._linger()

    def _linger(self) -> None:
        """Close when the client has closed, or after a second.

        A socket that is closed while data arrives is reset, and the client may lose the response.
        """
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._timer = self.loop.call_later(LINGER_S, self.transport.abort)
        else:
            self.transport.close()

    def _refuse_and_stop(self, status: HTTPStatus, message: str) -> None:
        if not self._is_refused:
            self.refuse(status, message)
        raise _Refused

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(seconds, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_timeout(self) -> None:
        if not self.transport.is_closing():
            self.refuse(HTTPStatus.REQUEST_TIMEOUT, "the request did not arrive in time")


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """Uvicorn's WebSocket protocol; its scope can abort the connection too."""

    def handle_connect(self, event: Any) -> None:
        """Serve a handshake."""
        super().handle_connect(event)
        if not self.close_sent:  # the task of the application has not begun
            self.scope[ABORT] = self.transport.abort  # type: ignore[typeddict-unknown-key]  # our own
