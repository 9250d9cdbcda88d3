"""The metadata and connections of a cluster."""

import os
import threading
from pathlib import Path

import pytest

from headrace.client.bootstrap import Address, Bootstrap, with_profile
from headrace.client.cluster import Cluster
from headrace.client.errors import BrokerUnreachable, UnknownPartition
from headrace.client.offsets import LATEST, fetch_offsets, list_offsets
from headrace.client.partition import TopicPartition, murmur2
from headrace.client.produce import BatchProducer
from headrace.client.shared_transaction import SharedTransaction
from headrace.client.topics import NewTopic, create_topics
from tests.broker.processes import BrokerProcess
from tests.client.batches import batch, end_of, fresh_name, numbers, read_values, write
from tools.apache_kafka import ApacheKafkaCluster

TRANSACTIONS = 9


def test_keys_have_the_same_hashes_as_in_the_java_client() -> None:
    # From Kafka's own tests (UtilsTest.testMurmur2), without the sign.
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    assert {key: murmur2(key) for key in known} == {key: n & 0xFFFFFFFF for key, n in known.items()}


def test_topics_are_described_and_missing_ones_are_absent(
    cluster: Cluster, partitions: list[TopicPartition]
) -> None:
    topic = partitions[0].topic
    described = cluster.topics([topic, "no-such-topic"])
    assert list(described) == [topic]
    assert described[topic].partitions == (0, 1, 2)
    assert not described[topic].internal


def test_all_topics_are_described_when_none_is_named(cluster: Cluster, partition: TopicPartition) -> None:
    assert partition.topic in cluster.topics()
    assert cluster.topics([]) == {}


def test_asking_for_a_topic_does_not_create_it(cluster: Cluster) -> None:
    name = fresh_name("ghost")
    assert cluster.topics([name]) == {}
    assert cluster.topics([name]) == {}


def test_leader_and_coordinators_are_found(cluster: Cluster, partition: TopicPartition) -> None:
    (broker,) = cluster.brokers()
    assert cluster.leader(partition).name == str(broker)
    assert cluster.group_coordinator("group").name == str(broker)
    assert cluster.transaction_coordinator("transaction").name == str(broker)


@pytest.mark.parametrize("missing", ["topic", "partition"])
def test_a_partition_that_does_not_exist_is_explained(
    bootstrap: str, partition: TopicPartition, missing: str
) -> None:
    unknown = TopicPartition("no-such-topic", 0) if missing == "topic" else partition._replace(partition=7)
    with (
        Cluster.of(bootstrap, timeout_s=2) as cluster,
        pytest.raises(UnknownPartition, match="Check its name, or create it"),
    ):
        cluster.leader(unknown)


def test_a_dead_address_among_the_bootstrap_does_not_matter(bootstrap: str) -> None:
    found = Bootstrap.of(bootstrap)
    with Cluster.of(with_profile(found.profile, f"127.0.0.1:1,{found.servers}")) as cluster:
        assert cluster.topics([]) == {}


def test_a_cluster_that_is_not_there_is_waited_for_and_then_explained() -> None:
    with (
        Cluster([Address(host="127.0.0.1", port=1)], timeout_s=0.2) as cluster,
        pytest.raises(BrokerUnreachable, match=r"no broker responds at 127\.0\.0\.1:1"),
    ):
        cluster.topics()


def test_a_restart_of_the_broker_goes_unnoticed(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, Cluster.of(broker.address) as cluster:
        create_topics(cluster, [NewTopic(name="topic", partitions=1)])
        partition = TopicPartition("topic", 0)
        write(cluster, partition, batch(numbers(0, 10)))
        broker.kill()
        broker.start()
        assert end_of(cluster, partition) == 10
        assert list(cluster.topics(["topic"])) == ["topic"]


def test_a_broker_that_comes_back_late_is_waited_for(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker, Cluster.of(broker.address) as cluster:
        broker.kill()
        start = threading.Thread(target=broker.start)
        start.start()
        assert cluster.topics([]) == {}
        start.join()


def test_a_forked_process_opens_connections_of_its_own(cluster: Cluster, partition: TopicPartition) -> None:
    mine = cluster.leader(partition)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            # Many answers, so that sharing the socket would show.
            ends = {list_offsets(cluster, {partition: LATEST})[partition] for _ in range(50)}
            os.write(writing, b"%d %d" % (ends == {0}, cluster.leader(partition) is mine))
        finally:
            os._exit(0)
    os.close(writing)
    ends = {list_offsets(cluster, {partition: LATEST})[partition] for _ in range(50)}
    with os.fdopen(reading, "rb") as answers:
        assert answers.read() == b"1 0"
    os.waitpid(child, 0)
    assert ends == {0}
    assert cluster.leader(partition) is mine


def test_the_addresses_of_a_text_are_those_of_the_cluster(bootstrap: str) -> None:
    with Cluster.of(bootstrap, client_id="tests", timeout_s=5) as cluster:
        assert cluster.timeout_s == 5
        assert cluster.any().name == str(Bootstrap.of(bootstrap).addresses[0])


@pytest.mark.cluster
@pytest.mark.timeout(400)
def test_transactions_survive_the_death_of_a_node() -> None:
    with ApacheKafkaCluster() as kafka, Cluster.of(kafka.bootstrap, timeout_s=60) as cluster:
        create_topics(cluster, [NewTopic(name="topic", partitions=6)])
        partitions = [TopicPartition("topic", index) for index in range(6)]
        transaction = SharedTransaction.open(cluster, "transaction")
        for number in range(TRANSACTIONS):
            transaction.add(partitions)
            if number == TRANSACTIONS // 2:
                kafka.nodes[0].kill()
            producer = BatchProducer(cluster, transactional_id="transaction")
            for sequence in range(2):
                each = batch(numbers(number, number + 1), transaction.identity, sequence)
                for partition in partitions:
                    producer.send(partition, each)
            producer.flush()
            transaction.commit_offsets("group", {partitions[0]: number})
            transaction.abort() if number == 2 else transaction.commit()
        SharedTransaction.open(cluster, "transaction")
        expected = [value for value in numbers(0, TRANSACTIONS) for _ in range(2) if value != b"2"]
        assert [read_values(cluster, partition) for partition in partitions] == [expected] * 6
        assert fetch_offsets(cluster, "group", partitions[:1]) == {partitions[0]: TRANSACTIONS - 1}
