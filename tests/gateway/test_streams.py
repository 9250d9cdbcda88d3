"""Streams over HTTP and WebSockets: events, resuming, refusals, and clients that are slow or many."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest
import pytest_asyncio
import websockets

from headrace.gateway.options import GatewayOptions
from headrace.gateway.server import GatewayServer
from tests.feeds.view_writer import ViewWriter
from tests.gateway.topics import TopicContent

DEADLINE_S = 60.0
Event = dict[str, str]


class Site:
    """A gateway in the loop of the test."""

    def __init__(self, server: GatewayServer, port: int) -> None:
        self.server = server
        self.port = port
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S)

    @asynccontextmanager
    async def get(self, target: str, **headers: str) -> AsyncIterator["EventReader"]:
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.client.stream("GET", target, headers=fields) as response:
            yield EventReader(response)

    async def until_streams_are(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while self.server.streams != count:
                await asyncio.sleep(0.01)

    def socket(self, target: str, **options: Any) -> Any:
        return websockets.connect(f"ws://127.0.0.1:{self.port}{target}", **options)


class EventReader:
    """The events of a response, one by one."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self.status = response.status_code
        self._lines = response.aiter_lines()

    async def error(self) -> str:
        await self.response.aread()
        return str(self.response.json()["error"])

    async def event(self) -> Event:
        """The next event; comments and `retry` are stepped over."""
        fields: Event = {}
        async for line in self._lines:
            if not line and "data" in fields:
                return fields
            if not line:
                fields = {}
            elif not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
        raise EOFError("the stream ended")

    async def data(self) -> Any:
        return json.loads((await self.event())["data"])


@asynccontextmanager
async def site_of(bootstrap: str, **options: Any) -> AsyncIterator[Site]:
    server = GatewayServer(GatewayOptions(broker=bootstrap, **options))
    site = Site(server, await server.start())
    try:
        yield site
    finally:
        await site.client.aclose()
        await server.close()


@pytest_asyncio.fixture
async def site(view: ViewWriter) -> AsyncIterator[Site]:
    async with site_of(view.bootstrap) as site:
        yield site


async def write(view: ViewWriter, *steps: tuple[str, int | None]) -> None:
    await asyncio.to_thread(view.write, *steps)


async def test_a_browser_gets_rows_and_changes_and_goes_on_where_it_was(site: Site, view: ViewWriter) -> None:
    await write(view, ("a", 1))
    async with site.get(f"/changes/{view.name}") as answer:
        assert answer.response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        first = await answer.event()
        assert first["event"] == "row"
        assert json.loads(first["data"]) == {"kind": "row", "key": {"id": "a"}, "row": {"id": "a", "n": 1}}
        await write(view, ("a", 2), ("a", None), ("a", 3))
        second = await answer.event()
    assert json.loads(second["data"])["row"] == {"id": "a", "n": 2}
    async with site.get(f"/changes/{view.name}", Last_Event_ID=second["id"]) as answer:
        assert await answer.data() == {"kind": "delete", "key": {"id": "a"}, "row": None}
    async with site.get(f"/changes/{view.name}?since={second['id']}") as answer:
        assert (await answer.event())["event"] == "delete"
        assert (await answer.data())["row"]["n"] == 3


async def test_a_websocket_gets_the_same_events(site: Site, view: ViewWriter) -> None:
    await write(view, ("a", 1))
    async with site.socket(f"/changes/{view.name}") as socket:
        first = json.loads(await socket.recv())
        assert (first["event"], first["data"]["row"]) == ("row", {"id": "a", "n": 1})
        await write(view, ("a", 2), ("a", 3))
        second = json.loads(await socket.recv())
    async with site.socket(f"/changes/{view.name}?since={second['id']}") as socket:
        assert json.loads(await socket.recv())["data"]["row"] == {"id": "a", "n": 3}
    await site.until_streams_are(0)


@pytest.mark.parametrize(
    ("target", "status"), [("/changes/nothing", 404), ("/topics/nothing/records", 404), ("/nothing", 403)]
)
async def test_a_websocket_to_nothing_is_refused(site: Site, target: str, status: int) -> None:
    with pytest.raises(websockets.InvalidStatus) as refusal:
        async with site.socket(target):
            pass
    assert refusal.value.response.status_code == status


async def test_a_page_of_another_site_cannot_open_a_websocket(site: Site, view: ViewWriter) -> None:
    with pytest.raises(websockets.InvalidStatus) as refusal:
        async with site.socket(f"/changes/{view.name}", origin="https://evil.example"):
            pass
    assert refusal.value.response.status_code == 403


async def test_a_row_with_line_breaks_is_one_event(site: Site, view: ViewWriter) -> None:
    await asyncio.to_thread(view.write_raw, "a", b'{"id": "a",\n\n"n": 1}')
    await asyncio.to_thread(view.write_raw, "c", b'{"id": "c\\n\\ndata: x",\r\n\r"n": 2}')
    async with site.get(f"/changes/{view.name}") as answer:
        rows = [(await answer.data())["row"] for _ in range(2)]
    assert sorted(rows, key=lambda row: int(row["n"])) == [
        {"id": "a", "n": 1},
        {"id": "c\n\ndata: x", "n": 2},
    ]


async def test_the_views_are_listed(site: Site, view: ViewWriter) -> None:
    views = (await site.client.get("/views")).json()["views"]
    entry = {"view": view.name, "key": ["id"], "columns": ["id", "n"], "changes": f"/changes/{view.name}"}
    assert entry in views


async def test_a_token_that_is_none_is_refused(site: Site, view: ViewWriter) -> None:
    async with site.get(f"/changes/{view.name}?since=nonsense") as answer:
        assert answer.status == 400
        assert "not a token" in await answer.error()


async def test_a_token_whose_changes_are_gone_is_answered_with_410(site: Site, view: ViewWriter) -> None:
    await write(view, ("a", 1))
    async with site.get(f"/changes/{view.name}") as answer:
        token = (await answer.event())["id"]
    await asyncio.to_thread(view.delete)
    await asyncio.to_thread(view.create)
    async with site.get(f"/changes/{view.name}", Last_Event_ID=token) as answer:
        assert answer.status == 410
        assert "Start again" in await answer.error()


async def test_a_record_that_is_no_row_is_reported_as_skipped(site: Site, view: ViewWriter) -> None:
    await write(view, ("a", 1))
    async with site.get(f"/changes/{view.name}") as answer:
        await answer.event()
        await asyncio.to_thread(view.write_raw, "a", b"not a row")
        skipped = await answer.event()
    assert (skipped["event"], json.loads(skipped["data"])) == ("skipped", {"records": 1})


async def test_pages_of_other_origins_read_only_where_that_was_said(view: ViewWriter) -> None:
    origin, header = "https://shop.example", "Access-Control-Allow-Origin"
    async with site_of(view.bootstrap, origins=(origin,)) as site:
        async with site.get(f"/changes/{view.name}", Origin=origin) as answer:
            assert answer.response.headers[header] == origin
        async with site.get(f"/changes/{view.name}", Origin="https://evil.example") as answer:
            assert header not in answer.response.headers
        async with site.socket(f"/changes/{view.name}", origin=origin):
            pass


async def test_a_client_that_takes_nothing_is_disconnected_and_delays_no_other(view: ViewWriter) -> None:
    # Rows of a view that no buffer on the way takes as a whole.
    for start in range(0, 15_000, 5_000):
        await write(view, *((f"a{number:0600}", number) for number in range(start, start + 5_000)))
    target = f"/changes/{view.name}"
    request = f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    async with site_of(view.bootstrap, send_timeout_s=1) as site:
        _, idle = await asyncio.open_connection("127.0.0.1", site.port)
        reader, quick = await asyncio.open_connection("127.0.0.1", site.port)
        idle.write(request)
        quick.write(request)
        async with site.socket(target, max_queue=1), asyncio.timeout(DEADLINE_S):
            rows = 0
            while rows < 15_000:
                rows += (await reader.readuntil(b"\n\n")).count(b"event: row")
            await site.until_streams_are(1)
            await write(view, ("b", 1))
            assert b"event: upsert" in await reader.readuntil(b"\n\n")
        quick.transport.abort()
        idle.transport.abort()


async def test_many_clients_are_served_and_more_than_allowed_are_told_so(view: ViewWriter) -> None:
    await write(view, ("a", 1))
    target = f"/changes/{view.name}"
    async with site_of(view.bootstrap, max_streams=30) as site, AsyncExitStack() as stack:
        opened = [stack.enter_async_context(site.get(target)) for _ in range(30)]
        answers = await asyncio.gather(*opened)
        for answer in answers:
            assert (await answer.event())["event"] == "row"
        async with site.get(target) as refused:
            assert refused.status == 503
        await write(view, ("b", 1))
        assert {(await answer.event())["event"] for answer in answers} == {"upsert"}
        await stack.aclose()
        await site.until_streams_are(0)


async def test_without_a_broker_a_browser_is_told_to_come_back() -> None:
    async with site_of("127.0.0.1:1") as site:
        async with site.get("/changes/revenue", Last_Event_ID="x") as answer:
            assert answer.status == 200
            event = await answer.event()
        assert (event["event"], "id" in event) == ("end", False)
        assert "127.0.0.1:1" in json.loads(event["data"])["error"]
        assert (await site.client.get("/views")).status_code == 502


async def post(site: Site, topic: str, *values: Any, **query: Any) -> None:
    answer = await site.client.post(f"/topics/{topic}", json=list(values), params=query)
    assert answer.status_code == 200


async def test_a_topic_is_followed_from_any_position(site: Site, view: ViewWriter) -> None:
    topic = await asyncio.to_thread(TopicContent, view.bootstrap, partitions=2)
    target = f"/topics/{topic.name}/records"
    await post(site, topic.name, {"n": 1}, "two", key="k", partition=0)
    async with site.get(f"{target}?from=earliest") as answer:
        first, second = await answer.event(), await answer.data()
        record = json.loads(first["data"])
        assert first["event"] == "record"
        assert (record["partition"], record["offset"]) == (0, 0)
        assert (record["key"], record["value"]) == ("k", {"n": 1})
        assert record["headers"]["received"]
        assert second["value"] == "two"
        await post(site, topic.name, 3, partition=1)
        assert (await answer.data())["partition"] == 1
    async with site.get(f"{target}?from=earliest", Last_Event_ID=first["id"]) as answer:
        assert {(await answer.data())["value"] for _ in range(2)} == {"two", 3}
    async with site.get(f"{target}?from=1&partition=0") as answer:
        assert (await answer.data())["value"] == "two"
    async with site.get(f"{target}?from=2000-01-01T00:00:00Z&partition=1") as answer:
        assert (await answer.data())["value"] == 3
    async with site.socket(f"{target}?from=latest") as socket:
        await post(site, topic.name, "new", partition=1)
        assert json.loads(await socket.recv())["data"]["value"] == "new"


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("from=yesterday", 400),
        ("from=-1", 400),
        ("from=99999999999999999999", 400),
        ("partition=x", 400),
        ("partition=9", 404),
        ("from=17", 410),
        ("limit=3", 400),
    ],
)
async def test_a_position_that_is_none_is_refused(
    site: Site, view: ViewWriter, query: str, status: int
) -> None:
    await post(site, "positions", 1)
    async with site.get(f"/topics/positions/records?{query}") as answer:
        if status == 410:  # the position is checked when it is read
            assert (await answer.event())["event"] == "end"
        else:
            assert answer.status == status


async def test_records_that_are_not_json_are_text_or_base64(site: Site, view: ViewWriter) -> None:
    topic = await asyncio.to_thread(TopicContent, view.bootstrap)
    for content in (b"NaN", b"\xff", b'{"a":\n1}'):
        await site.client.post(topic.path, content=content, headers={"Content-Type": "text/plain"})
    async with site.get(f"/topics/{topic.name}/records?from=earliest") as answer:
        values = [(await answer.data())["value"] for _ in range(3)]
    assert values == ["NaN", {"base64": "/w=="}, {"a": 1}]
