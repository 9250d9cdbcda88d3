"""The metrics and the health of a broker, read from its page while real clients use it."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace.broker.apis import APIS
from headrace.broker.metrics import METRICS, BrokerMetricsSource
from headrace.broker.request_metrics import api_name
from headrace.metrics import Kind, Scrape
from tests.broker.processes import BrokerProcess, wait_until
from tests.broker.wire_client import INIT_PRODUCER_ID, WireClient, batch_of
from tests.metrics.pages import MeasuredBroker, Samples, get, scraped, value

TOPIC = {"topic": "orders"}
PARTITION = {"topic": "orders", "partition": "0"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeasuredBroker]:
    folder = tmp_path_factory.mktemp("metrics") / "data"
    with MeasuredBroker(folder, "--flush", "always", "--maintenance-interval-ms", "200") as broker:
        yield broker


@pytest.fixture
def client(broker: MeasuredBroker) -> Iterator[WireClient]:
    with WireClient(broker.address) as client:
        yield client


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def growth(before: Samples, after: Samples, metric: str, **labels: str) -> float:
    return (value(after, metric, **labels) or 0) - (value(before, metric, **labels) or 0)


def test_bytes_and_records_are_counted_in_and_out(broker: MeasuredBroker, client: WireClient) -> None:
    client.create_topic("orders")
    before = scraped(broker.page)
    batch = batch_of(b"tea", b"cup", b"jug", timestamp=now_ms())
    client.produce("orders", batch)
    client.fetch({("orders", 0): 0})
    after = scraped(broker.page)
    assert growth(before, after, "kafka_server_brokertopicmetrics_bytesin_total", **TOPIC) == len(batch)
    assert growth(before, after, "kafka_server_brokertopicmetrics_messagesin_total", **TOPIC) == 3
    assert growth(before, after, "kafka_server_brokertopicmetrics_bytesout_total", **TOPIC) == len(batch)
    assert value(after, "kafka_log_log_size", **PARTITION) == len(batch)
    assert value(after, "kafka_log_log_logendoffset", **PARTITION) == 3
    for request in ("Produce", "Fetch"):
        labels = {"request": request, "le": "+Inf"}
        assert growth(before, after, "kafka_network_requestmetrics_totaltime_seconds_bucket", **labels) == 1
    assert growth(before, after, "kafka_log_logflushstats_flush_seconds_count") >= 1


def test_errors_are_counted_by_api_and_code(broker: MeasuredBroker, client: WireClient) -> None:
    before = scraped(broker.page)
    client.create_topic("..")
    client.produce("missing", batch_of(b"x"))
    client.fetch({("missing", 0): 0})
    after = scraped(broker.page)
    for request, error in (
        ("CreateTopics", "INVALID_TOPIC_EXCEPTION"),
        ("Produce", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("Fetch", "UNKNOWN_TOPIC_OR_PARTITION"),
    ):
        labels = {"request": request, "error": error}
        assert growth(before, after, "kafka_network_requestmetrics_errors_total", **labels) == 1


def test_connections_are_counted(broker: MeasuredBroker, client: WireClient) -> None:
    client.ask(18, 0)
    before = scraped(broker.page)
    with WireClient(broker.address) as other:
        other.ask(18, 0)
        after = scraped(broker.page)
    assert growth(before, after, "kafka_server_socketservermetrics_connections") == 1
    assert growth(before, after, "kafka_server_socketservermetrics_connection_creation_total") == 1


def test_a_consumer_group_has_its_lag(broker: MeasuredBroker, client: WireClient) -> None:
    client.create_topic("queue")
    client.produce("queue", batch_of(*[b"x"] * 10))
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("queue", 0, 4)], asynchronous=False)
    samples = scraped(broker.page)
    consumer.close()
    where = {"consumergroup": "readers", "topic": "queue", "partition": "0"}
    assert value(samples, "kafka_consumergroup_current_offset", **where) == 4
    assert value(samples, "kafka_consumergroup_lag", **where) == 6
    assert value(samples, "kafka_consumergroup_members", consumergroup="readers", state="Empty") == 0


def test_an_open_transaction_has_its_age(broker: MeasuredBroker, client: WireClient) -> None:
    client.create_topic("paid")
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "till"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("paid", b"x")
    producer.flush(30)
    samples = scraped(broker.page)
    assert value(samples, "kafka_coordinator_transaction_open_transactions") == 1
    assert (value(samples, "kafka_coordinator_transaction_oldest_open_age_seconds") or 0) > 0
    producer.commit_transaction(30)
    wait_until(
        lambda: value(scraped(broker.page), "kafka_coordinator_transaction_open_transactions") == 0,
        "the end of the transaction",
    )


def test_compaction_is_counted(broker: MeasuredBroker, client: WireClient) -> None:
    configs = {"cleanup.policy": "compact", "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0"}
    client.create_topic("latest", **configs)
    for number in range(20):
        client.produce("latest", batch_of(b"%d" % number * 200, key=b"k", timestamp=now_ms()))
    wait_until(
        lambda: (value(scraped(broker.page), "kafka_log_logcleaner_reclaimed_bytes_total") or 0) > 0,
        "a compaction",
    )
    samples = scraped(broker.page)
    assert (value(samples, "kafka_log_logcleaner_runs_total") or 0) >= 1


def test_full_topics_count_what_they_refuse(broker: MeasuredBroker, client: WireClient) -> None:
    configs = {"headrace.overflow": "drop-newest", "headrace.overflow.records": "2"}
    client.create_topic("small", **configs)
    client.produce("small", batch_of(b"1", b"2"))
    client.produce("small", batch_of(b"3", b"4", b"5"))
    assert value(scraped(broker.page), "headrace_overflow_refused_records_total", topic="small") == 3


def test_every_declared_metric_is_on_the_page_with_its_labels(broker: MeasuredBroker) -> None:
    _, _, text = get(f"{broker.page}/metrics")
    kinds = dict(line.split()[2:4] for line in text.splitlines() if line.startswith("# TYPE"))
    for metric in METRICS:
        assert kinds[metric.name] == metric.kind.value
        assert metric.kind is not Kind.COUNTER or metric.name.endswith("_total")


def test_apis_have_the_names_of_kafka() -> None:
    names = {api_name(key) for key in APIS}
    assert len(names) == len(APIS)
    assert {"Produce", "InitProducerId", "AddPartitionsToTxn", "ShareGroupHeartbeat"} <= names
    assert api_name(255) == "Unknown"


def test_a_slow_request_is_logged_as_json(tmp_path: Path) -> None:
    options = ("--slow-request-ms", "0", "--log-format", "json", "--log-level", "warning")
    with BrokerProcess(tmp_path / "data", *options) as broker, WireClient(broker.address) as client:
        client.ask(INIT_PRODUCER_ID, 0, transactional_id=None, transaction_timeout=60_000)
        wait_until(lambda: "InitProducerId" in broker.errors, "the log")
        lines = [json.loads(line) for line in broker.errors.splitlines()]
    slow = next(line for line in lines if line.get("api") == "InitProducerId")
    assert slow["level"] == "warning"
    assert slow["client_host"] == "127.0.0.1"
    assert slow["duration_ms"] >= 0


def test_a_broker_with_metrics_is_healthy(broker: MeasuredBroker) -> None:
    assert [get(f"{broker.page}/health/{page}")[0] for page in ("live", "ready")] == [200, 200]


def test_metrics_on_other_addresses_are_refused(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", "--metrics", "0.0.0.0:0")
    process = broker.launch()
    assert process.wait(60) == 1
    assert "--metrics-allow-remote" in broker.errors
    broker.kill()


async def test_a_broker_that_recovers_its_logs_is_live_and_not_ready() -> None:
    source, scrape = BrokerMetricsSource(asyncio.get_running_loop()), Scrape()
    source.scrape(scrape)
    assert (source.faults(), source.pending()) == ([], ["the broker is recovering its logs"])
    assert scrape.samples == {}
