"""Writes orders, payments and machine readings until Ctrl-C: `python traffic.py`."""

import json
import os
import random
import time
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Producer

BROKER = os.environ.get("HEADRACE_BROKER", "127.0.0.1:9092")
PRODUCTS = {"tea": ("food", 4.5), "bread": ("food", 3.0), "cup": ("china", 9.0), "teapot": ("china", 34.0)}
PAUSE_S = 0.2


class Traffic:
    """Generates the events of the shop, step by step."""

    def __init__(self) -> None:
        self._producer = Producer({"bootstrap.servers": BROKER})
        self._open: list[tuple[float, str, float]] = []
        self.orders = self.payments = self.readings = 0
        for product, (category, _) in PRODUCTS.items():
            self._send("products", product, product=product, category=category)

    def step(self) -> None:
        """Write an order, the payments that are due, and a machine reading."""
        self._order()
        self._pay()
        device, heat = random.choice(["press-7", "press-8", "oven-1"]), round(random.gauss(75, 10), 1)
        self._send("device_events", device, device=device, temperature=heat, at=now())
        self.readings += 1
        self._producer.poll(0)

    def _order(self) -> None:
        product = random.choice(list(PRODUCTS))
        order, amount = f"o{time.time_ns() // 1_000_000}", PRODUCTS[product][1]
        self._send("orders", order, order_id=order, product=product, amount=amount, at=now())
        self.orders += 1
        if random.random() < 0.8:  # the others are never paid
            self._open.append((time.time() + random.uniform(0.5, 4), order, amount))

    def _pay(self) -> None:
        due = [payment for payment in self._open if payment[0] <= time.time()]
        self._open = [payment for payment in self._open if payment not in due]
        for _, order, amount in due:
            self._send("payments", order, order_id=order, paid=amount, paid_at=now())
            self.payments += 1

    def _send(self, topic: str, key: str, **fields: Any) -> None:
        self._producer.produce(topic, key=key, value=json.dumps(fields))

    def close(self) -> None:
        """Wait until all records are acknowledged."""
        self._producer.flush(10)


def now() -> str:
    return datetime.now(UTC).isoformat()


def main() -> None:
    traffic = Traffic()
    try:
        while True:
            traffic.step()
            if traffic.orders % 5 == 0:
                print(f"{traffic.orders} orders, {traffic.payments} payments, {traffic.readings} readings")
            time.sleep(PAUSE_S)
    except KeyboardInterrupt:
        traffic.close()


if __name__ == "__main__":
    main()
