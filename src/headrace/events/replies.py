"""Answers to commands that other processes handle: this process reads the topic of answers.

It is read while somebody waits, and a moment longer. A process that handles its commands itself would have
every answer come back to it by the topic, for nobody: that costs it and the broker as much as the command.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Final

from headrace.client.cluster import Cluster
from headrace.client.errors import BrokerUnreachable, OffsetsGone
from headrace.client.follow import fetch_batches
from headrace.client.records import committed_records, skip_unreadable
from headrace.errors import HeadraceError
from headrace.events.command import Answer, hand_over
from headrace.events.log import ends
from headrace.events.submitted import remaining_s
from headrace.events.topics import places

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    from headrace.client.follow import FetchedBatches
    from headrace.client.partition import TopicPartition
    from headrace.events.topics import StoreTopics

WAIT_MS: Final = 100
FETCH_TIMEOUT_S: Final = 2.0
PAUSE_S: Final = 0.1
IDLE_S: Final = 0.5
"""How long the topic is read on when nobody waits any more."""

logger = logging.getLogger(__name__)


class Replies:
    """Who waits for which answer."""

    def __init__(self, broker: str, topics: StoreTopics) -> None:
        self._broker = broker
        self._topics = topics
        self._waiting: dict[tuple[str, str], list[Future[Answer]]] = {}
        self._lock = threading.Lock()
        self._beginning = threading.Lock()
        """Held while the broker is asked where the topic ends; `_lock` is not, for handlers wait for it."""
        self._is_reading = False
        self._starts: queue.SimpleQueue[Mapping[TopicPartition, int] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def is_reading(self) -> bool:
        """Whether `expect` returns at once."""
        return self._is_reading

    def expect(self, key: tuple[str, str], waiting: Future[Answer], timeout_s: float) -> None:
        """Have `waiting` get the answer to the command of that key, which is not sent yet."""
        if self._register(key, waiting):
            return
        deadline = time.monotonic() + timeout_s
        if not self._beginning.acquire(timeout=timeout_s):
            raise BrokerUnreachable(f"the broker at {self._broker} did not answer within {timeout_s:g} s")
        try:
            while not self._register(key, waiting):  # reading may end again before this is registered
                self._begin(remaining_s(deadline))
        finally:
            self._beginning.release()

    def _register(self, key: tuple[str, str], waiting: Future[Answer]) -> bool:
        """Whether the topic is being read, so that `waiting` will get its answer."""
        with self._lock:
            if self._is_reading:
                self._waiting.setdefault(key, []).append(waiting)
            return self._is_reading

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
            hand_over(waiting, answer)

    def close(self) -> None:
        """Stop reading."""
        self._starts.put(None)
        if self._thread is not None:
            self._thread.join()

    def _begin(self, timeout_s: float) -> None:
        """Read from where the topic ends now: the command is sent after that, and its answer lies behind."""
        with Cluster.of(self._broker, timeout_s=timeout_s) as cluster:
            starts = ends(cluster, places(self._topics.answers, self._topics.partitions))
        self._is_reading = True
        self._starts.put(starts)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._topics.answers, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        with Cluster.of(self._broker, client_id="headrace-events", timeout_s=FETCH_TIMEOUT_S) as cluster:
            while (starts := self._starts.get()) is not None:
                self._read(cluster, dict(starts))

    def _read(self, cluster: Cluster, positions: dict[TopicPartition, int]) -> None:
        """Hand out what comes, until nobody has waited for a while, or it is time to stop."""
        idle_at = time.monotonic() + IDLE_S
        while self._starts.empty() and not self._is_idle(idle_at):
            if self._waiting:
                idle_at = time.monotonic() + IDLE_S
            try:
                for fetched in fetch_batches(cluster, positions, max_wait_ms=WAIT_MS):
                    self._hand_out(fetched)
                    positions[fetched.partition] = fetched.next_offset
            except OffsetsGone as gone:
                positions[gone.partition] = gone.first
            except HeadraceError as fault:  # of a broker that is away: it is tried again
                logger.info("%s: %s", self._topics.answers, fault)
                time.sleep(PAUSE_S)

    def _hand_out(self, fetched: FetchedBatches) -> None:
        for record in skip_unreadable(committed_records(*fetched[:3])):
            try:
                answer, _ = Answer.read(record.value or b"")
            except ValueError as fault:
                logger.warning(
                    "skipped offset %d of %s, which is no answer: %s", record.offset, fetched.partition, fault
                )
            else:
                self.answered(answer)

    def _is_idle(self, idle_at: float) -> bool:
        with self._lock:
            self._is_reading = bool(self._waiting) or time.monotonic() < idle_at
            return not self._is_reading
