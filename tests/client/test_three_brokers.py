"""Leaders and coordinators that really move: a node of three is killed in the middle."""

import pytest

from headrace.client.cluster import Cluster
from headrace.client.offsets import fetch_offsets
from headrace.client.partition import TopicPartition
from headrace.client.produce import BatchProducer
from headrace.client.shared_transaction import SharedTransaction
from headrace.client.topics import NewTopic, create_topics
from tests.client.batches import batch, numbers, read_values
from tools.apache_kafka import ApacheKafkaCluster

TRANSACTIONS = 9


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
