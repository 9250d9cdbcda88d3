"""A queue worked on by many while its broker is killed again and again: nothing lost, no letter doubled."""

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace import queue
from headrace.broker.shares.dead_letters import dead_letter_topic
from headrace.errors import HeadraceError
from tests.broker.processes import BrokerProcess, wait_until

TOPIC, GROUP = "storm", "crew"
IDLE = timedelta(seconds=0.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStorm:
    """How many messages, workers and kills, and how long at most the broker lives between two of them."""

    messages: int
    kills: int
    workers: int = 3
    longest_life: float = 0.6
    seed: int = 0


class Worker(threading.Thread):
    """Accepts most messages, rejects every tenth, releases some, and holds on through the broker's deaths."""

    def __init__(self, bootstrap: str, seed: int) -> None:
        super().__init__(name="worker")
        self.seen: set[int] = set()
        self.stop = threading.Event()
        self.faults: list[HeadraceError] = []
        self._address = bootstrap
        self._random = random.Random(seed)

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                self._work()
            except HeadraceError as fault:
                self.faults.append(fault)

    def _work(self) -> None:
        prefetch = self._random.choice([1, 5, 20])
        for message in queue(TOPIC, group=GROUP, broker=self._address, prefetch=prefetch, idle_timeout=IDLE):
            number = int(message.value or b"")
            self.seen.add(number)
            if number % 10 == 0:
                message.reject()
            elif self._random.random() < 0.05 and message.deliveries < 3:
                message.release(delay=self._random.choice(["0s", "50 ms"]))


def ride_out(storm: QueueStorm, broker: BrokerProcess) -> None:
    """Send, work and kill; then every message has been seen, and each tenth is a dead letter, once."""
    chance = random.Random(storm.seed)
    admin = AdminClient({"bootstrap.servers": broker.address})
    (made,) = admin.create_topics([NewTopic(TOPIC, 2, 1)]).values()
    made.result(10)
    settings = {"share.delivery.count.limit": "100", "share.record.lock.duration.ms": "1000"}
    assert (
        list(queue(TOPIC, group=GROUP, broker=broker.address, idle_timeout="100 ms", settings=settings)) == []
    )
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "enable.idempotence": True,
            "linger.ms": 2,
            "reconnect.backoff.max.ms": 100,
            "error_cb": lambda _: None,
            "log_level": 0,
        }
    )
    workers = [Worker(broker.address, storm.seed + index) for index in range(storm.workers)]
    for worker in workers:
        worker.start()
    try:
        for part in range(storm.kills + 1):
            for number in range(part, storm.messages, storm.kills + 1):
                producer.produce(TOPIC, b"%d" % number)
            producer.poll(0)
            if part < storm.kills:
                time.sleep(chance.uniform(0.05, storm.longest_life))  # the broker's life, not a wait
                broker.restart()
        assert producer.flush(60) == 0
        everything = set(range(storm.messages))
        wait_until(lambda: set().union(*(w.seen for w in workers)) == everything, f"all of {storm}", 60)
    finally:
        for worker in workers:
            worker.stop.set()
        for worker in workers:
            worker.join()
    _check_letters(storm, broker)


def _check_letters(storm: QueueStorm, broker: BrokerProcess) -> None:
    for message in queue(TOPIC, group=GROUP, broker=broker.address, idle_timeout=2 * IDLE):
        if int(message.value or b"") % 10 == 0:
            message.reject()
    dead = queue(
        dead_letter_topic(TOPIC, GROUP), group="undertaker", broker=broker.address, idle_timeout=IDLE
    )
    letters = Counter(int(letter.value or b"") for letter in dead)
    assert letters == dict.fromkeys(range(0, storm.messages, 10), 1), storm
