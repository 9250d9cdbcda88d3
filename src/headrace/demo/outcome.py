"""What has come out of the shop's jobs and workers, read as any consumer would: committed records only."""

from __future__ import annotations

import json
import threading
from collections import Counter
from datetime import datetime
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

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


class Outcome(threading.Thread):
    """Reads the topics from their beginning, as long as the demo runs; each has one partition."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="outcome", daemon=True)
        self.records: Counter[str] = Counter()
        """How many each topic has."""
        self.status: dict[str, dict[str, Any]] = {}
        self.visits: dict[int, dict[str, Any]] = {}
        self.doubled: Counter[str] = Counter()
        """What came a second time, by topic, where nothing may."""
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
            {
                "bootstrap.servers": bootstrap,
                "group.id": "demo-outcome",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 1000,
                **_QUIET,
            }
        )

    def run(self) -> None:
        """Read until closed."""
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
    """The window and the product of a row."""
    return datetime.fromisoformat(row["window_start"]), row["product"]
