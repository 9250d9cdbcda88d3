"""Batches into partitions: in order, once where they are numbered, and with a word about every refusal."""

import random
from pathlib import Path

import pytest

from headrace.client.cluster import Cluster
from headrace.client.errors import ProducerFenced, RequestRefused, UnknownPartition
from headrace.client.partition import TopicPartition
from headrace.client.produce import REQUEST_BYTES, BatchProducer, InvalidAcks
from headrace.client.shared_transaction import new_identity
from headrace.client.topics import NewTopic, create_topics
from tests.broker.processes import BrokerProcess
from tests.client.batches import batch, fresh_name, numbers, read_values, write


def test_many_batches_keep_their_order_in_each_partition(
    cluster: Cluster, partitions: list[TopicPartition]
) -> None:
    producer = BatchProducer(cluster)
    for start in range(0, 500, 5):
        for partition in partitions:
            producer.send(partition, batch(numbers(start, start + 5)))
    assert producer.flush() == dict.fromkeys(partitions, 0)
    assert producer.flush() == {}
    for partition in partitions:
        assert read_values(cluster, partition) == numbers(0, 500)


def test_a_flush_names_the_offset_of_the_first_batch(
    cluster: Cluster, partitions: list[TopicPartition]
) -> None:
    producer = BatchProducer(cluster, acks=1, max_in_flight=1)
    for _ in range(2):
        producer.send(partitions[0], batch(numbers(0, 3)))
    assert producer.flush() == {partitions[0]: 0}
    producer.send(partitions[1], batch(numbers(0, 3)))
    producer.send(partitions[0], batch(numbers(0, 3)))
    assert producer.flush() == {partitions[1]: 0, partitions[0]: 6}


def test_batches_larger_than_a_request_go_alone(cluster: Cluster) -> None:
    topic = fresh_name("large")
    configs = {"max.message.bytes": "8000000"}
    create_topics(cluster, [NewTopic(name=topic, partitions=2, configs=configs)])
    values = [random.randbytes(3 * REQUEST_BYTES) for _ in range(4)]
    producer = BatchProducer(cluster)
    for number, value in enumerate(values):
        producer.send(TopicPartition(topic, number % 2), batch([value]))
    producer.flush()
    assert read_values(cluster, TopicPartition(topic, 0)) == values[::2]
    assert read_values(cluster, TopicPartition(topic, 1)) == values[1::2]


def test_a_numbered_batch_that_is_sent_twice_is_stored_once(
    cluster: Cluster, partition: TopicPartition
) -> None:
    identity = new_identity(cluster)
    batches = [batch(numbers(n, n + 1), identity, n, transactional=False) for n in range(4)]
    assert write(cluster, partition, *batches) == 0
    assert write(cluster, partition, *batches[2:]) == 2
    assert read_values(cluster, partition) == numbers(0, 4)


def test_every_writer_gets_an_identity_of_its_own(cluster: Cluster) -> None:
    assert new_identity(cluster).producer_id != new_identity(cluster).producer_id


@pytest.mark.parametrize("is_numbered", [True, False], ids=["numbered", "plain"])
def test_a_broker_may_be_killed_while_batches_are_on_their_way(tmp_path: Path, is_numbered: bool) -> None:
    with BrokerProcess(tmp_path / "data") as broker, Cluster.of(broker.address) as cluster:
        create_topics(cluster, [NewTopic(name="topic", partitions=2)])
        partitions = [TopicPartition("topic", index) for index in range(2)]
        identity = new_identity(cluster) if is_numbered else None
        producer = BatchProducer(cluster)
        for number in range(300):
            for partition in partitions:
                each = batch(numbers(number, number + 1), identity, number, transactional=False)
                producer.send(partition, each)
            if number in (100, 200):
                broker.kill()  # up to five requests have no answer yet
                broker.start()
        assert producer.flush() == dict.fromkeys(partitions, 0)
        for partition in partitions:
            values = read_values(cluster, partition)
            assert values == numbers(0, 300) if is_numbered else set(values) == set(numbers(0, 300))


def test_a_partition_that_does_not_exist_is_explained(bootstrap: str) -> None:
    with Cluster.of(bootstrap, timeout_s=2) as cluster, pytest.raises(UnknownPartition):
        write(cluster, TopicPartition(fresh_name("ghost"), 0), batch([b"x"]))


def test_a_batch_that_is_refused_is_explained(cluster: Cluster, partition: TopicPartition) -> None:
    spoiled = batch([b"x"])
    spoiled[-1] ^= 1
    with pytest.raises(RequestRefused, match=f"store a batch in {partition}"):
        write(cluster, partition, spoiled)
    assert write(cluster, partition, batch([b"y"])) == 0  # the connection is still in order


def test_a_sequence_with_a_hole_is_refused(cluster: Cluster, partition: TopicPartition) -> None:
    identity = new_identity(cluster)
    write(cluster, partition, batch([b"x"], identity, 0, transactional=False))
    with pytest.raises(RequestRefused, match="Kafka error 45"):
        write(cluster, partition, batch([b"x"], identity, 7, transactional=False))


def test_an_old_epoch_is_fenced(cluster: Cluster, partition: TopicPartition) -> None:
    identity = new_identity(cluster)
    newer = identity._replace(epoch=identity.epoch + 1)
    write(cluster, partition, batch([b"x"], newer, 0, transactional=False))
    with pytest.raises(ProducerFenced, match="fenced by a newer one"):
        write(cluster, partition, batch([b"x"], identity, 0, transactional=False))


def test_writing_without_answers_is_refused(cluster: Cluster) -> None:
    with pytest.raises(InvalidAcks, match="acks=0 is not supported"):
        BatchProducer(cluster, acks=0)
