"""The topic that results go to: how much is in it, since when, and what in the end."""

import json
import time
from collections.abc import Callable
from typing import NamedTuple

from confluent_kafka import Consumer, TopicPartition

from headrace.client.cluster import Cluster
from headrace.client.offsets import LATEST, list_offsets
from headrace.client.partition import TopicPartition as Partition

POLL_SECONDS = 0.02
TAKEN = 2_000
READ_SECONDS = 60
TAKEN_BACK = b'"diff":-1'


class Seen(NamedTuple):
    """How far a topic had come, and when it came there."""

    end: int
    at_s: float


class Contents(NamedTuple):
    """What is in a topic: records, the sum of their counts, and how many have a null in them."""

    rows: int
    counted: int
    unmatched: int


class Results:
    """A topic that a program writes, seen from outside by its end offsets: that costs the machine nothing."""

    def __init__(self, cluster: Cluster, bootstrap: str, topic: str, partitions: int) -> None:
        self._cluster = cluster
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = [Partition(topic, number) for number in range(partitions)]

    def wait(
        self, rows: int, *, quiet_s: float, deadline_s: float, is_alive: Callable[[], bool]
    ) -> tuple[Seen, bool]:
        """The moment of the last result, and whether there were enough before time was up.

        Markers of transactions count among the offsets, so that enough is known only when nothing more comes
        for a while.
        """
        began = time.time()
        seen = Seen(self.end(), began)
        while True:
            time.sleep(POLL_SECONDS)
            end, now = self.end(), time.time()
            if end != seen.end:
                seen = Seen(end, now)
            if seen.end >= rows and now - seen.at_s >= quiet_s:
                return seen, True
            if now - began > deadline_s or not is_alive():
                return seen, False

    def end(self) -> int:
        """The sum of the end offsets that readers of committed records see."""
        return sum(list_offsets(self._cluster, dict.fromkeys(self._partitions, LATEST)).values())

    def read(self, *, counts: bool, misses: bool) -> Contents:
        """Read all of it; `counts` adds up the field `n` of each, and `misses` looks for nulls."""
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"{self._topic}-check",
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.queue.backoff.ms": 1,
            }
        )
        consumer.assign([TopicPartition(part.topic, part.partition, 0) for part in self._partitions])
        try:
            return self._count(consumer, counts=counts, misses=misses)
        finally:
            consumer.close()

    def _count(self, consumer: Consumer, *, counts: bool, misses: bool) -> Contents:
        rows = counted = unmatched = ended = 0
        deadline = time.monotonic() + READ_SECONDS
        while ended < len(self._partitions) and time.monotonic() < deadline:
            for message in consumer.consume(TAKEN, timeout=0.2):
                value = message.value() or b""
                if message.error() is not None:
                    ended += 1
                    continue
                # One system takes back what it has written before, by a row with the same content.
                sign = -1 if TAKEN_BACK in value else 1
                rows += sign
                if counts:
                    counted += sign * int(json.loads(value)["n"])
                if misses:
                    unmatched += sign * (b"null" in value)
        return Contents(rows, counted, unmatched)
