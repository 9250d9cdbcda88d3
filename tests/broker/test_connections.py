"""Connections that are idle, slow, pipelined or closed: each affects only itself."""

import asyncio
import select
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from headrace.broker.broker import Broker
from headrace.broker.config import BrokerConfig
from headrace.testing import EmbeddedBroker
from tests.broker.processes import BrokerProcess
from tests.broker.wire_client import METADATA, WireClient, batch_of, frame, read_response

API_VERSIONS = 18
IDLE_CONNECTIONS = 1000
MEGABYTE = 2**20


@pytest.fixture
def client(headrace_broker: EmbeddedBroker) -> Iterator[WireClient]:
    with WireClient(headrace_broker.bootstrap) as client:
        yield client


def stuff(client: WireClient, request: bytes, limit_bytes: int) -> int:
    """Send a request again and again until the broker reads no more; gives the bytes that went out."""
    client.socket.setblocking(False)
    sent = 0
    chunk = request * max(1, 65536 // len(request))
    while sent < limit_bytes and select.select([], [client.socket], [], 1.0)[1]:
        sent += client.socket.send(chunk[sent % len(chunk) :])
    return sent


def test_a_thousand_idle_connections_cost_little(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, ExitStack() as stack:
        producer = stack.enter_context(WireClient(broker.address))
        producer.create_topic("orders")
        before = broker.resident_bytes
        idle = [stack.enter_context(WireClient(broker.address)) for _ in range(IDLE_CONNECTIONS)]
        for connection in idle:
            connection.ask(METADATA, 1, topics=[{"name": "orders"}])
        cost = (broker.resident_bytes - before) / IDLE_CONNECTIONS
        assert cost < 20_000, f"{cost:.0f} bytes a connection"
        assert producer.produce("orders", batch_of(b"tea")).error_code is ErrorCode.none


def test_a_client_that_does_not_read_its_records_costs_no_memory_and_disturbs_nobody(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, WireClient(broker.address) as other:
        other.create_topic("orders")
        for _ in range(32):
            other.produce("orders", batch_of(bytes(900_000)))
        before = broker.resident_bytes
        with WireClient(broker.address, receive_bytes=4096) as slow:
            stuff(slow, slow.pack_fetch({("orders", 0): 0}, partition_bytes=32 * MEGABYTE), 4 * MEGABYTE)
            assert other.produce("orders", batch_of(b"tea")).error_code is ErrorCode.none
            assert broker.resident_bytes - before < 8 * MEGABYTE


@pytest.mark.parametrize(
    ("api_key", "version", "fields"),
    [(API_VERSIONS, 0, {}), (METADATA, 1, {"topics": [{"name": "orders"}]})],
    ids=["answered at once", "answered by a task"],
)
def test_a_client_that_does_not_read_small_answers_costs_no_memory_either(
    tmp_path: Path, api_key: int, version: int, fields: dict[str, Any]
) -> None:
    with BrokerProcess(tmp_path / "data") as broker, WireClient(broker.address) as other:
        other.create_topic("orders", partitions=100)
        before = broker.resident_bytes
        with WireClient(broker.address, receive_bytes=4096) as slow:
            stuff(slow, slow.pack(api_key, version, **fields), 16 * MEGABYTE)
            assert other.produce("orders", batch_of(b"tea")).error_code is ErrorCode.none
            assert broker.resident_bytes - before < 8 * MEGABYTE


def test_a_slow_reader_gets_everything_in_the_end(
    client: WireClient, headrace_broker: EmbeddedBroker
) -> None:
    client.create_topic("orders")
    values = [bytes([number]) * 100_000 for number in range(40)]
    for value in values:
        client.produce("orders", batch_of(value))
    with WireClient(headrace_broker.bootstrap, receive_bytes=4096) as slow:
        for offset in range(40):
            slow.send_fetch({("orders", 0): offset}, partition_bytes=1)
        for value in values:
            (topic,) = slow.receive().responses
            assert topic.partitions[0].records[-len(value) - 1 : -1] == value


def test_a_request_may_arrive_one_byte_at_a_time(client: WireClient) -> None:
    for byte in client.pack(METADATA, 1, topics=[{"name": "orders"}]):
        client.send_bytes(bytes([byte]))
    assert client.receive().topics[0].name == "orders"


def test_a_request_that_ends_in_the_next_packet_is_kept_together_with_those_around_it(
    client: WireClient,
) -> None:
    client.create_topic("orders")
    requests = b"".join(client.pack(METADATA, 1, topics=[{"name": name}]) for name in ("a", "b" * 200, "c"))
    for cut in (3, 30, 150):
        client.send_bytes(requests[:cut])
        requests = requests[cut:]
    client.send_bytes(requests)
    assert [client.receive().topics[0].name for _ in range(3)] == ["a", "b" * 200, "c"]


def test_pipelined_requests_are_answered_in_order(client: WireClient) -> None:
    names = ["tea", "cups", "spoons"] * 300
    client.send_bytes(b"".join(client.pack(METADATA, 1, topics=[{"name": name}]) for name in names))
    assert [client.receive().topics[0].name for _ in names] == names


def test_a_burst_of_requests_in_one_packet_is_answered_to_its_last(client: WireClient) -> None:
    client.send_bytes(b"".join(client.pack(API_VERSIONS, 0) for _ in range(1000)))
    assert all(client.receive().error_code is ErrorCode.none for _ in range(1000))


def test_a_request_behind_a_long_poll_is_answered_after_it(
    client: WireClient, headrace_broker: EmbeddedBroker
) -> None:
    client.create_topic("orders")
    client.send_fetch({("orders", 0): 0}, max_wait=60_000)
    client.send(METADATA, 1, topics=[{"name": "orders"}])
    with WireClient(headrace_broker.bootstrap) as producer:
        producer.produce("orders", batch_of(b"tea"))
    assert client.receive().responses[0].partitions[0].high_watermark == 1
    assert client.receive().topics[0].name == "orders"


def test_more_requests_than_may_wait_behind_a_long_poll_are_answered_all_the_same(
    client: WireClient, headrace_broker: EmbeddedBroker
) -> None:
    client.create_topic("orders")
    client.send_fetch({("orders", 0): 0}, max_wait=60_000)
    for _ in range(1000):
        client.send(METADATA, 1, topics=[{"name": "orders"}])
    with WireClient(headrace_broker.bootstrap) as producer:
        producer.produce("orders", batch_of(b"tea"))
    assert client.receive().responses[0].partitions[0].high_watermark == 1
    assert all(client.receive().topics[0].name == "orders" for _ in range(1000))


async def test_a_client_that_hangs_up_in_a_long_poll_leaves_nothing_behind(tmp_path: Path) -> None:
    broker = await Broker.start(BrokerConfig(data=tmp_path, port=0))
    topic = broker.topics.create("orders", 1, {})
    waiters = topic.partitions[0].waiters
    client = await asyncio.to_thread(WireClient, f"127.0.0.1:{broker.port}")
    client.send_fetch({("orders", 0): 0}, max_wait=2**31 - 1)
    await eventually(lambda: len(waiters) == 1)
    client.close()
    await eventually(lambda: not waiters)
    await broker.stop()


async def eventually(condition: Callable[[], bool]) -> None:
    """Let the loop turn until the condition holds."""
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


def test_an_api_versions_request_above_ours_is_answered_in_version_0_with_what_we_serve(
    client: WireClient,
) -> None:
    client.send_bytes(frame(struct.pack(">hhih", API_VERSIONS, 99, 7, -1)))
    correlation_id, answer = read_response(API_VERSIONS, 0, client.receive_frame())
    assert (correlation_id, answer.error_code) == (7, ErrorCode.unsupported_version)
    assert {api.api_key: api.max_version for api in answer.api_keys}[API_VERSIONS] == 4


@pytest.mark.parametrize(("api_key", "version"), [(METADATA, 99), (METADATA, -1), (0, 2), (1, 3), (9999, 0)])
def test_any_other_request_in_a_version_that_is_not_served_ends_the_connection(
    client: WireClient, api_key: int, version: int
) -> None:
    client.send_bytes(frame(struct.pack(">hhih", api_key, version, 1, -1) + bytes(8)))
    assert client.is_ended()


def test_a_batch_that_is_refused_without_anybody_waiting_ends_the_connection(client: WireClient) -> None:
    client.create_topic("orders")
    client.send_produce("nobody-knows", batch_of(b"tea"), acks=0)
    assert client.is_ended()


def test_a_batch_that_nobody_waits_for_is_stored_without_an_answer(client: WireClient) -> None:
    client.create_topic("orders")
    client.send_produce("orders", batch_of(b"tea"), acks=0)
    assert client.end_offset("orders") == 1


def test_the_end_of_one_connection_drops_its_answers_only(
    client: WireClient, headrace_broker: EmbeddedBroker
) -> None:
    client.create_topic("orders")
    with WireClient(headrace_broker.bootstrap) as hasty:
        hasty.send_bytes(b"".join(hasty.pack(METADATA, 1, topics=[{"name": "orders"}]) for _ in range(200)))
    assert client.produce("orders", batch_of(b"tea")).error_code is ErrorCode.none


def test_records_that_are_being_sent_outlive_their_topic(
    client: WireClient, headrace_broker: EmbeddedBroker
) -> None:
    client.create_topic("orders")
    value = bytes(900_000)
    for _ in range(8):
        client.produce("orders", batch_of(value))
    with WireClient(headrace_broker.bootstrap, receive_bytes=4096) as slow:
        slow.send_fetch({("orders", 0): 0}, partition_bytes=8 * MEGABYTE)
        slow.has_answer(10)
        client.ask(20, 5, topic_names=["orders"], timeout=1000)
        assert len(slow.receive().responses[0].partitions[0].records) > 7 * len(value)
