"""A producer that is far too fast, a consumer, and a broker that dies again and again at the bound."""

import random
import threading
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException

from tests.broker.overflow_topics import Sender, commit, create, read_all, status
from tests.broker.processes import BrokerProcess
from tests.soak.summary import RecordProperty

pytestmark = [pytest.mark.soak, pytest.mark.timeout(600)]

RECORDS = 5_000
BOUND = 50
KILLS = 15


class SlowReader:
    """A consumer of the group that makes room; commits each record that it has read."""

    def __init__(self, address: str) -> None:
        settings = {"group.id": "mailer", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        self._consumer = Consumer({"bootstrap.servers": address, "reconnect.backoff.max.ms": 100} | settings)
        self._consumer.subscribe(["orders"])
        self._thread = threading.Thread(target=self._read)
        self.values: list[str] = []
        self._thread.start()

    def _read(self) -> None:
        while not self.values or self.values[-1] != str(RECORDS - 1):
            message = self._consumer.poll(0.1)
            if message is None or message.error() is not None:
                continue
            self.values.append(message.value().decode())
            try:
                self._consumer.commit(message, asynchronous=False)
            except KafkaException:  # the broker is away: the next commit says more
                continue
        self._consumer.close()

    def join(self) -> None:
        self._thread.join(300)
        assert not self._thread.is_alive(), f"read {len(self.values)} records"


def test_nothing_is_lost_or_doubled_and_the_bound_holds(
    tmp_path: Path, record_property: RecordProperty
) -> None:
    chance = random.Random(seed := random.randrange(2**32))
    record_property("seed", seed)
    record_property("kills", KILLS)
    with BrokerProcess(tmp_path / "data") as kafka:
        create(
            kafka.address,
            "orders",
            headrace_overflow="block",
            headrace_overflow_records=str(BOUND),
            headrace_overflow_groups="mailer",
            headrace_overflow_timeout_ms="200",
        )
        commit(kafka.address, "orders", "mailer", 0)
        sender = Sender(kafka.address, "orders", enable_idempotence=True, reconnect_backoff_max_ms=100)
        sender.send(*[str(number) for number in range(RECORDS)])
        reader = SlowReader(kafka.address)
        for _ in range(KILLS):
            sender.wait_for(len(sender.stored) + chance.randrange(1, 200))
            assert status(kafka.address, "orders")["backlog_records"] <= BOUND
            kafka.kill()
            kafka.start()
            assert status(kafka.address, "orders")["backlog_records"] <= BOUND
        sender.finish()
        reader.join()
        expected = [str(number) for number in range(RECORDS)]
        assert sender.failed == {}
        assert sender.stored == read_all(kafka.address, "orders") == expected
        assert sorted(set(reader.values), key=int) == expected
