"""Feeds over HTTP: events, resuming by the last id, refusals, and clients that are slow, many or hostile."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio

from headrace.feeds.server import ChangeServer, ServerOptions
from tests.feeds.view_writer import ViewWriter

DEADLINE_S = 60.0
Event = dict[str, str]


class Site:
    """A server in the loop of the test."""

    def __init__(self, server: ChangeServer, port: int) -> None:
        self.server = server
        self.port = port

    @asynccontextmanager
    async def get(self, target: str, **headers: str) -> "AsyncIterator[Answer]":
        fields = {"Host": f"127.0.0.1:{self.port}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        async with self.send(f"GET {target} HTTP/1.1\r\n{head}\r\n".encode()) as answer:
            yield answer

    @asynccontextmanager
    async def send(self, request: bytes) -> "AsyncIterator[Answer]":
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            yield Answer(reader, writer)
        finally:
            writer.transport.abort()

    async def until_clients_are(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.server.clients != count:
                await asyncio.sleep(0.01)


class Answer:
    """What comes back, piece by piece."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    async def status(self) -> int:
        return int((await self._until(b"\r\n")).split()[1])

    async def head(self) -> str:
        return (await self._until(b"\r\n\r\n")).decode()

    async def json_response(self) -> Any:
        await self.head()
        return json.loads(await self.rest())

    async def rest(self) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await self._reader.read()

    async def event(self) -> Event:
        """The next event; comments and `retry` are stepped over."""
        while True:
            lines = (await self._until(b"\n\n")).decode().strip().split("\n")
            fields = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
            if "data" in fields:
                return fields

    async def _until(self, end: bytes) -> bytes:
        async with asyncio.timeout(DEADLINE_S):
            return await self._reader.readuntil(end)


@asynccontextmanager
async def site_of(bootstrap: str, **options: Any) -> AsyncIterator[Site]:
    server = ChangeServer(ServerOptions(broker=bootstrap, **options))
    site = Site(server, await server.start("127.0.0.1", 0))
    try:
        yield site
    finally:
        await server.close()


@pytest_asyncio.fixture
async def site(shelf: ViewWriter) -> AsyncIterator[Site]:
    async with site_of(shelf.bootstrap) as site:
        yield site


async def write(shelf: ViewWriter, *steps: tuple[str, int | None]) -> None:
    await asyncio.to_thread(shelf.write, *steps)


async def test_a_browser_gets_rows_and_changes_and_goes_on_where_it_was(
    site: Site, shelf: ViewWriter
) -> None:
    await write(shelf, ("a", 1))
    async with site.get(f"/changes/{shelf.name}") as answer:
        assert "Content-Type: text/event-stream" in await answer.head()
        first = await answer.event()
        assert first["event"] == "row"
        assert json.loads(first["data"]) == {"kind": "row", "key": {"id": "a"}, "row": {"id": "a", "n": 1}}
        await write(shelf, ("a", 2), ("a", None), ("a", 3))
        second = await answer.event()
    assert json.loads(second["data"])["row"] == {"id": "a", "n": 2}
    async with site.get(f"/changes/{shelf.name}", Last_Event_ID=second["id"]) as answer:
        await answer.head()
        assert json.loads((await answer.event())["data"]) == {
            "kind": "delete",
            "key": {"id": "a"},
            "row": None,
        }
    async with site.get(f"/changes/{shelf.name}?since={second['id']}") as answer:
        await answer.head()
        assert (await answer.event())["event"] == "delete"
        assert json.loads((await answer.event())["data"])["row"]["n"] == 3


async def test_a_row_with_line_breaks_is_one_event(site: Site, shelf: ViewWriter) -> None:
    await asyncio.to_thread(shelf.write_raw, "a", b'{"id": "a",\n\n"n": 1}')
    await asyncio.to_thread(shelf.write_raw, "c", b'{"id": "c\\n\\ndata: x",\r\n\r"n": 2}')
    async with site.get(f"/changes/{shelf.name}") as answer:
        await answer.head()
        events = [await answer.event(), await answer.event()]
    rows = {event["id"]: json.loads(event["data"])["row"] for event in events}
    assert sorted(rows.values(), key=lambda row: int(row["n"])) == [
        {"id": "a", "n": 1},
        {"id": "c\n\ndata: x", "n": 2},
    ]


async def test_the_views_are_listed(site: Site, shelf: ViewWriter) -> None:
    async with site.get("/") as answer:
        views = (await answer.json_response())["views"]
    assert {
        "view": shelf.name,
        "key": ["id"],
        "columns": ["id", "n"],
        "changes": f"/changes/{shelf.name}",
    } in views


async def test_a_site_of_one_view_shows_no_other(
    shelf: ViewWriter, new_shelf: Callable[..., ViewWriter]
) -> None:
    other = await asyncio.to_thread(new_shelf)
    async with site_of(shelf.bootstrap, view=shelf.name) as site:
        async with site.get(f"/changes/{other.name}") as answer:
            assert await answer.status() == 404
        async with site.get("/") as answer:
            assert [view["view"] for view in (await answer.json_response())["views"]] == [shelf.name]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /changes/nothing HTTP/1.1\r\n\r\n", 404),
        (b"GET /changes/ HTTP/1.1\r\n\r\n", 404),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"GET /changes/{view}?since=nonsense HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: evil.example:80\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 200),
        (b"POST / HTTP/1.1\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX y: z\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: a\0b\r\n\r\n", 400),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000, 431),
        (b"GET http://[ HTTP/1.1\r\n\r\n", 400),
        (b"GET //[x HTTP/1.1\r\n\r\n", 400),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_a_request_that_is_not_served_gets_a_reason(
    site: Site, shelf: ViewWriter, request_: bytes, status: int
) -> None:
    async with site.send(request_.replace(b"{view}", shelf.name.encode())) as answer:
        assert await answer.status() == status
    await site.until_clients_are(0)


async def test_a_token_whose_changes_are_gone_is_answered_with_410(site: Site, shelf: ViewWriter) -> None:
    await write(shelf, ("a", 1))
    async with site.get(f"/changes/{shelf.name}") as answer:
        await answer.head()
        token = (await answer.event())["id"]
    await asyncio.to_thread(shelf.delete)
    await asyncio.to_thread(shelf.create)
    async with site.get(f"/changes/{shelf.name}", Last_Event_ID=token) as answer:
        assert await answer.status() == 410
        assert "Start again" in (await answer.json_response())["error"]


async def test_pages_of_other_origins_read_only_where_that_was_said(shelf: ViewWriter) -> None:
    origin = "https://shop.example"
    async with site_of(shelf.bootstrap, origins=(origin,)) as site:
        async with site.get(f"/changes/{shelf.name}", Origin=origin) as answer:
            assert f"Access-Control-Allow-Origin: {origin}" in await answer.head()
        async with site.get(f"/changes/{shelf.name}", Origin="https://evil.example") as answer:
            assert "Access-Control" not in await answer.head()


async def test_a_client_that_takes_nothing_is_hung_up_on_and_the_others_are_not_held_up(
    shelf: ViewWriter,
) -> None:
    # Rows of a view that no buffer on the way takes as a whole.
    for start in range(0, 40_000, 10_000):
        await write(shelf, *((f"a{number:0200}", number) for number in range(start, start + 10_000)))
    async with site_of(shelf.bootstrap, send_timeout_s=0.5) as site:
        async with site.get(f"/changes/{shelf.name}"), site.get(f"/changes/{shelf.name}") as quick:
            await quick.head()
            for _ in range(40_000):
                last = await quick.event()
            await site.until_clients_are(1)
            await write(shelf, ("b", 1))
            assert (await quick.event())["event"] == "upsert"
        assert last["event"] == "row"


async def test_many_clients_are_served_and_more_than_allowed_are_told_so(shelf: ViewWriter) -> None:
    await write(shelf, ("a", 1))
    async with site_of(shelf.bootstrap, max_clients=30) as site:
        streams = [site.get(f"/changes/{shelf.name}") for _ in range(30)]
        answers = await asyncio.gather(*(stream.__aenter__() for stream in streams))
        for answer in answers:
            await answer.head()
            assert (await answer.event())["event"] == "row"
        async with site.get("/") as answer:
            assert await answer.status() == 503
        await write(shelf, ("b", 1))
        assert {(await answer.event())["event"] for answer in answers} == {"upsert"}
        for stream in streams:
            await stream.__aexit__(None, None, None)
        await site.until_clients_are(0)


async def test_a_client_that_does_not_say_what_it_wants_is_hung_up_on(shelf: ViewWriter) -> None:
    async with site_of(shelf.bootstrap, head_timeout_s=0.1) as site, site.send(b"GET / HT") as answer:
        assert await answer.rest() == b""
        await site.until_clients_are(0)


async def test_without_a_broker_a_browser_is_told_to_come_back() -> None:
    async with site_of("127.0.0.1:1") as site:
        async with site.get("/changes/revenue", Last_Event_ID="x") as answer:
            assert "200 OK" in await answer.head()
            event = await answer.event()
            assert (event["event"], "id" in event) == ("end", False)
            assert "127.0.0.1:1" in json.loads(event["data"])["error"]
        async with site.get("/") as answer:
            assert await answer.status() == 502
