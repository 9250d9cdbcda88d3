"""Answers to commands that other processes handle: this process reads the topic of answers."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from confluent_kafka import Consumer, TopicPartition

from headrace.client.cluster import Cluster
from headrace.events.command import Answer
from headrace.events.log import ends
from headrace.events.topics import places

if TYPE_CHECKING:
    from concurrent.futures import Future

    from headrace.events.topics import StoreTopics

POLL_S: Final = 0.1
_SILENT: Final = logging.Logger("librdkafka", level=logging.CRITICAL + 1)


class Replies:
    """Who waits for which answer. The topic is read from the first command on that needs it."""

    def __init__(self, broker: str, topics: StoreTopics) -> None:
        self._broker = broker
        self._topics = topics
        self._waiting: dict[tuple[str, str], list[Future[Answer]]] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def expect(self, key: tuple[str, str], waiting: Future[Answer]) -> None:
        """Have `waiting` get the answer to the command of that key, which is not sent yet."""
        with self._lock:
            self._waiting.setdefault(key, []).append(waiting)
            if self._thread is None:
                self._thread = self._begin()

    def forget(self, key: tuple[str, str], waiting: Future[Answer]) -> None:
        """Nobody waits for this answer any more."""
        with self._lock:
            rest = [each for each in self._waiting.pop(key, []) if each is not waiting]
            if rest:
                self._waiting[key] = rest

    def answered(self, answer: Answer) -> None:
        """Hand out an answer."""
        if not self._waiting:
            return
        with self._lock:
            found = self._waiting.pop(answer.key, [])
        for waiting in found:
            if not waiting.done():
                waiting.set_result(answer)

    def close(self) -> None:
        """Stop reading."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _begin(self) -> threading.Thread:
        consumer = Consumer(
            {
                "bootstrap.servers": self._broker,
                "group.id": f"{self._topics.answers}.readers",  # it wants one; nothing is stored for it
                "client.id": "headrace-events",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.error.backoff.ms": 50,
                "logger": _SILENT,
            }
        )
        with Cluster.of(self._broker) as cluster:
            starts = ends(cluster, places(self._topics.answers, self._topics.partitions))
        consumer.assign([TopicPartition(*place, offset) for place, offset in starts.items()])
        name = f"{self._topics.answers}"
        thread = threading.Thread(target=self._read, args=(consumer,), name=name, daemon=True)
        thread.start()
        return thread

    def _read(self, consumer: Consumer) -> None:
        while not self._stopping.is_set():
            message = consumer.poll(POLL_S)
            if message is not None and message.error() is None:
                answer, _ = Answer.read(message.value() or b"")
                self.answered(answer)
        consumer.close()
