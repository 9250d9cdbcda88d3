"""A real HTTP server that receives events, and behaves as a test says: well, or badly."""

import json
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self

Behavior = int | tuple[int, Mapping[str, str]] | Literal["hang", "cut"]
"""A response, optionally with headers; or no response; or a closed connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    headers: Mapping[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        event = json.loads(self.body)
        assert isinstance(event, dict)
        return event

    @property
    def row(self) -> dict[str, Any]:
        row = self.event["data"]
        assert isinstance(row, dict)
        return row


class Receiver:
    """Receives on a free port; `behave` says what a request gets."""

    def __init__(self, behave: Callable[[Request], Behavior] = lambda request: 204) -> None:
        self.behave = behave
        self.requests: list[Request] = []
        self.reason = "it is said why"
        """The text of answers that do not accept a request."""
        self._closing = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(poll_interval=0.01))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/events"

    @property
    def ids(self) -> list[str]:
        return [request.headers["Idempotency-Key"] for request in self.requests]

    def rows(self, column: str) -> list[Any]:
        return sorted(request.row[column] for request in self.requests)

    def answer(self, request: Request, connection: socket.socket) -> tuple[int, Mapping[str, str]] | None:
        """The answer to a request, or None when there is none."""
        self.requests.append(request)
        behavior = self.behave(request)
        if behavior == "hang":
            self._closing.wait()
        if behavior in ("hang", "cut"):
            connection.shutdown(socket.SHUT_RDWR)
            return None
        assert not isinstance(behavior, str)
        return behavior if isinstance(behavior, tuple) else (behavior, {})

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that are cut are part of the tests."""


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = receiver.answer(Request(headers=dict(self.headers), body=body), self.connection)
            if answer is None:
                self.close_connection = True
                return
            status, headers = answer
            said = b"" if status < 300 else receiver.reason.encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(said)), **headers}.items():
                if status != 204 or name != "Content-Length":
                    self.send_header(name, value)
            self.end_headers()
            self.wfile.write(said)

        def log_request(self, code: Any = "-", size: Any = "-") -> None:
            """Say nothing."""

    return Handler
