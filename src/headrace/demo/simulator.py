"""Simulates the customers of the demo's shop on a fast clock, so that windows close within seconds."""

from __future__ import annotations

import json
import random
import threading
import time
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from confluent_kafka import Producer

from headrace.client.bootstrap import client_config
from headrace.demo.database import (
    CATEGORIES,
    CITIES,
    CUSTOMERS,
    PRODUCTS,
    ShopDatabase,
    ShopOrder,
    address_of,
)

MINUTE_S: Final = 4.0
"""Real seconds of a simulated minute."""
OPENING: Final = datetime(2026, 6, 1, 9, tzinfo=UTC)


class ShopClock:
    """A clock that starts at nine o'clock and runs faster than real time."""

    def __init__(self) -> None:
        self._begin_s = time.monotonic()
        self._ahead = timedelta()

    def now(self) -> datetime:
        """The simulated time."""
        passed_s = (time.monotonic() - self._begin_s) * 60 / MINUTE_S
        return OPENING + self._ahead + timedelta(seconds=passed_s)

    def jump(self, by: timedelta) -> None:
        """Advance the simulated time by `by`."""
        self._ahead += by


TURN_S: Final = 0.1
CLICKS_PER_TURN: Final = 3
TURNS_PER_CHANGE: Final = 5
PAYING_SHARE: Final = 0.8
OFFLINE_SHARE: Final = 0.005
GARBLED_SHARE: Final = 0.005
GARBLED: Final = b'{"click": 12, "customer": 3, "occ'
SKEWS: Final = (timedelta(), timedelta(minutes=-40), timedelta(minutes=25), timedelta(days=-3000))
"""What the clocks of phones are wrong by; the last one has never been set, and its times are not believed."""
NIGHT: Final = timedelta(hours=2)
DELIVERY_S: Final = 120.0
_QUIET: Final = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}


@dataclass(frozen=True, slots=True)
class SimulatedClick:
    """A click with its real time, which may differ from the phone's clock."""

    product: int
    at: datetime
    city: str


class ShopSimulator(threading.Thread):
    """Produces orders, payments, clicks and table changes from `start` to `close`."""

    def __init__(self, bootstrap: str, database: ShopDatabase, clock: ShopClock) -> None:
        super().__init__(name="world", daemon=True)
        self.orders: dict[str, ShopOrder] = {}
        self.paid: set[str] = set()
        self.clicks: dict[int, SimulatedClick] = {}
        self.garbled = 0
        self._database = database
        self._clock = clock
        self._closing = threading.Event()
        self._due: deque[tuple[datetime, str]] = deque()
        self._cities: dict[int, list[tuple[datetime, str]]] = {}
        self._producer = Producer(
            client_config(bootstrap, {"enable.idempotence": True, "linger.ms": 5, **_QUIET})
        )

    def create_shop(self) -> None:
        """Create the tables, before the capture starts."""
        now = self._clock.now()
        self._database.create_shop(now)
        self._cities = {number: [(now, CITIES[0])] for number in range(1, len(CUSTOMERS) + 1)}

    def run(self) -> None:
        """Produce until `close`."""
        turn = 0
        while not self._closing.wait(TURN_S):
            turn += 1
            self._order(f"o{turn}")
            for _ in range(CLICKS_PER_TURN):
                self._click()
            if turn % TURNS_PER_CHANGE == 0:
                self._change()
            self._pay()
            self._producer.poll(0)
        self._end_day()
        self._producer.flush(DELIVERY_S)

    def close(self) -> None:
        """Stop; returns when all records are acknowledged."""
        self._closing.set()
        if self.is_alive():
            self.join()

    def _order(self, order_id: str) -> None:
        customer = random.randint(1, len(CUSTOMERS))
        order = ShopOrder(
            order_id=order_id,
            customer=customer,
            email=address_of(customer),
            product=random.randint(1, len(PRODUCTS)),
            amount=random.randint(100, 9900),
            at=self._clock.now(),
        )
        self._database.place(order)
        self.orders[order_id] = order
        if random.random() < PAYING_SHARE:
            self._due.append((order.at + timedelta(seconds=random.randint(20, 120)), order_id))

    def _pay(self, *, all_of_them: bool = False) -> None:
        now = self._clock.now()
        waiting = [(at, order_id) for at, order_id in self._due if at > now and not all_of_them]
        for at, order_id in sorted(set(self._due) - set(waiting)):
            # The payment is as old as it is, but never older than one before it: it is not late.
            self._write_payment(order_id, max(at, now))
        self._due = deque(waiting)

    def _write_payment(self, order_id: str, at: datetime) -> None:
        payment = {"order_id": order_id, "paid": self.orders[order_id].amount, "paid_at": at.isoformat()}
        self._write("payments", order_id, payment)
        self.paid.add(order_id)

    def _click(self) -> None:
        if random.random() < GARBLED_SHARE:
            self.garbled += 1
            self._write("clicks", None, GARBLED)
            return
        customer, product = random.randint(1, len(CUSTOMERS)), self._favourite()
        received = self._clock.now()
        skew = SKEWS[customer % len(SKEWS)]
        is_believed = abs(skew) < timedelta(days=7)
        # A phone without a connection keeps its clicks; they come late for their windows.
        is_offline = is_believed and random.random() < OFFLINE_SHARE
        at = received - timedelta(minutes=15) if is_offline else received
        number = len(self.clicks) + 1
        self.clicks[number] = SimulatedClick(product, at, self._city(customer, at))
        times = {"occurred": at + skew, "sent": received + skew, "received": received}
        document = {"click": number, "customer": customer, "product": product}
        self._write("clicks", str(customer), document | {name: t.isoformat() for name, t in times.items()})

    def _favourite(self) -> int:
        """A random product; some are more popular than others."""
        return min(random.randint(1, len(PRODUCTS)), random.randint(1, len(PRODUCTS)))

    def _city(self, customer: int, at: datetime) -> str:
        """The customer's city at that time; empty before the first day."""
        moves = self._cities[customer]
        place = bisect_right(moves, at, key=lambda move: move[0])
        return moves[place - 1][1] if place else ""

    def _change(self) -> None:
        """Update the city of a customer, the price and category of a product, and the title of a category."""
        customer, city, at = random.randint(1, len(CUSTOMERS)), random.choice(CITIES), self._clock.now()
        self._database.change("UPDATE customers SET city = %s, since = %s WHERE id = %s", city, at, customer)
        self._cities[customer].append((at, city))
        self._database.change(
            "UPDATE products SET price = %s, category = %s WHERE id = %s",
            random.randint(100, 9900),
            random.randint(1, len(CATEGORIES)),
            random.randint(1, len(PRODUCTS)),
        )
        category = random.randint(1, len(CATEGORIES))
        title = random.choice((CATEGORIES[category - 1], f"{CATEGORIES[category - 1]} of the day"))
        self._database.change("UPDATE categories SET title = %s WHERE id = %s", title, category)

    def _end_day(self) -> None:
        """Write the remaining payments, and close all windows with events of the next day."""
        self._pay(all_of_them=True)
        self._producer.flush(DELIVERY_S)
        self._clock.jump(NIGHT)
        now = self._clock.now()
        order = ShopOrder(order_id="next-day", customer=1, email=address_of(1), product=1, amount=100, at=now)
        self._database.place(order)
        at = now.isoformat()
        self._write("payments", order.order_id, {"order_id": order.order_id, "paid": 100, "paid_at": at})
        document = {"click": 0, "customer": 1, "product": 1, "occurred": at, "sent": at, "received": at}
        self._write("clicks", "1", document)

    def _write(self, topic: str, key: str | None, value: Any) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self._producer.produce(topic, data, key=key)
