"""A broker with a bit of everything that the console shows, and a console for it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from confluent_kafka import Consumer, Producer

from headrace import queue
from headrace.client.cluster import Cluster
from headrace.client.topics import NewTopic, create_topics
from headrace.console.app import Console, ConsoleOptions
from headrace.events import EventStore
from headrace.gateway.options import GatewayOptions
from headrace.gateway.server import GatewayThread
from headrace.metrics.families import Histogram
from headrace.streams.job_status import RunStatus
from headrace.streams.report import JobMetrics
from headrace.streams.supervisor import State, SupervisedJob, Supervisor
from tests.events.cart import Cart
from tests.feeds.view_writer import ViewWriter

PROGRAM = Path(__file__).parents[1] / "events/cart.py"
PRODUCTS = ("tea", "coffee", "cocoa", "water")
JOB = "shop.revenue"
PLAN: dict[str, Any] = {
    "job": JOB,
    "operators": [
        {
            "name": "source-1",
            "kind": "source",
            "place": "pipeline.py, line 9",
            "keeps_state": False,
            "parameters": {"topic": "orders"},
            "inputs": [],
        },
        {
            "name": "window-1",
            "kind": "window",
            "place": "pipeline.py, line 12",
            "keeps_state": True,
            "parameters": {"state": "windows of 60 s by product"},
            "inputs": [{"operators": ["source-1"], "steps": [], "stateful": []}],
        },
    ],
    "rows": {"operators": ["window-1"], "steps": ["Project"], "stateful": []},
    "columns": "struct<id:string,n:bigint>",
    "held_back_ms": 0,
}


class SimpleRun:
    """A run of a job without Spark, as the supervisor and the status see it."""

    def __init__(self) -> None:
        self.name = "revenue"
        self.metrics = JobMetrics(batch_time=Histogram((1.0,)), batch_phases_ms={"addBatch": 80})
        self.metrics.add(
            {
                "numInputRows": 120,
                "durationMs": {"addBatch": 80, "walCommit": 12, "triggerExecution": 110},
                "eventTime": {"watermark": "2026-01-01T00:00:00.000Z"},
                "stateOperators": [{"numRowsTotal": 4, "memoryUsedBytes": 512}],
            },
            now_s=0.0,
        )
        view = SimpleNamespace(name="revenue")
        into = SimpleNamespace(name="revenue", topics=(view,), views=(view,), sinks=())
        self.job = SimpleNamespace(
            into=into, purpose="Revenue by product.", place="pipeline.py", dead_topic="revenue.dead",
            late_topic=None,
        )  # fmt: skip
        self.folder = SimpleNamespace(reset=self._reset)
        self.calls: list[Any] = []
        self._is_active = True

    def _reset(self, **position: Any) -> None:
        self.calls.append(("reset", position))

    def inputs(self) -> tuple[str, ...]:
        return ("orders",)

    def explained(self) -> Any:
        return SimpleNamespace(to_json=lambda: PLAN)

    def start(self) -> None:
        self.calls.append("start")
        self._is_active = True

    def is_active(self) -> bool:
        return self._is_active

    def is_settled(self) -> bool:
        return True

    def ask_to_stop(self) -> None:
        self._is_active = False

    stop = ask_to_stop


class RunningJob:
    """A supervisor with one job, whose turns the test does."""

    def __init__(self, bootstrap: str) -> None:
        self.run = SimpleRun()
        self.supervisor = Supervisor(clock=lambda: 0.0, tell=lambda _: None)
        self.supervisor.add([self.run])
        self.status = RunStatus(bootstrap, "shop", self.supervisor, [self.run], [])  # type: ignore[list-item]

    def turn(self) -> SupervisedJob:
        self.supervisor.turn()
        self.status.turn()
        return self.supervisor.charges["revenue"]


def fill(bootstrap: str) -> None:
    """Topics, a group, a queue with dead letters, a view, and aggregates."""
    with Cluster.of(bootstrap) as cluster:
        topics = [NewTopic(name="orders", partitions=3), NewTopic(name="mails", partitions=1)]
        create_topics(cluster, topics)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(120):
        product = PRODUCTS[number % 4]
        value = {"n": number, "product": product, "amount": number * 1.25, "paid": number % 3 == 0}
        headers: Any = {"trace": f"t{number}", "source": "web"}
        producer.produce("orders", json.dumps(value), product, headers=headers)
    for number in range(5):
        producer.produce("mails", json.dumps({"to": f"user{number}@example.com"}), f"mail-{number}")
    producer.flush()
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["orders"])
    consumer.consume(60, 30)
    consumer.commit(asynchronous=False)
    consumer.close()
    for message in queue("mails", group="mailer", broker=bootstrap, idle_timeout=timedelta(seconds=1)):
        if message.offset in (1, 3):
            message.reject()
    view = ViewWriter(bootstrap, name="revenue")
    view.write(*((product, index * 100 + 7) for index, product in enumerate(PRODUCTS)))
    with EventStore("shop", broker=bootstrap, partitions=1) as store:
        store.execute(Cart, "cart-1", "create", owner="alice")
        store.execute(Cart, "cart-1", "add", product="tea", quantity=2)
        store.execute(Cart, "cart-1", "add", product="cocoa", quantity=1)


@contextmanager
def console(bootstrap: str, *, read_only: bool = False) -> Iterator[str]:
    """The address of a console."""
    options = ConsoleOptions(read_only=read_only, programs=(PROGRAM,))
    gateway = GatewayOptions(broker=bootstrap, read_only=read_only)
    with GatewayThread(gateway, Console(options).routes()) as running:
        yield running.url


__all__ = ["JOB", "RunningJob", "State", "console", "fill"]
