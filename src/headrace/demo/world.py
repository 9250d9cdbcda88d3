"""What happens around the demo's shop: orders, payments, clicks of phones with wrong clocks, and changes.

The world remembers what it did, so that the check can tell what has to come out of it.
"""

from __future__ import annotations

import json
import random
import threading
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Producer

from headrace.demo.database import CATEGORIES, CITIES, CUSTOMERS, PRODUCTS, Order, ShopDatabase, address_of

if TYPE_CHECKING:
    from datetime import datetime

    from headrace.demo.clock import ShopClock

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
class Click:
    """What a click was in truth."""

    product: int
    at: datetime
    city: str


class World(threading.Thread):
    """Goes on from `start` to `close`."""

    def __init__(self, bootstrap: str, database: ShopDatabase, clock: ShopClock) -> None:
        super().__init__(name="world", daemon=True)
        self.orders: dict[str, Order] = {}
        self.paid: set[str] = set()
        self.clicks: dict[int, Click] = {}
        self.garbled = 0
        self._database = database
        self._clock = clock
        self._closing = threading.Event()
        self._due: deque[tuple[datetime, str]] = deque()
        self._cities: dict[int, list[tuple[datetime, str]]] = {}
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, **_QUIET}
        )

    def open_shop(self) -> None:
        """Make the tables; before anything is captured."""
        now = self._clock.now()
        self._database.open_shop(now)
        self._cities = {number: [(now, CITIES[0])] for number in range(1, len(CUSTOMERS) + 1)}

    def run(self) -> None:
        """Go on until it is closed."""
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
        self._pass_the_night()
        self._producer.flush(DELIVERY_S)

    def close(self) -> None:
        """Let nothing more happen; returns when all that did is in the log."""
        self._closing.set()
        if self.is_alive():
            self.join()

    def _order(self, order_id: str) -> None:
        customer = random.randint(1, len(CUSTOMERS))
        order = Order(
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
            # The payment is as old as it is, but never older than one before it: it comes in time.
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
        self.clicks[number] = Click(product, at, self._city(customer, at))
        times = {"occurred": at + skew, "sent": received + skew, "received": received}
        document = {"click": number, "customer": customer, "product": product}
        self._write("clicks", str(customer), document | {name: t.isoformat() for name, t in times.items()})

    def _favourite(self) -> int:
        """A product; some are looked at more than others."""
        return min(random.randint(1, len(PRODUCTS)), random.randint(1, len(PRODUCTS)))

    def _city(self, customer: int, at: datetime) -> str:
        """Where the customer lived then; before the first day nobody knows."""
        moves = self._cities[customer]
        place = bisect_right(moves, at, key=lambda move: move[0])
        return moves[place - 1][1] if place else ""

    def _change(self) -> None:
        """Somebody moves, a product gets a price and a category, or a category a title."""
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

    def _pass_the_night(self) -> None:
        """What is due is paid; then an order, its payment and a click of the next day close all windows."""
        self._pay(all_of_them=True)
        self._producer.flush(DELIVERY_S)
        self._clock.jump(NIGHT)
        now = self._clock.now()
        order = Order(order_id="next-day", customer=1, email=address_of(1), product=1, amount=100, at=now)
        self._database.place(order)
        at = now.isoformat()
        self._write("payments", order.order_id, {"order_id": order.order_id, "paid": 100, "paid_at": at})
        document = {"click": 0, "customer": 1, "product": 1, "occurred": at, "sent": at, "received": at}
        self._write("clicks", "1", document)

    def _write(self, topic: str, key: str | None, value: Any) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self._producer.produce(topic, data, key=key)
