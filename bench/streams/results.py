"""The topic of results: its size over time, and its contents at the end."""

import json
import time
from collections.abc import Callable, Iterator
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
        self, rows: int, *, quiet_s: float, stall_s: float, deadline_s: float, is_alive: Callable[[], bool]
    ) -> tuple[Seen, bool]:
        """The moment of the last result, and whether there were enough.

        There are not when time is up, the program has ended, or nothing came for `stall_s` after something.

        Markers of transactions count among the offsets, so that enough is known only when nothing more comes
        for a while.
        """
        began = time.time()
        first = seen = Seen(self.end(), began)
        while True:
            time.sleep(POLL_SECONDS)
            end, now = self.end(), time.time()
            if end != seen.end:
                seen = Seen(end, now)
            if seen.end >= rows:
                if now - seen.at_s >= quiet_s:
                    return seen, True
                continue
            is_stalled = seen.end > first.end and now - seen.at_s >= stall_s
            if is_stalled or now - began > deadline_s or not is_alive():
                return seen, False

    def end(self) -> int:
        """The sum of the end offsets that readers of committed records see."""
        return sum(list_offsets(self._cluster, dict.fromkeys(self._partitions, LATEST)).values())

    def read(self, *, counts: bool = False, misses: bool = False) -> Contents:
        """Read all of it; `counts` adds up the field `n` of each, and `misses` looks for nulls."""
        rows = counted = unmatched = 0
        for value in self._values():
            # One system takes back what it has written before, by a row with the same content.
            sign = -1 if TAKEN_BACK in value else 1
            rows += sign
            if counts:
                counted += sign * int(json.loads(value)["n"])
            if misses:
                unmatched += sign * (b"null" in value)
        return Contents(rows, counted, unmatched)

    def count(self, text: str) -> int:
        """How many rows have a text in them."""
        sought = text.encode()
        return sum(-1 if TAKEN_BACK in value else 1 for value in self._values() if sought in value)

    def _values(self) -> Iterator[bytes]:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": f"{self._topic}-check",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "fetch.queue.backoff.ms": 1,
            }
        )
        consumer.assign([TopicPartition(part.topic, part.partition, 0) for part in self._partitions])
        ended, deadline = 0, time.monotonic() + READ_SECONDS
        try:
            while ended < len(self._partitions) and time.monotonic() < deadline:
                for message in consumer.consume(TAKEN, timeout=0.2):
                    if message.error() is not None:
                        ended += 1
                    else:
                        yield message.value() or b""
        finally:
            consumer.close()
