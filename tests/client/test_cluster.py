"""Who leads and who coordinates what, through restarts, dead addresses and forks."""

import os
import threading
from pathlib import Path

import pytest

from headrace.client.bootstrap import Address, Bootstrap, with_profile
from headrace.client.cluster import Cluster
from headrace.client.errors import BrokerUnreachable, UnknownPartition
from headrace.client.offsets import LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.client.topics import NewTopic, create_topics
from tests.broker.processes import BrokerProcess
from tests.client.batches import batch, end_of, fresh_name, numbers, write


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
        pytest.raises(BrokerUnreachable, match=r"no broker answers at 127\.0\.0\.1:1"),
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
