"""A copy by transactions while broker and copier are killed: the same records, once and in order."""

import random
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.broker.processes import BrokerProcess
from tests.soak.kill_storm import read_all

SOURCE, TARGET = "source", "target"
PARTITIONS = 3
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is copied, and how often something is killed on the way."""

    records: int
    bounces: int
    shortest_life: float = 0.3
    longest_life: float = 1.5
    seed: int = 0
    deadline_seconds: float = 60.0


class CopierProcess:
    """The copier as a child process; one that ended by itself is started again when it is looked after."""

    def __init__(self, bootstrap: str) -> None:
        self._command = [sys.executable, "-m", "tests.soak.copier", bootstrap, SOURCE, TARGET]
        self._process = self._start()
        self.ended_by_itself = 0

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command, cwd=ROOT, stderr=subprocess.DEVNULL)

    def look_after(self) -> None:
        """Start it again if it has ended."""
        if self._process.poll() is not None:
            self.ended_by_itself += 1
            self._process = self._start()

    def bounce(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self._process = self._start()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> "CopierProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None) -> None:
        self.kill()


def fill_source(bootstrap: str, records: int) -> None:
    """Write the numbered records that are to be copied."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    topics = [NewTopic(name, PARTITIONS, 1) for name in (SOURCE, TARGET)]
    for created in admin.create_topics(topics).values():
        created.result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5})
    for number in range(records):
        producer.produce(SOURCE, b"record %d" % number, partition=number % PARTITIONS)
        producer.poll(0)
    assert producer.flush(60) == 0


def copy_under_fire(plan: Plan, kafka: BrokerProcess) -> int:
    """Copy everything while broker and copier are killed in turns; gives how often the copier gave up."""
    chance = random.Random(plan.seed)
    fill_source(kafka.address, plan.records)
    with CopierProcess(kafka.address) as copier:
        for number in range(plan.bounces):
            time.sleep(chance.uniform(plan.shortest_life, plan.longest_life))  # the life of its prey
            copier.look_after()
            if number % 2:
                copier.bounce()
            else:
                kafka.restart()
        deadline = time.monotonic() + plan.deadline_seconds
        while uncopied(kafka.address):
            assert time.monotonic() < deadline, f"{uncopied(kafka.address)} records are not copied"
            copier.look_after()
            time.sleep(0.1)
        return copier.ended_by_itself


def uncopied(bootstrap: str) -> int:
    """How many records lie behind the offsets that the copier has committed; −1 when nobody can tell."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "copier", "log_level": 0})
    partitions = [TopicPartition(SOURCE, number) for number in range(PARTITIONS)]
    try:
        ends = [consumer.get_watermark_offsets(partition, 10)[1] for partition in partitions]
        committed = [max(partition.offset, 0) for partition in consumer.committed(partitions, 10)]
    except KafkaException:
        return -1  # the broker is just being killed
    finally:
        consumer.close()
    return sum(ends) - sum(committed)


def assert_copied_exactly_once(bootstrap: str, records: int) -> None:
    """Hold the copy against the original, partition by partition."""
    copied = read_all(bootstrap, TARGET, PARTITIONS, **{"isolation.level": "read_committed"})
    for partition, values in enumerate(copied):
        expected = [b"RECORD %d" % number for number in range(partition, records, PARTITIONS)]
        missing, extra = set(expected) - set(values), len(values) - len(set(values))
        assert values == expected, f"partition {partition}: {len(missing)} missing, {extra} twice"
