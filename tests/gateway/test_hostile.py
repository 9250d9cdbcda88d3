"""Requests that no client should send, byte by byte, and web pages of other sites."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from headrace.gateway.options import GatewayOptions
from headrace.gateway.server import GatewayServer
from headrace.testing import EmbeddedBroker

DEADLINE_S = 60.0


@pytest_asyncio.fixture
async def server(kafka: EmbeddedBroker) -> AsyncIterator[GatewayServer]:
    running = GatewayServer(
        GatewayOptions(broker=kafka.bootstrap, head_timeout_s=0.2, body_timeout_s=0.4, max_body_bytes=1_000)
    )
    await running.start()
    yield running
    await running.close()


async def exchange(server: GatewayServer, request: bytes) -> bytes:
    """What comes back until the gateway closes the connection."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(request)
        async with asyncio.timeout(DEADLINE_S):
            return await reader.read()
    finally:
        writer.transport.abort()


POST = b"POST /topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
CHUNK = b"200\r\n" + b"1" * 512 + b"\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /changes/ HTTP/1.1\r\n\r\n", 404),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"GET / HTTP/1.1\r\nHost: evil.example:80\r\n\r\n", 421),
        (b"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 200),
        (b"GET / HTTP/1.1\r\nHost: \xff\r\n\r\n", 421),
        (b"POST / HTTP/1.1\r\n\r\n", 405),
        (b"DELETE /topics/t HTTP/1.1\r\n\r\n", 405),
        (b"\x16\x03\x01\x02\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX y: z\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nX: a\0b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nnot a size\r\n", 400),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 200_000, 431),
        (b"GET http://[ HTTP/1.1\r\n\r\n", 400),
        (b"GET / HT", 408),
        (b"", 408),
        (POST + b"Content-Length: 10\r\n\r\n{", 408),
        (POST + b"Content-Length: 1001\r\n\r\n", 413),
        (POST + b"Content-Length: 99999999999999999999\r\n\r\n", 400),
        (POST + b"Content-Length: -1\r\n\r\n", 400),
        (
            POST
            + b"Transfer-Encoding: chunked\r\n\r\n"
            + b"200\r\n"
            + b"1" * 512
            + b"\r\n"
            + b"200\r\n"
            + b"1" * 512,
            413,
        ),
        (POST + b"Idempotency-Key: \r\nContent-Length: 1\r\n\r\n1", 400),
        (POST + b"Idempotency-Key: " + b"k" * 300 + b"\r\nContent-Length: 1\r\n\r\n1", 400),
        (POST + b"Origin: https://evil.example\r\nContent-Length: 1\r\n\r\n1", 403),
        (POST + b"Origin: null\r\nContent-Length: 1\r\n\r\n1", 403),
        (POST + b"Origin: http://localhost\r\nContent-Length: 1\r\n\r\n1", 200),
        (POST + b"Content-Encoding: br\r\nContent-Length: 1\r\n\r\n1", 415),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_a_request_that_is_not_served_gets_a_reason(
    server: GatewayServer, request_: bytes, status: int
) -> None:
    request_ = request_.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
    answer = await exchange(server, request_)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer
    assert b"\r\n\r\n{" in answer
    async with asyncio.timeout(DEADLINE_S):
        while server.connections:
            await asyncio.sleep(0.01)


async def test_requests_one_behind_the_other_are_answered_in_their_order(server: GatewayServer) -> None:
    one = POST + b"Content-Length: 1\r\n\r\n1"
    answer = await exchange(server, one * 5 + POST + b"Connection: close\r\nContent-Length: 1\r\n\r\n2")
    assert answer.count(b"HTTP/1.1 200 OK") == 6
    offsets = [int(part.split(b"}")[0]) for part in answer.split(b'"offset":')[1:]]
    assert offsets == sorted(offsets)


async def test_a_client_that_sends_a_byte_now_and_then_is_ended_in_time(server: GatewayServer) -> None:
    host, _, port = server.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    begin = time.monotonic()

    async def trickle() -> None:
        while not writer.is_closing():
            writer.write(b"X")
            await asyncio.sleep(0.05)

    task = asyncio.ensure_future(trickle())
    async with asyncio.timeout(DEADLINE_S):
        answer = await reader.read()
    task.cancel()
    writer.transport.abort()
    # "XXX" is no method: either the parser or the clock ends it.
    assert answer[9:12] in (b"400", b"408")
    assert time.monotonic() - begin < DEADLINE_S


async def test_a_connection_that_waits_for_its_next_request_is_kept(server: GatewayServer) -> None:
    host, _, port = server.url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for _ in range(2):
        writer.write(POST + b"Content-Length: 1\r\n\r\n1")
        async with asyncio.timeout(DEADLINE_S):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
        assert b" 200 " in head
        await asyncio.sleep(0.5)  # longer than a head or a body may take
    writer.transport.abort()


async def test_answers_say_that_browsers_must_not_guess_or_store(server: GatewayServer) -> None:
    answer = (await exchange(server, b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")).lower()
    assert b"x-content-type-options: nosniff" in answer
    assert b"cache-control: no-store" in answer
    assert b"\nserver:" not in answer
