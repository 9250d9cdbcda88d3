"""The scenario `log`: two consumer groups read orders, the broker is killed, and no order may be lost."""

from __future__ import annotations

import json
import random
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.broker.process import BrokerProcess
from headrace.client.bootstrap import client_config
from headrace.demo import print_results

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

ORDERS: Final = "orders"
PARTITIONS: Final = 4
ORDERS_PER_SECOND: Final = 2_000
PRODUCTS: Final = ("tea", "cup", "kettle", "honey", "sugar", "milk", "spoon", "tray", "biscuit", "lemon")
# The broker is killed on purpose: librdkafka's warnings about it would only hide the picture.
_QUIET: Final = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}


def create_shop(bootstrap: str) -> None:
    """Create the topic of orders."""
    admin = AdminClient(client_config(bootstrap, _QUIET))
    admin.create_topics([NewTopic(ORDERS, PARTITIONS, 1)])[ORDERS].result()


class OrderProducer(threading.Thread):
    """An idempotent producer of numbered orders at a constant rate."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="customers", daemon=True)
        self.acknowledged: set[int] = set()
        self.refused = 0
        self._closing = threading.Event()
        self._producer = Producer(
            client_config(bootstrap, {"enable.idempotence": True, "linger.ms": 2, **_QUIET})
        )

    def run(self) -> None:
        """Produce orders until `close`, then wait for all acknowledgments."""
        begin = time.monotonic()
        number = 0
        while not self._closing.is_set():
            due = int((time.monotonic() - begin) * ORDERS_PER_SECOND)
            for order in range(number, due):
                self._order(order)
            number = max(number, due)
            self._producer.poll(0.01)
        self._producer.flush()

    def _order(self, number: int) -> None:
        product = random.choice(PRODUCTS)
        order = {"order": number, "product": product, "amount": random.randint(1, 9)}
        self._producer.produce(ORDERS, json.dumps(order), key=product, on_delivery=self._delivered)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.add(_number(message))
        else:
            self.refused += 1

    def close(self) -> None:
        """Stop producing; returns when the last order is acknowledged."""
        self._closing.set()
        self.join()


class OrderConsumer(threading.Thread):
    """One consumer of a group, which commits its offsets."""

    def __init__(self, bootstrap: str, group: str, name: str) -> None:
        super().__init__(name=f"{group}/{name}", daemon=True)
        self.group = group
        self.seen: set[int] = set()
        self.partitions: list[int] = []
        self._closing = threading.Event()
        self._consumer = Consumer(
            client_config(
                bootstrap,
                {
                    "group.id": group,
                    "client.id": name,
                    "auto.offset.reset": "earliest",
                    "session.timeout.ms": 6000,
                    **_QUIET,
                },
            )
        )

    def run(self) -> None:
        """Read until `close`."""
        self._consumer.subscribe([ORDERS], on_assign=self._assigned, on_revoke=self._revoked)
        while not self._closing.is_set():
            for message in self._consumer.consume(500, 0.1):
                if message.error() is None:
                    self.seen.add(_number(message))
        self._consumer.close()

    def _assigned(self, _consumer: Any, partitions: list[Any]) -> None:
        self.partitions = sorted(partition.partition for partition in partitions)

    def _revoked(self, _consumer: Any, _partitions: list[Any]) -> None:
        self.partitions = []

    def close(self) -> None:
        """Leave the group."""
        self._closing.set()
        self.join()


def read_back(bootstrap: str) -> Iterator[tuple[int, int]]:
    """Partition and number of every order in the topic."""
    consumer = Consumer(
        client_config(bootstrap, {"group.id": "check", "enable.auto.commit": False, **_QUIET})
    )
    try:
        for index in range(PARTITIONS):
            partition = TopicPartition(ORDERS, index)
            _, end = consumer.get_watermark_offsets(partition)
            consumer.assign([TopicPartition(ORDERS, index, 0)])
            position = 0
            while position < end:
                for message in consumer.consume(1000, 1.0):
                    if message.error() is None:
                        position = (message.offset() or 0) + 1
                        yield index, _number(message)
    finally:
        consumer.close()


def _number(message: Message) -> int:
    """The number of the order in a record."""
    number: int = json.loads(message.value() or b"null")["order"]
    return number


PICTURES_PER_SECOND: Final = 4
TIMEOUT_SECONDS: Final = 30
MIN_SECONDS: Final = 4


class LogDemo:
    """One run of the scenario."""

    def __init__(self, console: Console, seconds: float) -> None:
        self._console = console
        self._seconds = max(seconds, MIN_SECONDS)
        self._news: list[str] = []

    def run(self) -> bool:
        """Run the scenario. Returns whether all checks held."""
        with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
            broker = BrokerProcess(Path(folder))
            begin = time.perf_counter()
            with broker:
                self._report(
                    f"The broker listens on {broker.bootstrap} ({time.perf_counter() - begin:.2f} s)."
                )
                create_shop(broker.bootstrap)
                return self._run_scenario(broker)

    def _report(self, news: str) -> None:
        self._news.append(news)

    def _run_scenario(self, broker: BrokerProcess) -> bool:
        producer = OrderProducer(broker.bootstrap)
        consumers = [
            OrderConsumer(broker.bootstrap, "billing", "A"),
            OrderConsumer(broker.bootstrap, "billing", "B"),
            OrderConsumer(broker.bootstrap, "audit", "C"),
        ]
        for thread in (producer, *consumers):
            thread.start()
        self._report("Orders arrive. A and B share the work of one group; C, in another, gets everything.")
        with Live(console=self._console, refresh_per_second=PICTURES_PER_SECOND) as live:
            self._watch(live, producer, consumers, self._seconds / 2)
            self._crash(broker)
            self._watch(live, producer, consumers, self._seconds / 2)
            producer.close()
            self._report("The shop is closed; the consumers read the remaining orders.")
            self._drain(live, producer, consumers)
        for consumer in consumers:
            consumer.close()
        return self._check(broker, producer, consumers)

    def _crash(self, broker: BrokerProcess) -> None:
        broker.kill()
        begin = time.perf_counter()
        broker.start()
        self._report(
            f"The broker was killed (kill -9), and is ready after {time.perf_counter() - begin:.2f} s."
        )

    def _watch(
        self, live: Live, producer: OrderProducer, consumers: list[OrderConsumer], seconds: float
    ) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            live.update(self._picture(producer, consumers))
            time.sleep(1 / PICTURES_PER_SECOND)

    def _drain(self, live: Live, producer: OrderProducer, consumers: list[OrderConsumer]) -> None:
        end = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < end and _missing(producer, consumers):
            live.update(self._picture(producer, consumers))
            time.sleep(1 / PICTURES_PER_SECOND)
        live.update(self._picture(producer, consumers))

    def _picture(self, producer: OrderProducer, consumers: list[OrderConsumer]) -> RenderableType:
        acknowledged = len(producer.acknowledged)
        table = Table(title=f"topic {ORDERS}: {acknowledged:,} orders acknowledged", title_justify="left")
        table.add_column("group")
        table.add_column("consumer")
        table.add_column("partitions")
        table.add_column("orders", justify="right")
        for consumer in consumers:
            shares = ", ".join(map(str, consumer.partitions)) or "none"
            group, name = consumer.name.split("/")
            table.add_row(group, name, shares, f"{len(consumer.seen):,}")
        return Group(*(Text(f"· {line}") for line in self._news), table)

    def _check(self, broker: BrokerProcess, producer: OrderProducer, consumers: list[OrderConsumer]) -> bool:
        stored = list(read_back(broker.bootstrap))
        numbers = [number for _, number in stored]
        results = {
            "every acknowledged order is in the log": producer.acknowledged <= set(numbers),
            "no order is duplicated": len(numbers) == len(set(numbers)),
            "each partition is in order": all(a < b for (p, a), (q, b) in pairwise(stored) if p == q),
            "every order reached billing, by A or by B": not _missing(producer, consumers[:2]),
            "every order reached audit": not _missing(producer, consumers[2:]),
        }
        held = print_results(self._console, results)
        self._console.print(
            f"\n{len(producer.acknowledged):,} orders and one crash. Where to look next: `headrace --help`, "
            "the example in README.md, and docs/."
        )
        return held


def _missing(producer: OrderProducer, consumers: list[OrderConsumer]) -> set[int]:
    """Acknowledged orders that a group has not read."""
    missing: set[int] = set()
    for group in {consumer.group for consumer in consumers}:
        seen = set().union(*(set(consumer.seen) for consumer in consumers if consumer.group == group))
        missing |= producer.acknowledged - seen
    return missing
