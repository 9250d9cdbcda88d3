"""Records written while the broker is killed again and again, and read back when it is over."""

import random
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from tests.broker.processes import BrokerProcess, wait_until

TOPIC = "storm"
PARTITIONS = 3
DEADLINE_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Storm:
    """How often the broker is killed, and how long at most it acknowledges records in between."""

    kills: int
    longest_life: float = 0.5
    seed: int = 0


class Writer(threading.Thread):
    """An idempotent producer that numbers its records per partition, until it is stopped."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="writer")
        self.written = [0] * PARTITIONS
        self.acknowledged: dict[int, list[int]] = defaultdict(list)
        self.failures: list[KafkaError] = []
        self._stop_asked = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 2,
                "retry.backoff.ms": 20,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "message.timeout.ms": 60_000,
                "error_cb": lambda _: None,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        while not self._stop_asked.is_set():
            for partition in range(PARTITIONS):
                self._write(partition)
            self._producer.poll(0)
        self._producer.flush(DEADLINE_SECONDS)

    def _write(self, partition: int) -> None:
        value = str(self.written[partition]).encode()
        try:
            self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._delivered)
        except BufferError:
            self._producer.poll(0.05)
            return
        self.written[partition] += 1

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.failures.append(error)
        else:
            self.acknowledged[message.partition()].append(int(message.value()))

    def wait_for_progress(self) -> None:
        """Return when a record has been acknowledged that had not been at the call."""
        before = self._count()
        wait_until(lambda: self._count() > before, "the writer to continue")

    def _count(self) -> int:
        return sum(map(len, list(self.acknowledged.values())))

    def finish(self) -> None:
        """Stop writing, and return when every record has its answer."""
        self._stop_asked.set()
        self.join()


def ride_out(storm: Storm, kafka: BrokerProcess) -> Writer:
    """The writer after the storm; every record that it wrote was acknowledged."""
    chance = random.Random(storm.seed)
    writer = Writer(kafka.address)
    writer.start()
    try:
        for _ in range(storm.kills):
            writer.wait_for_progress()
            time.sleep(chance.uniform(0, storm.longest_life))  # the rest of the broker's life
            kafka.restart()
    finally:
        writer.finish()
    assert not writer.failures, writer.failures[:3]
    return writer


def read_all(bootstrap: str, topic: str, partitions: int, **settings: Any) -> list[list[bytes]]:
    """The values in each partition from its beginning to its end now, in order."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True, "log_level": 0}
        | settings
    )
    found: list[list[bytes]] = [[] for _ in range(partitions)]
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in range(partitions)])
    unread = set(range(partitions))
    deadline = time.monotonic() + DEADLINE_SECONDS
    while unread:
        assert time.monotonic() < deadline, f"nothing more of partitions {unread} could be read"
        messages = consumer.consume(10_000, 0.2)
        if messages:
            deadline = time.monotonic() + DEADLINE_SECONDS
        for message in messages:
            error = message.error()
            if error is None:
                found[message.partition()].append(message.value())
            elif error.code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition())
            else:
                raise KafkaException(error)
    consumer.close()
    return found
