"""A real Prometheus reads a broker, a run with jobs, a capture and an event store."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import psycopg
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace import queue
from headrace.capture.capture import Capture
from headrace.capture.metrics import CaptureMetricsSource
from headrace.capture.settings import CaptureSettings
from headrace.events import EventStore
from headrace.metrics.server import MetricsServer
from headrace.testing.postgres import PostgresServer
from tests.broker.overflow_topics import create
from tests.broker.processes import wait_until
from tests.events.cart import Cart
from tests.metrics.pages import FREE, MeasuredBroker, get
from tests.metrics.prometheus import DEPLOY, RULES, Prometheus, promtool

pytestmark = [pytest.mark.deploy, pytest.mark.timeout(600)]

PIPELINE = """
from pyspark.sql import functions as F
from headrace import App, tumbling

app = App("shop")
orders = app.stream("orders", "amount double, at timestamp", event_time="at", watermark_delay="0 seconds")

@app.job(into=app.view("revenue", key=["window_start"]))
def revenue():
    return orders.window(tumbling("1 minute")).agg(F.sum("amount").alias("revenue"))

@app.job(into=app.topic("broken"))
def broken():
    return orders.df.select("nothing")
"""


class Pages(NamedTuple):
    """The addresses of the metrics of all parts."""

    broker: str
    run: str
    capture: str
    events: str


def run_jobs(stack: ExitStack, folder: Path, bootstrap: str) -> str:
    """The address of the metrics of a run, as a user starts it."""
    (folder / "pipeline.py").write_text(PIPELINE)
    command = [sys.executable, "-m", "headrace.cli", "run", str(folder / "pipeline.py"), "--json"]
    process = subprocess.Popen(
        [*command, "--broker", bootstrap, "--metrics", "0", "--master", "local[2]"],
        stdout=subprocess.PIPE,
        text=True,
    )

    def end() -> None:
        process.terminate()
        process.communicate(timeout=100)

    stack.callback(end)
    assert process.stdout is not None
    line = next(line for line in process.stdout if "Metrics are served on" in line)
    threading.Thread(target=process.stdout.read, daemon=True).start()
    return line.partition("http://")[2].partition("/metrics")[0]


def capture_table(stack: ExitStack, bootstrap: str) -> str:
    folder = stack.enter_context(TemporaryDirectory(prefix="headrace-"))
    url = stack.enter_context(PostgresServer(Path(folder))).create_database("shop")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE users (id bigint PRIMARY KEY)")
        connection.execute("INSERT INTO users VALUES (1), (2)")
    capture = Capture(CaptureSettings(url=url, tables=("users",), name="shop"), bootstrap)
    thread = threading.Thread(target=capture.run)
    thread.start()
    stack.callback(thread.join)
    stack.callback(capture.stop)
    wait_until(lambda: capture.metrics.is_connected and not capture.metrics.is_taking_snapshot, "the capture")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("INSERT INTO users VALUES (3)")
    wait_until(lambda: capture.metrics.transactions == 1, "a transaction")
    wait_until(lambda: capture.metrics.retained_wal_bytes is not None, "the first check of the slot")
    server = stack.enter_context(MetricsServer(FREE, CaptureMetricsSource(capture.metrics)))
    return str(server.address)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pages]:
    folder = tmp_path_factory.mktemp("prometheus")
    with ExitStack() as stack:
        broker = stack.enter_context(
            MeasuredBroker(folder / "broker", "--client-metrics-interval-ms", "1000")
        )
        # A run whose jobs have all failed ends: the topic has to be there before its job starts.
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("orders", 1)])["orders"].result(100)
        run = run_jobs(stack, folder, broker.address)
        store = stack.enter_context(EventStore("shop", broker=broker.address, partitions=1, metrics="0"))
        store.execute(Cart, "cart-1", "create")
        captured = capture_table(stack, broker.address)
        write_orders(broker.address)
        use_more(broker.address)
        yield Pages(broker.page.removeprefix("http://"), run, captured, str(store.metrics_address))


def write_orders(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for minute in range(10, 20):
        value = json.dumps({"amount": 1, "at": f"2026-01-01T10:{minute}:00Z"})
        producer.produce("orders", value.encode())
    producer.produce("orders", b"no order")
    assert producer.flush(100) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
    consumer.close()


def use_more(bootstrap: str) -> None:
    """Use what other metrics are about: a share group, a bounded topic, and a request that fails."""
    for _ in queue("orders", group="workers", broker=bootstrap, idle_timeout="1 second"):
        pass
    bounded = {"headrace_overflow": "drop-oldest", "headrace_overflow_records": "1"}
    create(bootstrap, "recent", headrace_overflow_groups="readers", **bounded)
    producer = Producer({"bootstrap.servers": bootstrap})
    for _ in range(2):
        producer.produce("recent", b"{}")
        assert producer.flush(100) == 0
    with pytest.raises(KafkaException):
        AdminClient({"bootstrap.servers": bootstrap}).delete_topics(["missing"])["missing"].result(100)


@pytest.fixture(scope="module")
def prometheus(pages: Pages, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    targets = {f"headrace-{name}": address for name, address in pages._asdict().items()}
    with Prometheus(tmp_path_factory.mktemp("server"), targets) as server:
        wait_until(lambda: len(server.query('up{job=~"headrace.*"} == 1')) == len(targets), "all targets")
        yield server


@pytest.mark.parametrize("part", Pages._fields)
def test_promtool_accepts_each_page(pages: Pages, part: str) -> None:
    _, _, text = get(f"http://{getattr(pages, part)}/metrics")
    assert promtool("check", "metrics", page=text) == ""


def test_promtool_accepts_rules_and_configuration() -> None:
    promtool("check", "rules", str(RULES))
    promtool("check", "config", str(DEPLOY / "prometheus/prometheus.yml"))


def test_every_query_of_the_dashboard_has_values(prometheus: Prometheus) -> None:
    dashboard = json.loads((DEPLOY / "grafana/headrace.json").read_text())
    targets = [target for panel in dashboard["panels"] for target in panel.get("targets", ())]
    for target in targets:
        query = target["expr"].replace("$__rate_interval", "20s")
        wait_until(lambda query=query: prometheus.query(query) != [], query, seconds=300)


def test_an_alert_fires_for_a_job_that_has_failed(prometheus: Prometheus) -> None:
    wait_until(lambda: "HeadraceJobFailed" in prometheus.firing(), "the alert")
    (series,) = prometheus.query('ALERTS{alertname="HeadraceJobFailed"}')
    assert series["metric"]["job_name"] == "broken"
    assert "HeadraceTargetDown" not in prometheus.firing()
