"""The broker crashes at each step of a transaction: it stays atomic, and fenced producers stay fenced."""

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.client.cluster import Cluster
from headrace.client.errors import ProducerFenced
from headrace.client.partition import TopicPartition as Place
from headrace.events.partition_processor import LogWriter
from headrace.protocol.records import NewRecord
from tests.broker.processes import BrokerProcess
from tests.broker.transactions.crashing_broker import COMMAND

ENDING = ["the outcome", "marker 1", "marker 2", "the completion"]
COMMIT = [*ENDING[:-1], "marker of the offsets", ENDING[-1], "the answer"]
ABORT = [*ENDING, "the new epoch", "the answer"]
TAKEOVER = ["the epoch", "its answer", "the new epoch", *ABORT]
_numbers = itertools.count()


class CrashingBroker(BrokerProcess):
    """A broker that crashes at a given step and is restarted."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._at = folder.parent / "crash_at"
        os.environ["CRASH_AT"] = str(self._at)

    def command(self) -> list[str]:
        """The command that starts the broker."""
        return [*COMMAND, *super().command()[3:]]

    def wait_until_dead(self) -> None:
        """Wait until the broker has crashed."""
        assert self._process is not None
        self._process.wait(100)

    def dies_at(self, step: int, act: Callable[[], None]) -> None:
        """Run `act` while the broker crashes before the given step and is restarted."""
        failures: list[BaseException] = []

        def run() -> None:
            try:
                act()
            except BaseException as failure:  # noqa: BLE001  raised again in the test
                failures.append(failure)

        self._at.write_text(str(step))
        thread = threading.Thread(target=run)
        thread.start()
        self.wait_until_dead()
        assert self._end() == 137
        self.start()
        thread.join(100)
        assert not thread.is_alive()
        if failures:
            raise failures[0]


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CrashingBroker]:
    with CrashingBroker(tmp_path_factory.mktemp("crashes") / "data") as broker:
        yield broker
    del os.environ["CRASH_AT"]


@pytest.fixture
def name(kafka: CrashingBroker) -> str:
    """A topic of two partitions; transactional ids and groups may have the same name."""
    name = f"t{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic(name, 2)])[name].result(100)
    return name


def transactional(kafka: CrashingBroker, name: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": kafka.address,
            "transactional.id": name,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            "log_level": 0,
        }
    )


def write(producer: Producer, topic: str, value: str) -> None:
    """Write a record to each partition in the open transaction."""
    for partition in range(2):
        producer.produce(topic, value=value, partition=partition)
    assert producer.flush(100) == 0


def reader(kafka: CrashingBroker, name: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": kafka.address,
            "group.id": name,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )


def committed(kafka: CrashingBroker, topic: str) -> list[list[bytes | None]]:
    """The values that a read_committed consumer sees in each partition."""
    consumer, read = reader(kafka, topic), []
    for partition in range(2):
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: list[bytes | None] = []
        while (message := consumer.poll(100)) is not None and message.error() is None:
            found.append(message.value())
        assert message is not None
        read.append(found)
    consumer.close()
    return read


def offsets(kafka: CrashingBroker, name: str) -> list[int]:
    """The offsets that the group has committed."""
    consumer = reader(kafka, name)
    found = consumer.committed([TopicPartition(name, partition) for partition in range(2)], timeout=100)
    consumer.close()
    return [each.offset for each in found]


@pytest.mark.parametrize("step", range(len(COMMIT)), ids=COMMIT)
def test_a_commit_is_atomic_at_whatever_step_the_broker_crashes(
    kafka: CrashingBroker, name: str, step: int
) -> None:
    producer = transactional(kafka, name)
    producer.init_transactions(100)
    producer.begin_transaction()
    write(producer, name, "one")
    consumer = reader(kafka, name)
    places = [TopicPartition(name, partition, 7) for partition in range(2)]
    producer.send_offsets_to_transaction(places, consumer.consumer_group_metadata(), 20)
    consumer.close()
    kafka.dies_at(step, lambda: producer.commit_transaction(60))
    assert committed(kafka, name) == [[b"one"], [b"one"]]
    assert offsets(kafka, name) == [7, 7]


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_whose_begin_the_broker_forgot_is_committed_or_leaves_nothing(
    kafka: CrashingBroker, name: str, commits: bool
) -> None:
    producer = transactional(kafka, name)
    producer.init_transactions(100)
    producer.begin_transaction()

    def end() -> None:
        for partition in range(2):
            producer.produce(name, value="one", partition=partition)
        kafka.wait_until_dead()
        if commits:
            producer.commit_transaction(60)
            return
        try:
            producer.abort_transaction(60)
        except KafkaException as fault:
            # As with Apache Kafka: no transaction has begun, and nothing was written.
            assert fault.args[0].code() == KafkaError.INVALID_TXN_STATE  # noqa: PT017

    kafka.dies_at(0, end)
    assert committed(kafka, name) == ([[b"one"], [b"one"]] if commits else [[], []])


@pytest.mark.parametrize("step", range(len(ABORT)), ids=ABORT)
def test_a_new_producer_aborts_and_fences_the_old_one_at_whatever_step_the_broker_crashes(
    kafka: CrashingBroker, name: str, step: int
) -> None:
    old = transactional(kafka, name)
    old.init_transactions(100)
    old.begin_transaction()
    write(old, name, "old")
    new = transactional(kafka, name)
    kafka.dies_at(step, lambda: new.init_transactions(60))
    with pytest.raises(KafkaException, match=r"(?i)fenced|newer"):
        old.commit_transaction(60)
    new.begin_transaction()
    write(new, name, "new")
    new.commit_transaction(60)
    assert committed(kafka, name) == [[b"new"], [b"new"]]


@pytest.fixture
def places(name: str) -> list[Place]:
    """The partitions that a handler writes."""
    return [Place(name, partition) for partition in range(2)]


@pytest.mark.parametrize("step", range(len(TAKEOVER)), ids=TAKEOVER)
def test_a_takeover_fences_plain_batches_at_whatever_step_the_broker_crashes(
    kafka: CrashingBroker, name: str, places: list[Place], step: int
) -> None:
    with Cluster.of(kafka.address) as first, Cluster.of(kafka.address) as second:
        old = LogWriter.open(first, name, places)
        old.write({places[0]: [NewRecord(None, b"old", 0)]})
        opened: list[LogWriter] = []
        kafka.dies_at(step, lambda: opened.append(LogWriter.open(second, name, places)))
        for place in places:
            with pytest.raises(ProducerFenced):
                old.write({place: [NewRecord(None, b"fenced", 0)]})
        opened[0].write({place: [NewRecord(None, b"new", 0)] for place in places})
    assert committed(kafka, name) == [[b"old", b"new"], [b"new"]]


def test_the_list_of_steps_of_a_takeover_is_complete(
    kafka: CrashingBroker, name: str, places: list[Place]
) -> None:
    """A broker that should crash one step after the last does not crash."""
    with Cluster.of(kafka.address) as cluster:
        LogWriter.open(cluster, name, places)
        at = Path(os.environ["CRASH_AT"])
        at.write_text("100")
        LogWriter.open(cluster, name, places)
        left = int(at.read_text())
        at.unlink()
        assert 100 - left == len(TAKEOVER)
