"""One transaction of many writers: all or nothing, one epoch each, and no way in for those who come late."""

import threading
from pathlib import Path

import pytest

from headrace.client.cluster import Cluster
from headrace.client.errors import ProducerFenced, RequestRefused, UnknownPartition
from headrace.client.offsets import fetch_offsets
from headrace.client.partition import TopicPartition
from headrace.client.produce import BatchProducer
from headrace.client.shared_transaction import ProducerIdentity, SharedTransaction
from headrace.client.topics import NewTopic, create_topics
from tests.broker.processes import BrokerProcess
from tests.client.batches import batch, end_of, fresh_name, numbers, read_values, write

END_TXN = 26


@pytest.fixture
def name() -> str:
    """A transactional id of this test."""
    return fresh_name("transaction")


def settle(cluster: Cluster, name: str) -> None:
    """Return when the outcome of every transaction is visible; other producers with the id are fenced."""
    SharedTransaction.open(cluster, name)


def write_as_a_task(bootstrap: str, name: str, identity: ProducerIdentity, partition: TopicPartition) -> None:
    """What one task does: a connection of its own, a partition of its own, its own sequences."""
    with Cluster.of(bootstrap) as cluster:
        producer = BatchProducer(cluster, transactional_id=name)
        for start in range(0, 100, 10):
            producer.send(partition, batch(numbers(start, start + 10), identity, start))
        producer.flush()


def test_many_writers_fill_one_transaction(
    bootstrap: str, cluster: Cluster, partitions: list[TopicPartition], name: str
) -> None:
    transaction = SharedTransaction.open(cluster, name)
    transaction.add(partitions)
    tasks = [
        threading.Thread(target=write_as_a_task, args=(bootstrap, name, transaction.identity, partition))
        for partition in partitions
    ]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    assert [end_of(cluster, partition) for partition in partitions] == [0, 0, 0]
    transaction.commit()
    settle(cluster, name)
    for partition in partitions:
        assert read_values(cluster, partition) == numbers(0, 100)


def test_the_writes_of_a_single_writer_add_their_partitions(
    cluster: Cluster, partitions: list[TopicPartition], name: str
) -> None:
    transaction = SharedTransaction.open(cluster, name)
    for start in (0, 10):
        transaction.begin(partitions)
        producer = transaction.producer()
        for partition in partitions:
            producer.send(partition, batch(numbers(start, start + 10), transaction.identity))
        producer.flush()
        transaction.commit()
    old, identity = transaction, transaction.identity
    settle(cluster, name)
    assert [read_values(cluster, partition) for partition in partitions] == [numbers(0, 20)] * 3
    old.begin(partitions)
    producer = old.producer()
    producer.send(partitions[0], batch([b"late"], identity))
    with pytest.raises(ProducerFenced):
        producer.flush()


def test_an_abort_takes_everything_back(
    cluster: Cluster, partitions: list[TopicPartition], name: str
) -> None:
    transaction = SharedTransaction.open(cluster, name)
    transaction.add(partitions)
    for partition in partitions:
        write(cluster, partition, batch([b"x"], transaction.identity), transactional_id=name)
    transaction.commit_offsets("group-of-" + name, {partitions[0]: 5})
    transaction.abort()
    settle(cluster, name)
    assert [read_values(cluster, partition) for partition in partitions] == [[], [], []]
    assert fetch_offsets(cluster, "group-of-" + name, partitions) == {}


def test_positions_change_with_the_commit(cluster: Cluster, partition: TopicPartition, name: str) -> None:
    group = fresh_name("group")
    transaction = SharedTransaction.open(cluster, name)
    transaction.commit_offsets(group, {partition: 5}, metadata="batch 1")
    assert fetch_offsets(cluster, group, [partition], require_stable=False) == {}
    transaction.commit_offsets(group, {partition: 6})
    transaction.commit()
    assert fetch_offsets(cluster, group, [partition]) == {partition: 6}


def test_every_transaction_has_an_epoch_of_its_own_and_sequences_from_zero(
    cluster: Cluster, partitions: list[TopicPartition], name: str
) -> None:
    transaction = SharedTransaction.open(cluster, name)
    identities = []
    for number in range(60):
        identities.append(transaction.identity)
        transaction.add(partitions)
        for partition in partitions:
            each = batch(numbers(number, number + 1), transaction.identity, 0)
            write(cluster, partition, each, transactional_id=name)
        transaction.abort() if number % 5 == 4 else transaction.commit()
    settle(cluster, name)
    assert len(set(identities)) == len(identities)
    expected = [value for number, value in enumerate(numbers(0, 60)) if number % 5 != 4]
    for partition in partitions:
        assert read_values(cluster, partition) == expected


def test_a_late_write_of_the_last_transaction_is_refused(
    cluster: Cluster, partition: TopicPartition, name: str
) -> None:
    transaction = SharedTransaction.open(cluster, name)
    late = transaction.identity
    transaction.add([partition])
    write(cluster, partition, batch([b"first"], late), transactional_id=name)
    transaction.commit()
    transaction.add([partition])
    write(cluster, partition, batch([b"second"], transaction.identity), transactional_id=name)
    with pytest.raises(ProducerFenced, match="was fenced by a newer one, or its transaction has ended"):
        write(cluster, partition, batch([b"late"], late, 1), transactional_id=name)
    transaction.commit()
    settle(cluster, name)
    assert read_values(cluster, partition) == [b"first", b"second"]


def test_a_zombie_is_fenced_and_what_it_wrote_is_taken_back(
    cluster: Cluster, partition: TopicPartition, name: str
) -> None:
    zombie = SharedTransaction.open(cluster, name)
    zombie.add([partition])
    write(cluster, partition, batch([b"zombie"], zombie.identity), transactional_id=name)
    successor = SharedTransaction.open(cluster, name)
    assert read_values(cluster, partition) == []
    with pytest.raises(ProducerFenced):
        write(cluster, partition, batch([b"zombie"], zombie.identity, 1), transactional_id=name)
    for act in (
        zombie.commit,
        zombie.abort,
        lambda: zombie.add([partition._replace(partition=1)]),
        lambda: zombie.commit_offsets("group", {partition: 1}),
    ):
        with pytest.raises(ProducerFenced, match="was fenced: another process has opened it"):
            act()
    successor.add([partition])
    write(cluster, partition, batch([b"successor"], successor.identity), transactional_id=name)
    successor.commit()
    settle(cluster, name)
    assert read_values(cluster, partition) == [b"successor"]


def test_an_end_without_a_beginning_does_nothing(cluster: Cluster, name: str) -> None:
    transaction = SharedTransaction.open(cluster, name)
    before = transaction.identity
    transaction.add([])
    transaction.commit_offsets("group", {})
    transaction.commit()
    transaction.abort()
    assert transaction.identity == before


def test_a_partition_that_was_not_added_cannot_be_written(
    cluster: Cluster, partitions: list[TopicPartition], name: str
) -> None:
    transaction = SharedTransaction.open(cluster, name)
    transaction.add(partitions[:1])
    with pytest.raises(RequestRefused, match="Kafka error 48"):
        write(cluster, partitions[1], batch([b"x"], transaction.identity), transactional_id=name)
    transaction.abort()


def test_a_partition_that_does_not_exist_cannot_be_added(bootstrap: str, name: str) -> None:
    with Cluster.of(bootstrap, timeout_s=2) as cluster:
        transaction = SharedTransaction.open(cluster, name)
        with pytest.raises(UnknownPartition):
            transaction.add([TopicPartition(fresh_name("ghost"), 0)])
        transaction.abort()


def test_an_answer_that_was_lost_is_asked_for_again(
    cluster: Cluster, partition: TopicPartition, name: str
) -> None:
    transaction = SharedTransaction.open(cluster, name)
    for number in range(3):
        before = transaction.identity
        transaction.add([partition])
        write(cluster, partition, batch(numbers(number, number + 1), before), transactional_id=name)
        # The request goes out and the connection ends before its answer is read.
        transaction._request_end(committed=True)
        cluster.transaction_coordinator(name).close()
        assert transaction.identity == before
        transaction.commit()
        assert transaction.identity != before
    settle(cluster, name)
    assert read_values(cluster, partition) == numbers(0, 3)


def test_a_coordinator_that_gives_no_new_epoch_at_the_end_is_asked_for_one(
    cluster: Cluster, partition: TopicPartition, name: str
) -> None:
    transaction = SharedTransaction.open(cluster, name)
    cluster.transaction_coordinator(name)._versions[END_TXN] = range(4)  # as Apache Kafka 3 serves it
    identities = set()
    for number in range(4):
        identities.add(transaction.identity)
        transaction.add([partition])
        each = batch(numbers(number, number + 1), transaction.identity)
        write(cluster, partition, each, transactional_id=name)
        transaction.abort() if number == 2 else transaction.commit()
    assert len(identities) == 4
    settle(cluster, name)
    assert read_values(cluster, partition) == [b"0", b"1", b"3"]


def test_a_broker_may_be_killed_between_any_two_steps(tmp_path: Path, name: str) -> None:
    with BrokerProcess(tmp_path / "data") as broker, Cluster.of(broker.address) as cluster:
        create_topics(cluster, [NewTopic(name="topic", partitions=1)])
        partition = TopicPartition("topic", 0)
        transaction = SharedTransaction.open(cluster, name)
        for number in range(5):

            def step(place: int, number: int = number) -> None:
                if place == number:
                    broker.restart()

            step(0)
            transaction.add([partition])
            step(1)
            each = batch(numbers(number, number + 1), transaction.identity)
            write(cluster, partition, each, transactional_id=name)
            step(2)
            transaction.commit_offsets("group", {partition: number})
            step(3)
            transaction.commit()
            step(4)
            assert fetch_offsets(cluster, "group", [partition]) == {partition: number}
        assert read_values(cluster, partition) == numbers(0, 5)
