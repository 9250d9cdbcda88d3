"""The ASGI application of the gateway: checks every request, and passes it to its endpoint.

`POST /topics/{topic}` takes a short way, without Starlette's routing: it is the endpoint for which the number
of requests per second counts. Everything else is a route of a Starlette application.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route, WebSocketRoute

from headrace.client.cluster import Cluster
from headrace.errors import HeadraceError
from headrace.feeds.catalog import read_views
from headrace.gateway.errors import HttpError, http_error, too_many
from headrace.gateway.idempotency import read_idempotency_key
from headrace.gateway.identity import Identities
from headrace.gateway.ingest import Arrival, IngestRequest, decode_records, decompress, media_type_of
from headrace.gateway.openapi import DOCS_PAGE, DOCS_POLICY, openapi_document
from headrace.gateway.otlp import ENDPOINTS, OtlpRequest
from headrace.gateway.producer import OutgoingRecord, RejectedRecord, StoredRecord
from headrace.gateway.streams import EventStreams
from headrace.gateway.views import DEFAULT_LIMIT, MAX_LIMIT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence

    from starlette.requests import Request

    from headrace.gateway.identity import Identity
    from headrace.gateway.options import GatewayOptions
    from headrace.gateway.producer import Result

    Scope = MutableMapping[str, Any]
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]

TOPICS: Final = "/topics/"
TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
RESERVED: Final = "headrace."
"""The prefix of topics that only Headrace itself writes."""
JSON: Final = (b"content-type", b"application/json")
NOSNIFF: Final = (b"x-content-type-options", b"nosniff")
NO_STORE: Final = (b"cache-control", b"no-store")
CLOSE: Final = (b"connection", b"close")
READING: Final = ("GET", "HEAD", "OPTIONS")
HEADERS: Final = (JSON, NOSNIFF, NO_STORE)

logger = logging.getLogger(__name__)


class ClientDisconnected(Exception):
    """The client closed the connection before the end of its request."""


class Gateway:
    """The application of one gateway, for one event loop."""

    def __init__(self, options: GatewayOptions, more_routes: Sequence[Any] = ()) -> None:
        self.options = options
        self.identities = Identities(options)
        self.streams = EventStreams(options)
        self._allowed_hosts = options.allowed_hosts
        self._in_flight_bytes = 0
        routes = [
            *more_routes,
            Route("/", self._index),
            Route("/views", self._views),
            Route("/views/{view}", self._view_rows),
            Route("/views/{view}/{key:path}", self._view_row),
            Route("/changes/{view}", self._changes),
            WebSocketRoute("/changes/{view}", self._changes_socket),
            Route("/topics/{topic}/records", self._records),
            WebSocketRoute("/topics/{topic}/records", self._records_socket),
            *(Route(path, self._otlp, methods=["POST"]) for path in ENDPOINTS),
            Route("/openapi.json", self._openapi),
            Route("/docs", self._docs),
            Route("/health", self._health),
        ]
        handlers = {HTTPException: _on_http_exception, HttpError: _on_error, HeadraceError: _on_error}
        self._application: Any = Starlette(routes=routes, exception_handlers=handlers)
        self._application.state.gateway = self
        self._entry: Any = self._dispatch
        if options.origins:
            self._entry = CORSMiddleware(
                self._dispatch,
                allow_origins=options.origins,
                allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID"],
                expose_headers=["Retry-After"],
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request or connection."""
        try:
            headers = dict(scope["headers"])
            self._check_source(scope, headers)
            if self.options.read_only and scope["type"] == "http" and scope["method"] not in READING:
                raise HttpError(HTTPStatus.FORBIDDEN, "this server is read-only")
            await self._entry(scope, receive, send)
        except ClientDisconnected:
            pass
        except HeadraceError as fault:
            await _send_error(scope, send, http_error(fault))

    async def identity(self, request: Any) -> Identity:
        """Who a request or a WebSocket acts as; raises an error with 401 if the broker refuses it."""
        authorization = request.headers.get("authorization")
        return await self.identities.of(None if authorization is None else authorization.encode("latin-1"))

    async def close(self) -> None:
        """End streams, wait for records in flight, and disconnect from the broker."""
        await self.streams.close()
        await self.identities.close()

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        is_ingest = path.startswith(TOPICS) and scope["type"] == "http" and "/" not in path[len(TOPICS) :]
        if not is_ingest:
            await self._application(scope, receive, send)
        elif scope["method"] == "POST":
            await self._ingest(scope, receive, send)
        elif scope["method"] == "OPTIONS":
            await _send(send, HTTPStatus.NO_CONTENT, b"", ((b"allow", b"POST, OPTIONS"),))
        else:
            raise HttpError(HTTPStatus.METHOD_NOT_ALLOWED, "use POST", ((b"allow", b"POST, OPTIONS"),))

    def _check_source(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Refuse requests that a web page of another site makes in the name of its visitor."""
        host = headers.get(b"host", b"localhost").decode("latin-1").lower()
        if self._allowed_hosts is not None:
            name = host if host.endswith("]") else host.rpartition(":")[0] or host
            if name not in self._allowed_hosts:
                raise HttpError(
                    HTTPStatus.MISDIRECTED_REQUEST, f"this gateway does not serve the host {name!r}"
                )
        origin = headers.get(b"origin")
        if origin is None or (scope["type"] == "http" and scope["method"] in ("GET", "HEAD", "OPTIONS")):
            return
        text = origin.decode("latin-1").lower()
        if text.partition("://")[2] != host and not {"*", text} & set(self.options.origins):
            raise HttpError(
                HTTPStatus.FORBIDDEN, f"pages of {text} may not use this gateway: allow them with --origin"
            )

    # ------------------------------------------------------------------------------------------------ ingest

    async def _ingest(self, scope: Scope, receive: Receive, send: Send) -> None:
        topic = check_topic(scope["path"][len(TOPICS) :])
        headers = dict(scope["headers"])
        identity = self.identities.anonymous or await self.identities.of(headers.get(b"authorization"))
        arrival = Arrival.at(time.time())
        size = self._reserve(headers)
        try:
            body = await self._read_body(headers, receive, size)
            request = IngestRequest(
                media_type_of(headers.get(b"content-type", b"")),
                headers, scope["query_string"], body, arrival,
            )  # fmt: skip
            decoded = decode_records(request)
            key = headers.get(b"idempotency-key")
            if key is not None:
                results: Sequence[Result] = await self._store_once(identity, topic, key, request, decoded)
            elif len(decoded) == 1 and isinstance(decoded[0], OutgoingRecord):
                results = await identity.producer.send(topic, decoded)  # type: ignore[arg-type]  # checked
            else:
                results = await _store(identity, topic, decoded)
        finally:
            self._in_flight_bytes -= size
        await _send_results(send, topic, results)

    async def _store_once(
        self, identity: Identity, topic: str, key: bytes, request: IngestRequest, decoded: Sequence[Any]
    ) -> list[StoredRecord]:
        """Store all records of a request or none of them."""
        for record in decoded:
            if isinstance(record, RejectedRecord):
                raise record.error()
        content = b"\0".join((request.media_type.encode(), request.query, request.body))
        return await identity.keyed.write(topic, read_idempotency_key(key), content, decoded)

    def _reserve(self, headers: dict[bytes, bytes]) -> int:
        """Count the bytes of a body as in flight, before it is read; returns how many."""
        limit = self.options.max_body_bytes
        length = headers.get(b"content-length")
        size = limit if length is None else int(length)
        if size > limit:
            raise HttpError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {limit} bytes", (CLOSE,)
            )
        if self._in_flight_bytes and self._in_flight_bytes + size > self.options.max_in_flight_bytes:
            raise too_many("too many bytes are in flight: repeat the request later")
        self._in_flight_bytes += size
        return size

    async def _read_body(self, headers: dict[bytes, bytes], receive: Receive, limit: int) -> bytes:
        message = await receive()
        body = message.get("body", b"")
        if message.get("more_body"):
            body = bytearray(body)
            while message.get("more_body") and len(body) <= limit:
                message = await receive()
                body += message.get("body", b"")
        if len(body) > limit:
            raise HttpError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {limit} bytes", (CLOSE,)
            )
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        encoding = headers.get(b"content-encoding")
        if encoding is not None:
            body = decompress(body, encoding.strip().lower(), self.options.max_body_bytes)
        return bytes(body)

    async def _otlp(self, request: Request) -> Response:
        headers = dict(request.scope["headers"])
        identity = await self.identities.of(headers.get(b"authorization"))
        size = self._reserve(headers)
        try:
            body = await self._read_body(headers, request.receive, size)
            otlp = OtlpRequest.decode(
                request.url.path, media_type_of(headers.get(b"content-type", b"")), body, time.time()
            )
            results = await _store(identity, otlp.topic, otlp.records)
        finally:
            self._in_flight_bytes -= size
        return otlp.respond(results)

    # ------------------------------------------------------------------------------------------------- reads

    async def _changes(self, request: Request) -> Any:
        identity = await self.identity(request)
        since = request.headers.get("last-event-id") or request.query_params.get("since")
        return self.streams.changes(identity.bootstrap, request.path_params["view"], since or None)

    async def _changes_socket(self, socket: Any) -> None:
        identity = await self.identity(socket)
        feed = self.streams.changes(
            identity.bootstrap, socket.path_params["view"], socket.query_params.get("since") or None
        )
        await feed.serve_socket(socket)

    async def _records(self, request: Request) -> Any:
        identity = await self.identity(request)
        topic = check_name(request.path_params["topic"])
        after = request.headers.get("last-event-id")
        return self.streams.records(identity.bootstrap, topic, request.query_params, after)

    async def _records_socket(self, socket: Any) -> None:
        identity = await self.identity(socket)
        topic = check_name(socket.path_params["topic"])
        stream = self.streams.records(identity.bootstrap, topic, socket.query_params, None)
        await stream.serve_socket(socket)

    async def _view_row(self, request: Request) -> Response:
        identity = await self.identity(request)
        view, key = request.path_params["view"], request.path_params["key"]
        row = await identity.views.row(asyncio.get_running_loop(), view, key)
        return _json_bytes(row)

    async def _view_rows(self, request: Request) -> Response:
        identity = await self.identity(request)
        where = dict(request.query_params)
        limit = _limit(where.pop("limit", str(DEFAULT_LIMIT)))
        found = await identity.views.rows(
            asyncio.get_running_loop(), request.path_params["view"], where, limit
        )
        complete = b"true" if found.is_complete else b"false"
        return _json_bytes(b'{"rows":[' + b",".join(found.rows) + b'],"complete":' + complete + b"}")

    async def _views(self, request: Request) -> Response:
        identity = await self.identity(request)
        views = await asyncio.to_thread(_list_views, identity.bootstrap)
        return JSONResponse({"views": views}, headers=_text_headers())

    # -------------------------------------------------------------------------------------------------- about

    async def _index(self, _: Request) -> Response:
        links = {"documentation": "/docs", "openapi": "/openapi.json", "views": "/views"}
        return JSONResponse(links, headers=_text_headers())

    async def _openapi(self, _: Request) -> Response:
        document = openapi_document(authentication=self.options.authentication)
        return JSONResponse(document, headers=_text_headers())

    async def _docs(self, _: Request) -> Response:
        return HTMLResponse(DOCS_PAGE, headers={**_text_headers(), "content-security-policy": DOCS_POLICY})

    async def _health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"}, headers=_text_headers())


def check_name(topic: str) -> str:
    """The name of a topic, if it can be one."""
    if not TOPIC_NAME.fullmatch(topic) or topic in (".", ".."):
        raise HttpError(HTTPStatus.BAD_REQUEST, f"{topic!r} is not the name of a topic")
    return topic


def check_topic(topic: str) -> str:
    """The name of a topic that may be written."""
    if check_name(topic).startswith(RESERVED):
        raise HttpError(HTTPStatus.FORBIDDEN, f"only Headrace itself writes to the topic {topic!r}")
    return topic


async def _store(identity: Identity, topic: str, decoded: Sequence[Any]) -> list[Result]:
    """Store the valid records; the results of all are in their order."""
    valid = [record for record in decoded if isinstance(record, OutgoingRecord)]
    stored = iter(await identity.producer.send(topic, valid))
    return [next(stored) if isinstance(record, OutgoingRecord) else record for record in decoded]


async def _send_results(send: Send, topic: str, results: Iterable[Result]) -> None:
    """Answer with the place of each record, or its error; 207 if only some records were stored."""
    entries, rejected, stored = [], None, 0
    for result in results:
        if isinstance(result, StoredRecord):
            stored += 1
            entries.append(f'{{"partition":{result.partition},"offset":{result.offset}}}')
        else:
            rejected = rejected or result
            entries.append(json.dumps({"status": result.status, "error": result.reason}))
    if rejected is not None and len(entries) == 1:
        raise rejected.error()
    status, headers = HTTPStatus.OK, ()
    if rejected is not None:
        fault = rejected.error()
        status = HTTPStatus.MULTI_STATUS if stored else fault.status
        headers = fault.headers  # type: ignore[assignment]  # the empty tuple above
    await _send(send, status, f'{{"topic":"{topic}","offsets":[{",".join(entries)}]}}\n'.encode(), headers)


async def _send(
    send: Send, status: HTTPStatus, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()
) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send(
        {"type": "http.response.start", "status": status.value, "headers": [*HEADERS, length, *headers]}
    )
    await send({"type": "http.response.body", "body": body})


async def _send_error(scope: Scope, send: Send, fault: HttpError) -> None:
    body = error_body(fault)
    if scope["type"] == "websocket":
        head = {"type": "websocket.http.response.start", "status": fault.status.value}
        await send({**head, "headers": [JSON, *fault.headers]})
        await send({"type": "websocket.http.response.body", "body": body})
        return
    await _send(send, fault.status, body, fault.headers)


def error_body(fault: HttpError) -> bytes:
    """The body of an error."""
    return json.dumps({"error": str(fault)}, ensure_ascii=False).encode() + b"\n"


def _on_error(_: Request, fault: Exception) -> Response:
    assert isinstance(fault, HeadraceError)
    error = http_error(fault)
    headers = {name.decode(): value.decode() for name, value in (*HEADERS, *error.headers)}
    return Response(error_body(error), status_code=error.status.value, headers=headers)


def _on_http_exception(request: Request, fault: Exception) -> Response:
    assert isinstance(fault, HTTPException)
    headers = tuple((name.encode(), value.encode()) for name, value in (fault.headers or {}).items())
    detail = f"unknown path {request.url.path}: see /docs" if fault.status_code == 404 else fault.detail
    return _on_error(request, HttpError(HTTPStatus(fault.status_code), detail, headers))


def _json_bytes(body: bytes) -> Response:
    return Response(body + b"\n", headers={**_text_headers(), "content-type": "application/json"})


def _text_headers() -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in (NOSNIFF, NO_STORE)}


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 0 < int(text) <= MAX_LIMIT:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"limit is a number from 1 to {MAX_LIMIT}")
    return int(text)


def _list_views(bootstrap: str) -> list[dict[str, Any]]:
    with Cluster.of(bootstrap, client_id="headrace-gateway") as cluster:
        return [
            {
                "view": view.name,
                "key": view.key,
                "columns": view.columns,
                "changes": f"/changes/{view.name}",
            }
            for view in read_views(cluster).values()
        ]
