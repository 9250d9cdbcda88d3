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

from tests.broker.processes import BrokerProcess, wait_until
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
    """The copier as a child process; if it has exited, the next check restarts it."""

    def __init__(self, bootstrap: str) -> None:
        self._command = [sys.executable, "-m", "tests.soak.copier", bootstrap, SOURCE, TARGET]
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self._command, cwd=ROOT, stderr=subprocess.DEVNULL)

    def look_after(self) -> None:
        """Start it again if it has ended."""
        if self._process.poll() is not None:
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


class Source:
    """The numbered records that are to be copied; more of them arrive before every bounce."""

    def __init__(self, bootstrap: str) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        topics = [NewTopic(name, PARTITIONS, 1) for name in (SOURCE, TARGET)]
        for created in admin.create_topics(topics).values():
            created.result(30)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "reconnect.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self._written = 0

    def fill_up(self, records: int) -> None:
        """Produce up to this total number of records."""
        for number in range(self._written, records):
            self._producer.produce(SOURCE, b"record %d" % number, partition=number % PARTITIONS)
            self._producer.poll(0)
        assert self._producer.flush(60) == 0
        self._written = records


def copy_under_fire(plan: Plan, kafka: BrokerProcess) -> None:
    """Copy everything while broker and copier are killed in turns."""
    chance = random.Random(plan.seed)
    source = Source(kafka.address)
    with CopierProcess(kafka.address) as copier:
        for number in range(plan.bounces):
            source.fill_up(plan.records * (number + 1) // plan.bounces)
            time.sleep(chance.uniform(plan.shortest_life, plan.longest_life))  # the life of its prey
            copier.look_after()
            if number % 2:
                copier.bounce()
            else:
                kafka.restart()

        def is_done() -> bool:
            copier.look_after()
            return uncopied(kafka.address) == 0

        wait_until(is_done, "everything to be copied", plan.deadline_seconds)


def uncopied(bootstrap: str) -> int:
    """The lag of the copier; −1 if it is unknown."""
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
