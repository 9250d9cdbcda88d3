"""The checks of the demo: they read the results of its jobs, and compare them with what the simulator did.

They can run at any time. While orders arrive, some results are missing; at the end each result must exist
exactly once. A duplicate or a wrong row is an error at any time.

Topics are read with read_committed; PostgreSQL, Redis, the search index and the mail server with their own
clients.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import redis
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from headrace.client.bootstrap import client_config
from headrace.demo.database import PRODUCTS
from headrace.sinks.search import NoSuchIndex, SearchIndex

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from headrace.demo.database import ShopDatabase
    from headrace.demo.mail_server import DemoMailServer
    from headrace.demo.simulator import ShopSimulator


INPUTS: Final = ("orders", "payments", "clicks")
OUTPUTS: Final = (
    "order_status",
    "visits",
    "revenue",
    "hot_products",
    "hot_products.late",
    "hot_products.dead",
    "spend",
    "catalogue",
    "order_status.mailer.dead",
)
CAPTURED: Final = ("shop.public.customers", "shop.public.products", "shop.public.categories")
STOCK: Final = "shop.Stock.events"
READ: Final = (*INPUTS, *OUTPUTS, *CAPTURED, STOCK)
_QUIET: Final = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}
LAST: Final = "next-day"
"""The last order, which only advances event time."""
WINDOWS: Final = 5
"""Windows per click: five minutes, every minute."""


class OutputTopicReader(threading.Thread):
    """Reads the output topics from the beginning until `close`; each has one partition."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="outcome", daemon=True)
        self.records: Counter[str] = Counter()
        """Records read, by topic."""
        self.status: dict[str, dict[str, Any]] = {}
        self.visits: dict[int, dict[str, Any]] = {}
        self.doubled: Counter[str] = Counter()
        """Duplicates, by topic, where none may be."""
        self.hot: dict[tuple[datetime, int], int] = {}
        self.late: Counter[tuple[datetime, int]] = Counter()
        self.late_clicks: set[int] = set()
        self.spend: dict[int, int] = {}
        self.catalogue: dict[int, dict[str, Any]] = {}
        self.dead_mails: set[str] = set()
        self.stock: Counter[str] = Counter()
        self.reserved: set[str] = set()
        self.oversold = 0
        self._closing = threading.Event()
        self._consumer = Consumer(
            client_config(
                bootstrap,
                {
                    "group.id": "demo-outputs",
                    "isolation.level": "read_committed",
                    "enable.auto.commit": False,
                    "topic.metadata.refresh.interval.ms": 1000,
                    **_QUIET,
                },
            )
        )

    def run(self) -> None:
        """Read until `close`."""
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING) for topic in READ])
        while not self._closing.is_set():
            for message in self._consumer.consume(500, 0.2):
                if message.error() is None:
                    self._take(message)
        self._consumer.close()

    def close(self) -> None:
        """Stop reading."""
        self._closing.set()
        if self.is_alive():
            self.join()

    def _take(self, message: Any) -> None:
        topic = message.topic()
        self.records[topic] += 1
        if topic == STOCK:
            self._take_stock(message)
        elif topic in OUTPUTS and topic != "hot_products.dead":
            self._take_row(topic, json.loads(message.value()))

    def _take_row(self, topic: str, row: dict[str, Any]) -> None:
        match topic:
            case "order_status":
                self.doubled[topic] += row["order_id"] in self.status
                self.status[row["order_id"]] = row
            case "visits":
                self.doubled[topic] += row["click"] in self.visits
                self.visits[row["click"]] = row
            case "hot_products":
                self.hot[window_of(row)] = row["clicks"]
            case "hot_products.late":
                self.late[window_of(row)] += 1
                self.late_clicks.add(row["click"])
            case "spend":
                self.spend[row["customer"]] = row["spent"]
            case "catalogue":
                self.catalogue[row["id"]] = row
            case "order_status.mailer.dead":
                self.doubled[topic] += row["order_id"] in self.dead_mails
                self.dead_mails.add(row["order_id"])

    def _take_stock(self, message: Any) -> None:
        product, event = message.key().decode(), json.loads(message.value())
        if "pieces" in event:
            self.stock[product] += event["pieces"]
            return
        self.stock[product] -= 1
        self.oversold += self.stock[product] < 0
        self.doubled[STOCK] += event["order"] in self.reserved
        self.reserved.add(event["order"])


def window_of(row: dict[str, Any]) -> tuple[datetime, int]:
    """The window and product of a row."""
    return datetime.fromisoformat(row["window_start"]), row["product"]


_REVENUE: Final = "SELECT window_start, product, orders, revenue FROM revenue"
_STATUS: Final = "SELECT order_id, paid IS NOT NULL FROM order_status"
_PRODUCTS: Final = (
    "SELECT products.id, name, price, title FROM products JOIN categories ON category = categories.id"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalRows:
    """The contents of the external systems at one moment."""

    revenue: Mapping[tuple[datetime, int], tuple[int, int]]
    """Orders and cents of each minute and product, in PostgreSQL."""
    status: Mapping[str, bool]
    """Whether each order is paid, in PostgreSQL."""
    products: Mapping[int, tuple[Any, ...]]
    """The products with their categories, as the database itself joins them."""
    indexed: Mapping[int, tuple[Any, ...]]
    cached: Mapping[int, tuple[Any, ...]]
    spend: Mapping[int, int]
    """What Redis has of each customer."""
    mails: frozenset[str]
    """The orders of the mails in the mailbox."""


class ExternalReader:
    """Reads PostgreSQL, Redis, the search index and the mail server."""

    def __init__(self, database: ShopDatabase, cache: str, index: Path, mailbox: DemoMailServer) -> None:
        self._database = database
        self._cache = cache
        self._index = index
        self._mailbox = mailbox

    def read(self) -> ExternalRows:
        """Their current contents; empty for a system that is down."""
        cached = self._cached("product:*")
        spend = self._cached("spend:*")
        return ExternalRows(
            revenue={
                (start, product): (orders, cents)
                for start, product, orders, cents in self._database.read(_REVENUE)
            },
            status=dict(self._database.read(_STATUS)),
            indexed=self._indexed(),
            cached={int(row["id"]): product_of(row) for row in cached},
            spend={int(row["customer"]): int(row["spent"]) for row in spend},
            products={number: tuple(row) for number, *row in self._database.read(_PRODUCTS)},
            mails=frozenset(number.partition("@")[0] for number in list(self._mailbox.mails)),
        )

    def _indexed(self) -> dict[int, tuple[Any, ...]]:
        try:
            hits = SearchIndex(self._index).find("*", limit=len(PRODUCTS))
        except NoSuchIndex:
            return {}
        return {hit.row["id"]: product_of(hit.row) for hit in hits}

    def _cached(self, pattern: str) -> list[dict[str, str]]:
        with redis.Redis.from_url(self._cache, decode_responses=True) as client:
            try:
                return [row for key in client.scan_iter(pattern) if (row := client.hgetall(key))]
            except (redis.ConnectionError, redis.BusyLoadingError):
                return []


def product_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """A product with its category, in the form that the checks compare."""
    return row["name"], int(row["price"]), row["title"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of a check: expected, found and wrong results."""

    claim: str
    expected: int
    found: int
    wrong: int = 0

    @property
    def holds(self) -> bool:
        """Whether everything expected was found, and nothing is wrong."""
        return self.found == self.expected and not self.wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckInput:
    """The events of the simulator, and all results."""

    simulator: ShopSimulator
    outputs: OutputTopicReader
    external: ExternalRows


def run_checks(seen: CheckInput) -> list[CheckResult]:
    """Run all checks."""
    return [check(seen) for check in CHECKS]


def _status(seen: CheckInput) -> CheckResult:
    status = {key: bool(row.get("paid")) for key, row in list(seen.outputs.status.items()) if key != LAST}
    wrong = sum(is_paid != (key in seen.simulator.paid) for key, is_paid in status.items())
    return CheckResult(
        claim="orders are paid or unpaid, in log and PostgreSQL",
        expected=len(seen.simulator.orders),
        found=sum(seen.external.status.get(key) == is_paid for key, is_paid in status.items()),
        wrong=wrong + seen.outputs.doubled["order_status"],
    )


def _revenue(seen: CheckInput) -> CheckResult:
    truth: dict[tuple[datetime, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for order in list(seen.simulator.orders.values()):
        window = order.at.replace(second=0, microsecond=0), order.product
        count, cents = truth[window]
        truth[window] = count + 1, cents + order.amount
    return CheckResult(
        claim="orders are in their minute's revenue",
        expected=len(seen.simulator.orders),
        found=sum(count for count, _ in seen.external.revenue.values()),
        wrong=sum(truth[window] != sums for window, sums in seen.external.revenue.items()),
    )


def _hot(seen: CheckInput) -> CheckResult:
    truth: Counter[tuple[datetime, int]] = Counter()
    for click in list(seen.simulator.clicks.values()):
        minute = click.at.replace(second=0, microsecond=0)
        truth.update((minute - timedelta(minutes=back), click.product) for back in range(WINDOWS))
    found = Counter(dict(seen.outputs.hot)) + Counter(seen.outputs.late)
    return CheckResult(
        claim="times that clicks are in a window, or late",
        expected=truth.total(),
        found=found.total(),
        wrong=(found - truth).total(),
    )


def _visits(seen: CheckInput) -> CheckResult:
    visits = {number: row for number, row in list(seen.outputs.visits.items()) if number}
    wrong = sum(
        (row.get("city") or "") != seen.simulator.clicks[number].city for number, row in visits.items()
    )
    return CheckResult(
        claim="clicks met the profile of that moment",
        expected=len(seen.simulator.clicks),
        found=len(visits),
        wrong=wrong + seen.outputs.doubled["visits"],
    )


def _spend(seen: CheckInput) -> CheckResult:
    by_customer = defaultdict(list)
    for order in list(seen.simulator.orders.values()):
        by_customer[order.customer].append(order)
    truth = {}
    for customer, orders in by_customer.items():
        begin = orders[-1].at - timedelta(minutes=10)
        truth[customer] = sum(order.amount for order in orders if order.at > begin)
    return CheckResult(
        claim="customers have their spend, in Redis and view",
        expected=len(truth),
        found=sum(
            seen.outputs.spend.get(key) == seen.external.spend.get(key) == cents
            for key, cents in truth.items()
        ),
    )


def _catalogue(seen: CheckInput) -> CheckResult:
    viewed = {number: product_of(row) for number, row in seen.outputs.catalogue.items()}
    return CheckResult(
        claim="products are the same in index, cache and view",
        expected=len(seen.external.products),
        found=sum(
            seen.external.indexed.get(number) == seen.external.cached.get(number) == viewed.get(number) == row
            for number, row in seen.external.products.items()
        ),
    )


def _stock(seen: CheckInput) -> CheckResult:
    return CheckResult(
        claim="orders have their piece of the stock",
        expected=len(seen.simulator.orders),
        found=len(seen.outputs.reserved - {LAST}),
        wrong=seen.outputs.oversold + seen.outputs.doubled[STOCK],
    )


def _mails(seen: CheckInput) -> CheckResult:
    mails, dead = seen.external.mails - {LAST}, seen.outputs.dead_mails - {LAST}
    return CheckResult(
        claim="orders have a mail, or a dead letter",
        expected=len(seen.simulator.orders),
        found=len(mails | dead),
        wrong=len(mails & dead) + seen.outputs.doubled["order_status.mailer.dead"],
    )


def _garbled(seen: CheckInput) -> CheckResult:
    return CheckResult(
        claim="garbled clicks are dead letters",
        expected=seen.simulator.garbled,
        found=seen.outputs.records["hot_products.dead"],
    )


CHECKS: Final[tuple[Callable[[CheckInput], CheckResult], ...]] = (
    _status,
    _revenue,
    _hot,
    _visits,
    _spend,
    _catalogue,
    _stock,
    _mails,
    _garbled,
)


EVERY_S: Final = 0.5
RATE_S: Final = 5.0


class CheckMonitor(threading.Thread):
    """Runs the checks twice a second, from `start` to `close`."""

    def __init__(
        self, simulator: ShopSimulator, outputs: OutputTopicReader, external: ExternalReader
    ) -> None:
        super().__init__(name="watch", daemon=True)
        self.results: Sequence[CheckResult] = ()
        self.rates: dict[str, float] = {}
        """Records a second of each topic over the last seconds, and `mails`, and `changes` of tables."""
        self._simulator = simulator
        self._outputs = outputs
        self._external = external
        self._closing = threading.Event()
        self._counts: deque[tuple[float, dict[str, int]]] = deque()

    @property
    def is_complete(self) -> bool:
        """Whether all results exist, and none is wrong."""
        return bool(self.results) and all(result.holds for result in self.results)

    def run(self) -> None:
        """Run the checks until `close`."""
        while not self._closing.wait(EVERY_S):
            self.update()

    def update(self) -> None:
        """Run the checks once, and measure the rates."""
        external = self._external.read()
        self.results = run_checks(
            CheckInput(simulator=self._simulator, outputs=self._outputs, external=external)
        )
        counts = dict(self._outputs.records)
        counts["mails"] = len(external.mails)
        counts["changes"] = sum(counts.get(topic, 0) for topic in CAPTURED)
        self._measure(counts)

    def _measure(self, counts: dict[str, int]) -> None:
        now_s = time.monotonic()
        self._counts.append((now_s, counts))
        while self._counts[0][0] < now_s - RATE_S:
            self._counts.popleft()
        begin_s, before = self._counts[0]
        passed_s = max(now_s - begin_s, EVERY_S)
        self.rates = {name: (count - before.get(name, 0)) / passed_s for name, count in counts.items()}

    def close(self) -> None:
        """Stop the thread."""
        self._closing.set()
        if self.is_alive():
            self.join()
