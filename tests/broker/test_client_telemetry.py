"""Metrics that clients push: by real clients, and by hostile ones."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Producer
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from headrace.broker.client_telemetry import (
    MAX_CLIENT_SERIES,
    MAX_CLIENTS,
    MAX_DECODED_BYTES,
    MAX_PUSH_BYTES,
    SUBSCRIPTION_ID,
    ClientTelemetry,
    InvalidTelemetry,
    decode,
    page_name,
)
from headrace.metrics import Scrape
from headrace.protocol.compression import CODECS, compress
from headrace.protocol.errors import CorruptBatch
from tests.behavior.clients.java import Driver, missing
from tests.broker.processes import BrokerProcess, wait_until
from tests.broker.pushed_metrics import otlp_metrics
from tests.broker.virtual_clock import VirtualClock
from tests.broker.wire_client import WireClient
from tests.metrics.pages import MeasuredBroker, scraped, value

GET_SUBSCRIPTIONS, PUSH = 71, 72
INSTANCE = UUID(int=7)
ONE = otlp_metrics({"org.apache.kafka.producer.record.send.total": [({"topic": "orders"}, 3)]})


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredBroker]:
    folder = tmp_path_factory.mktemp("telemetry") / "data"
    with MeasuredBroker(folder, "--client-metrics-interval-ms", "200") as broker:
        yield broker


@pytest.fixture
def client(broker: MeasuredBroker) -> Iterator[WireClient]:
    with WireClient(broker.address) as client:
        yield client


def push(client: WireClient, metrics: bytes, **fields: Any) -> ErrorCode:
    request = {
        "client_instance_id": uuid4(),
        "subscription_id": SUBSCRIPTION_ID,
        "terminating": False,
        "compression_type": 0,
        "metrics": metrics,
    }
    return ErrorCode(client.ask(PUSH, 0, **(request | fields)).error_code)


def test_a_client_learns_what_to_push(client: WireClient) -> None:
    response = client.ask(GET_SUBSCRIPTIONS, 0, client_instance_id=None)
    assert response.error_code is ErrorCode.none
    assert response.client_instance_id is not None
    assert response.requested_metrics == ("",)  # all
    assert response.telemetry_max_bytes == MAX_PUSH_BYTES
    assert client.ask(GET_SUBSCRIPTIONS, 0, client_instance_id=INSTANCE).client_instance_id == INSTANCE


@pytest.mark.parametrize("codec", CODECS)
def test_pushed_metrics_are_on_the_page(broker: MeasuredBroker, client: WireClient, codec: int) -> None:
    instance = uuid4()
    pushed = push(client, compress(codec, ONE), client_instance_id=instance, compression_type=codec)
    assert pushed is ErrorCode.none
    labels = {"client_instance_id": str(instance), "client_id": "", "client_host": "127.0.0.1"}
    found = value(scraped(broker.page), "kafka_client_producer_record_send", topic="orders", **labels)
    assert found == 3


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"client_instance_id": None}, ErrorCode.invalid_request),
        ({"subscription_id": 1}, ErrorCode.unknown_subscription_id),
        ({"compression_type": 9}, ErrorCode.unsupported_compression_type),
        ({"compression_type": 4}, ErrorCode.invalid_record),
        ({"metrics": b"\xff" * 100}, ErrorCode.invalid_record),
        ({"metrics": bytes(MAX_PUSH_BYTES + 1)}, ErrorCode.telemetry_too_large),
    ],
)
def test_a_wrong_push_gets_the_error_of_kafka(
    client: WireClient, fields: dict[str, Any], error: ErrorCode
) -> None:
    assert push(client, **({"metrics": ONE} | fields)) is error


def test_a_client_that_pushes_too_often_is_throttled_but_may_say_goodbye(client: WireClient) -> None:
    instance = uuid4()
    errors = {push(client, ONE, client_instance_id=instance) for _ in range(20)}
    assert errors == {ErrorCode.none, ErrorCode.throttling_quota_exceeded}
    assert push(client, ONE, client_instance_id=instance, terminating=True) is ErrorCode.none


def metrics_of(broker: MeasuredBroker, client_id: str) -> set[str]:
    """The names of the metrics that a client has pushed."""
    return {
        name
        for name, labels in scraped(broker.page)
        if name.startswith("kafka_client_") and ("client_id", client_id) in labels
    }


def test_librdkafka_pushes_its_metrics(broker: MeasuredBroker) -> None:
    producer = Producer({"bootstrap.servers": broker.address, "client.id": "till"})
    producer.produce("orders", b"tea")
    assert producer.flush(60) == 0
    wait_until(lambda: metrics_of(broker, "till") != set(), "the metrics of librdkafka")
    assert any(name.startswith("kafka_client_producer_") for name in metrics_of(broker, "till"))


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_the_java_client_pushes_its_metrics(broker: MeasuredBroker) -> None:
    driver = Driver()
    try:
        driver.ask("producer.open", settings={"bootstrap.servers": broker.address, "client.id": "java"})
        wait_until(lambda: len(metrics_of(broker, "java")) > 10, "the metrics of the Java client")
    finally:
        driver.close()


def test_a_broker_without_metrics_does_not_list_the_apis(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, WireClient(broker.address) as client:
        keys = {each.api_key for each in client.ask(18, 3, **SOFTWARE).api_keys}
        assert not keys & {GET_SUBSCRIPTIONS, PUSH}
        response = client.ask(GET_SUBSCRIPTIONS, 0, client_instance_id=None)
        assert response.error_code is ErrorCode.unsupported_version
        assert push(client, ONE) is ErrorCode.unsupported_version


SOFTWARE = {"client_software_name": "test", "client_software_version": "1"}

# ---------------------------------------------------------------- limits


def test_a_bomb_is_not_decompressed() -> None:
    with pytest.raises(CorruptBatch):
        decode(4, compress(4, bytes(64 * MAX_DECODED_BYTES)))


def test_a_client_has_only_so_many_series() -> None:
    series, dropped = decode(0, otlp_metrics({"m": [({"n": str(n)}, n) for n in range(2_000)]}))
    assert (len(series), dropped) == (MAX_CLIENT_SERIES, 2_000 - MAX_CLIENT_SERIES)


def test_a_push_of_nothing_but_empty_messages_has_no_series() -> None:
    assert decode(0, b"\x0a\x00" * (MAX_DECODED_BYTES // 2)) == ([], 0)


def test_labels_of_the_client_cannot_be_forged() -> None:
    ((series,), _) = decode(
        0, otlp_metrics({"m": [({"client_id": "root", "__name__": "up", "a b": "x"}, 1)]})
    )
    assert dict(series.labels) == {"name__": "up", "a_b": "x"}


@pytest.mark.parametrize(
    ("pushed", "shown"),
    [
        (
            "org.apache.kafka.consumer.fetch.manager.records.lag.max",
            "kafka_client_consumer_fetch_manager_records_lag_max",
        ),
        ("org.apache.kafka.producer.connection.count", "kafka_client_producer_connection"),
        ('up{job="x"}\n# TYPE', "kafka_client_up_job_x_type"),
        ("", "kafka_client_unnamed"),
    ],
)
def test_names_are_those_of_prometheus(pushed: str, shown: str) -> None:
    assert page_name(pushed) == shown


@given(st.binary(max_size=300), st.sampled_from(sorted(CODECS)))
def test_any_bytes_are_metrics_or_refused(data: bytes, codec: int) -> None:
    with contextlib.suppress(CorruptBatch, InvalidTelemetry):
        decode(codec, data)


async def test_silent_clients_are_forgotten_and_the_number_of_clients_is_limited() -> None:
    clock = VirtualClock()
    with ThreadPoolExecutor(1) as executor:
        telemetry = ClientTelemetry(clock, executor, 1_000)
        for number in range(MAX_CLIENTS + 5):
            await telemetry.push(UUID(int=number + 1), "c", "h", 0, ONE)
        assert shown_clients(telemetry) == MAX_CLIENTS
        clock.advance(3_001)
        await telemetry.push(INSTANCE, "c", "h", 0, ONE)
        assert shown_clients(telemetry) == 1


def shown_clients(telemetry: ClientTelemetry) -> int:
    scrape = Scrape()
    for _ in telemetry.samples(scrape):
        pass
    found = {metric.name: samples for metric, samples in scrape.samples.items()}
    ((_, clients),) = found["headrace_client_telemetry_clients"]
    assert len(found["kafka_client_producer_record_send"]) == clients
    return int(clients)  # type: ignore[arg-type]
