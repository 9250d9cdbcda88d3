"""Reads the results of the demo's jobs from output topics and external systems.

Topics are read with read_committed; PostgreSQL, Redis, the search index and the mail server with their own
clients.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import redis
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from headrace.client.bootstrap import client_config
from headrace.demo.database import PRODUCTS
from headrace.sinks.search import NoSuchIndex, SearchIndex

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from headrace.demo.database import ShopDatabase
    from headrace.demo.mail_server import DemoMailServer

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
