"""What happens in the world of the demo: orders, payments, and machines that report their temperature."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import deque
from datetime import UTC, datetime
from typing import Any, Final

from confluent_kafka import Producer

from headrace.demo.shop import PRODUCTS

TURN_S: Final = 0.1
ORDERS_PER_TURN: Final = 10
EVENTS_PER_TURN: Final = 20
PAYMENT_AFTER_S: Final = 1.0
PAYING_SHARE: Final = 0.8
HOT_SHARE: Final = 0.01
GARBLED_SHARE: Final = 0.003
GARBLED: Final = b'{"device": "press-7", "temperature": 9?'
DELIVERY_S: Final = 60.0
FOOD: Final = frozenset({"honey", "sugar", "milk", "biscuit", "lemon", "tea"})
CATEGORIES: Final = {product: "food" if product in FOOD else "kitchen" for product in PRODUCTS}
# The broker is killed on purpose: librdkafka's warnings about it would only hide the picture.
_QUIET: Final = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}


class World(threading.Thread):
    """Writes events at a steady rate, and knows which of them were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="world", daemon=True)
        self.paid: set[str] = set()
        """The orders whose payments are in the log."""
        self.hot = 0
        self.garbled = 0
        self.written = 0
        self._closing = threading.Event()
        self._due: deque[tuple[float, str]] = deque()
        self._number = 0
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, **_QUIET}
        )

    def run(self) -> None:
        """Go on until it is closed; orders that are to be paid are paid first."""
        for product, category in CATEGORIES.items():
            self._write("products", product, {"product": product, "category": category})
        self._producer.flush(DELIVERY_S)
        while not self._closing.wait(TURN_S):
            for _ in range(ORDERS_PER_TURN):
                self._order()
            for _ in range(EVENTS_PER_TURN):
                self._report()
            self._pay(time.monotonic() - PAYMENT_AFTER_S)
            self._producer.poll(0)
        self._pay(time.monotonic())
        self._producer.flush(DELIVERY_S)

    def close(self) -> None:
        """Let nothing more happen; returns when all that did is in the log."""
        self._closing.set()
        self.join()

    def _order(self) -> None:
        self._number += 1
        order_id = f"o{self._number}"
        amount = round(random.uniform(1, 99), 2)
        order = {"order_id": order_id, "product": random.choice(PRODUCTS), "amount": amount, "at": _now()}
        self._write("orders", order_id, order)
        if random.random() < PAYING_SHARE:
            self._due.append((time.monotonic(), order_id))

    def _pay(self, ordered_before: float) -> None:
        while self._due and self._due[0][0] <= ordered_before:
            _, order_id = self._due.popleft()
            payment = {"order_id": order_id, "paid": round(random.uniform(1, 99), 2), "paid_at": _now()}
            self._write("payments", order_id, payment, lambda order_id=order_id: self.paid.add(order_id))

    def _report(self) -> None:
        device = f"press-{random.randint(1, 40)}"
        if random.random() < GARBLED_SHARE:
            self._write("device_events", device, GARBLED, lambda: self._count("garbled"))
            return
        is_hot = random.random() < HOT_SHARE
        temperature = round(random.uniform(91, 99) if is_hot else random.uniform(40, 80), 1)
        event = {"device": device, "temperature": temperature, "at": _now()}
        self._write("device_events", device, event, (lambda: self._count("hot")) if is_hot else None)

    def _count(self, what: str) -> None:
        setattr(self, what, getattr(self, what) + 1)

    def _write(self, topic: str, key: str, value: Any, then: Any = None) -> None:
        def delivered(error: Any, _message: Any) -> None:
            if error is None:
                self.written += 1
                if then is not None:
                    then()

        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self._producer.produce(topic, data, key=key, on_delivery=delivered)


def _now() -> str:
    return datetime.now(UTC).isoformat()
