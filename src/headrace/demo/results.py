"""What the jobs of the demo have written, read as any consumer would: committed records only."""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

TOPICS: Final = ("paid_orders", "revenue", "alerts", "alerts.dead")
SHOWN: Final = 8
_QUIET: Final = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}


class Results(threading.Thread):
    """Reads the topics of the jobs from their beginning, as long as the demo runs."""

    def __init__(self, bootstrap: str, partitions: dict[str, int]) -> None:
        super().__init__(name="results", daemon=True)
        self.paid: Counter[str] = Counter()
        """How often each order is among the paid ones."""
        self.alerts = 0
        self.dead = 0
        self.revenue: deque[dict[str, Any]] = deque(maxlen=SHOWN)
        self._closing = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "demo-results",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                **_QUIET,
            }
        )
        self._places = [
            TopicPartition(topic, number, OFFSET_BEGINNING)
            for topic, count in partitions.items()
            for number in range(count)
        ]

    def run(self) -> None:
        """Read until closed."""
        self._consumer.assign(self._places)
        while not self._closing.is_set():
            for message in self._consumer.consume(500, 0.2):
                if message.error() is None:
                    self._take(message.topic() or "", message.value() or b"")
        self._consumer.close()

    def close(self) -> None:
        """Stop reading."""
        self._closing.set()
        self.join()

    def _take(self, topic: str, value: bytes) -> None:
        match topic:
            case "paid_orders":
                self.paid[json.loads(value)["order_id"]] += 1
            case "revenue":
                self.revenue.append(json.loads(value))
            case "alerts":
                self.alerts += 1
            case "alerts.dead":
                self.dead += 1
