"""The routes of the console: its page, and a JSON API of resources and actions.

A resource is a function that returns a JSON document. `GET /api/topics` returns it once. With
`Accept: text/event-stream`, as the `EventSource` of browsers sends it, the same address is a stream: an event
`document` whenever the document has changed, and an event `problem` while it cannot be read. All clients of
one user share the requests to the broker.

An action is a `POST` with a JSON object. The console acts as the user of the request (`gateway/identity.py`),
so the ACLs of the broker decide what is seen and what is changed. The application of the gateway around these
routes checks Host and Origin, and refuses actions in the read-only mode.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, is_dataclass
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from importlib.resources import files
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response
from starlette.routing import Route

from headrace.cli.group import UnknownGroup
from headrace.cli.output import RequestFailed
from headrace.cli.queue_admin import UnknownQueue
from headrace.cli.session import BrokerSession
from headrace.cli.topic_admin import TopicNotFound
from headrace.client.bootstrap import Bootstrap
from headrace.client.transactions import NothingToAbort, UnknownTransaction
from headrace.console import cluster, graph, groups, jobs, topics, views
from headrace.console.jobs import JobStatuses
from headrace.console.views import Programs
from headrace.errors import HeadraceError, Misuse
from headrace.gateway.errors import UNAUTHORIZED_CODES, UNKNOWN_CODES, HttpError, http_error
from headrace.gateway.streams import EventStream, StreamEvent
from headrace.settings import BrokerAddress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
    from pathlib import Path

    from starlette.requests import Request

    from headrace.gateway.identity import Identity

TIMEOUT_S: Final = 10.0
"""How long a request of a user may wait for the broker."""
THREADS: Final = 8
EVERY_S: Final = 2.0
"""How often the documents of streams are read."""
MAX_BODY_BYTES: Final = 4 << 20
MAX_DOCUMENTS: Final = 500
STATIC: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
EVENT_STREAM: Final = "text/event-stream"
UNKNOWN: Final = (TopicNotFound, UnknownGroup, UnknownQueue, UnknownTransaction)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleOptions:
    """What a console knows in addition to its cluster."""

    read_only: bool = False
    state: Path | None = None
    """The state folder of applications here: state of operators, and resets of stopped jobs."""
    programs: tuple[Path, ...] = ()
    """Python files that define aggregates: needed to show the state of an aggregate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a resource or an action works with; it runs in a thread."""

    session: BrokerSession
    statuses: JobStatuses
    options: ConsoleOptions
    programs: Programs
    path: Mapping[str, str]
    query: Mapping[str, str]
    user: str | None

    def number(self, name: str, default: int, largest: int) -> int:
        """A parameter that is a number."""
        text = self.query.get(name) or str(default)
        if not text.isascii() or not text.isdigit() or int(text[:18]) > largest:
            raise HttpError(HTTPStatus.BAD_REQUEST, f"{name} is a number from 0 to {largest}")
        return int(text)


class Connections:
    """The connections of one user, each for one thread at a time."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = Bootstrap.of(bootstrap)
        self._free: list[BrokerSession] = []
        self.statuses = JobStatuses()

    @contextlib.contextmanager
    def session(self) -> Iterator[BrokerSession]:
        """A session that no other thread uses."""
        address = BrokerAddress(
            addresses=self._bootstrap.addresses, origin="the console's", profile=self._bootstrap.profile
        )
        session = self._free.pop() if self._free else BrokerSession(address, timeout_s=TIMEOUT_S)
        try:
            session.probe()
            yield session
        except (RequestFailed, Misuse, HttpError):
            self._free.append(session)
            raise
        except BaseException:
            session.close()
            raise
        self._free.append(session)

    def close(self) -> None:
        """Disconnect."""
        while self._free:
            self._free.pop().close()


class Console:
    """The routes of one console."""

    def __init__(self, options: ConsoleOptions) -> None:
        self.options = options
        self._programs = Programs(options.programs)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="console")
        self._documents: dict[tuple[Any, ...], tuple[float, asyncio.Task[str]]] = {}
        self._connections: dict[Identity, Connections] = {}

    def routes(self) -> list[Route]:
        """The routes, for a gateway."""
        return [
            Route("/", partial(self._file, "index.html")),
            Route("/console/{name}", self._static),
            Route("/api/about", self._about),
            Route("/api/topics/{topic}/messages", self._produce, methods=["POST"]),
            *(Route(path, partial(self._resource, read)) for path, read in RESOURCES.items()),
            *(Route(path, partial(self._action, do), methods=["POST"]) for path, do in ACTIONS.items()),
        ]

    # --------------------------------------------------------------------------------------------------- page

    async def _file(self, name: str, request: Request) -> Response:
        await self._identity(request)  # a browser asks for the password before it shows the page
        body = files("headrace.console").joinpath("static", name).read_bytes()
        return Response(body, headers={**HEADERS, "content-type": STATIC[PurePath(name).suffix]})

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        known = {file.name for file in files("headrace.console").joinpath("static").iterdir()}
        if name not in known or PurePath(name).suffix not in STATIC:
            raise HttpError(HTTPStatus.NOT_FOUND, f"the console has no file {name!r}")
        return await self._file(name, request)

    async def _about(self, request: Request) -> Response:
        """What the page has to know before it shows anything."""
        identity = await self._identity(request)
        connections = self._of(identity)
        features = await self._in_thread(_read_features, connections)
        return _json(
            {
                "read_only": self.options.read_only,
                "user": identity.user,
                "cluster": Bootstrap.of(identity.bootstrap).servers,
                **features,
            }
        )

    # ------------------------------------------------------------------------------------- resources, actions

    async def _resource(self, read: Callable[[Context], Any], request: Request) -> Any:
        identity = await self._identity(request)
        query = dict(request.query_params)
        document = partial(self._document, identity, read, dict(request.path_params), query)
        if EVENT_STREAM not in request.headers.get("accept", ""):
            return Response(await document(), headers={**HEADERS, "content-type": "application/json"})
        gateway = request.app.state.gateway
        return EventStream(gateway.streams, gateway.options, partial(_versions, document))

    async def _document(
        self,
        identity: Identity,
        read: Callable[[Context], Any],
        path: dict[str, str],
        query: dict[str, str],
    ) -> str:
        """The document of a resource as JSON; one that was read a moment ago is not read again."""
        key = (identity, read, *sorted(path.items()), *sorted(query.items()))
        now = asyncio.get_running_loop().time()
        until, task = self._documents.get(key, (0.0, None))
        if task is None or (now >= until and task.done()):
            if len(self._documents) >= MAX_DOCUMENTS:
                self._documents = {k: held for k, held in self._documents.items() if held[0] > now}
            work = self._in_thread(self._read, self._of(identity), identity.user, read, path, query)
            task = asyncio.ensure_future(work)
            self._documents[key] = (now + EVERY_S / 2, task)
        return await asyncio.shield(task)

    def _read(
        self,
        connections: Connections,
        user: str | None,
        read: Callable[[Context], Any],
        path: dict[str, str],
        query: dict[str, str],
    ) -> str:
        return _dumps(self._call(connections, user, read, path, query))

    def _call(
        self,
        connections: Connections,
        user: str | None,
        function: Callable[..., Any],
        path: dict[str, str],
        query: dict[str, str],
        *arguments: Any,
    ) -> Any:
        with connections.session() as session:
            context = Context(
                session=session,
                statuses=connections.statuses,
                options=self.options,
                programs=self._programs,
                path=path,
                query=query,
                user=user,
            )
            return function(context, *arguments)

    async def _action(self, do: Callable[[Context, dict[str, Any]], Any], request: Request) -> Response:
        identity = await self._identity(request)
        body = await _read_object(request)
        result = await self._in_thread(
            self._call, self._of(identity), identity.user, do, dict(request.path_params), {}, body
        )
        self._documents.clear()  # the page shows the change at once
        logger.info("%s %s by %s", request.method, request.url.path, identity.user or "anonymous")
        return _json(result)

    async def _produce(self, request: Request) -> Response:
        identity = await self._identity(request)
        result = await topics.produce(identity, request.path_params["topic"], await _read_object(request))
        self._documents.clear()
        return _json(result)

    # -------------------------------------------------------------------------------------------------- parts

    async def _identity(self, request: Request) -> Identity:
        identity: Identity = await request.app.state.gateway.identity(request)
        return identity

    def _of(self, identity: Identity) -> Connections:
        found = self._connections.get(identity)
        if found is None:
            found = self._connections[identity] = Connections(identity.bootstrap)
            identity.on_close.append(partial(self._forget, identity))
        return found

    def _forget(self, identity: Identity) -> None:
        self._connections.pop(identity).close()
        self._documents = {key: held for key, held in self._documents.items() if key[0] is not identity}

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, partial(function, *arguments)
            )
        except HeadraceError as fault:
            raise to_http_error(fault) from fault


RESOURCES: Final[Mapping[str, Callable[[Context], Any]]] = {
    "/api/topics": topics.list_topics,
    "/api/topics/{topic}": topics.describe_topic,
    "/api/topics/{topic}/messages": topics.find_messages,
    "/api/groups": groups.list_groups,
    "/api/groups/{group}": groups.describe_group,
    "/api/queues": groups.list_queues,
    "/api/queues/{group}": groups.describe_queue,
    "/api/queues/{group}/dead": groups.read_dead_letters,
    "/api/transactions": cluster.list_transactions,
    "/api/brokers": cluster.list_brokers,
    "/api/jobs": jobs.list_jobs,
    "/api/jobs/{job}": jobs.describe_job,
    "/api/captures": jobs.list_captures,
    "/api/views": views.list_views,
    "/api/aggregates": views.list_aggregates,
    "/api/aggregates/{aggregate}/events": views.read_events,
    "/api/aggregates/{aggregate}/state": views.read_state,
    "/api/graph": graph.read_graph,
}
ACTIONS: Final[Mapping[str, Callable[[Context, dict[str, Any]], Any]]] = {
    "/api/topics": topics.create_topic,
    "/api/groups/{group}/seek": groups.seek,
    "/api/queues/{group}/redrive": groups.redrive,
    "/api/transactions/{transactional_id:path}/abort": cluster.abort_transaction,
    "/api/jobs/{job}/restart": jobs.restart,
    "/api/jobs/{job}/reset": jobs.reset,
}


async def _versions(document: Callable[[], Any]) -> AsyncGenerator[list[StreamEvent]]:
    """The document of a resource whenever it has changed; an event without content when it has not."""
    before = None
    while True:
        try:
            now = await document()
            yield [StreamEvent("same", "", "null") if now == before else StreamEvent("document", "", now)]
            before = now
        except HeadraceError as fault:
            if before is None:
                raise
            yield [StreamEvent("problem", "", json.dumps({"error": str(fault)}))]
        await asyncio.sleep(EVERY_S)


def _read_features(connections: Connections) -> dict[str, Any]:
    with connections.session() as session:
        return cluster.read_features(session)


def to_http_error(fault: HeadraceError) -> HttpError:
    """The error of a command with its HTTP status."""
    if isinstance(fault, UNKNOWN):
        return HttpError(HTTPStatus.NOT_FOUND, str(fault))
    if isinstance(fault, RequestFailed):
        if fault.code in UNAUTHORIZED_CODES:
            return HttpError(HTTPStatus.FORBIDDEN, str(fault))
        status = HTTPStatus.NOT_FOUND if fault.code in UNKNOWN_CODES else HTTPStatus.CONFLICT
        return HttpError(status, str(fault))
    if isinstance(fault, NothingToAbort):
        return HttpError(HTTPStatus.CONFLICT, str(fault))
    if isinstance(fault, Misuse):
        return HttpError(HTTPStatus.BAD_REQUEST, str(fault))
    return http_error(fault)


async def _read_object(request: Request) -> dict[str, Any]:
    """The JSON object of an action. A form of another site cannot send this content type."""
    if not request.headers.get("content-type", "").startswith("application/json"):
        raise HttpError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body is JSON: Content-Type: application/json")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HttpError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the body is too large")
    try:
        value = json.loads(body or b"{}")
    except (ValueError, RecursionError) as fault:
        raise HttpError(HTTPStatus.BAD_REQUEST, f"the body is not JSON: {fault}") from None
    if not isinstance(value, dict):
        raise HttpError(HTTPStatus.BAD_REQUEST, "the body is not a JSON object")
    return value


def _json(value: Any) -> Response:
    return Response(_dumps(value), headers={**HEADERS, "content-type": "application/json"})


def _dumps(value: Any) -> str:
    return json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)
