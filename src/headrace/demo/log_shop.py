"""The shop of the demo: orders come in, a group bills them, another one audits them.

Real clients in threads, each with its own tally, so that the picture can be drawn while they work.
"""

from __future__ import annotations

import json
import random
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

if TYPE_CHECKING:
    from collections.abc import Iterator

ORDERS: Final = "orders"
PARTITIONS: Final = 4
ORDERS_PER_SECOND: Final = 2_000
PRODUCTS: Final = ("tea", "cup", "kettle", "honey", "sugar", "milk", "spoon", "tray", "biscuit", "lemon")
# The broker is killed on purpose: librdkafka's warnings about it would only hide the picture.
_QUIET: Final = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}


def open_shop(bootstrap: str) -> None:
    """Make the topic of orders."""
    admin = AdminClient({"bootstrap.servers": bootstrap, **_QUIET})
    admin.create_topics([NewTopic(ORDERS, PARTITIONS, 1)])[ORDERS].result()


class Customers(threading.Thread):
    """Numbered orders, written by an idempotent producer at a steady rate."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="customers", daemon=True)
        self.acknowledged: set[int] = set()
        self.refused = 0
        self._closing = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2, **_QUIET}
        )

    def run(self) -> None:
        """Order until the shop closes, then wait for every acknowledgement."""
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
        """Take no more orders; returns when the last one is acknowledged."""
        self._closing.set()
        self.join()


class Clerk(threading.Thread):
    """One consumer of a group: reads its share of the partitions and commits as it goes."""

    def __init__(self, bootstrap: str, group: str, name: str) -> None:
        super().__init__(name=f"{group}/{name}", daemon=True)
        self.group = group
        self.seen: set[int] = set()
        self.partitions: list[int] = []
        self._closing = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "client.id": name,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                **_QUIET,
            }
        )

    def run(self) -> None:
        """Read until the shop closes."""
        self._consumer.subscribe([ORDERS], on_assign=self._took, on_revoke=self._gave)
        while not self._closing.is_set():
            for message in self._consumer.consume(500, 0.1):
                if message.error() is None:
                    self.seen.add(_number(message))
        self._consumer.close()

    def _took(self, _consumer: Any, partitions: list[Any]) -> None:
        self.partitions = sorted(partition.partition for partition in partitions)

    def _gave(self, _consumer: Any, _partitions: list[Any]) -> None:
        self.partitions = []

    def close(self) -> None:
        """Leave the group."""
        self._closing.set()
        self.join()


def read_back(bootstrap: str) -> Iterator[tuple[int, int]]:
    """Partition and number of every order that the log holds now, from its start to its end."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "check", "enable.auto.commit": False, **_QUIET}
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
