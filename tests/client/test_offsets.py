"""Where partitions begin and end, and where times fall."""

import time

from headrace.client.cluster import Cluster
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.client.shared_transaction import SharedTransaction
from tests.client.batches import batch, end_of, fresh_name, numbers, write

NOON_MS = int(time.time() * 1000) - 3_600_000


def test_beginnings_and_ends_of_many_partitions(cluster: Cluster, partitions: list[TopicPartition]) -> None:
    write(cluster, partitions[0], batch(numbers(0, 5)))
    write(cluster, partitions[2], batch(numbers(0, 7)))
    assert list(list_offsets(cluster, dict.fromkeys(partitions, LATEST)).values()) == [5, 0, 7]
    assert list(list_offsets(cluster, dict.fromkeys(partitions, EARLIEST)).values()) == [0, 0, 0]


def test_nothing_asked_is_nothing_answered(cluster: Cluster) -> None:
    assert list_offsets(cluster, {}) == {}


def test_a_time_gives_the_first_offset_at_or_after_it(cluster: Cluster, partition: TopicPartition) -> None:
    batches = [batch([b"x"], time_ms=NOON_MS + second * 1000) for second in range(3)]
    write(cluster, partition, *batches)
    for time_ms, offset in ((NOON_MS - 1, 0), (NOON_MS, 0), (NOON_MS + 1, 1), (NOON_MS + 2001, -1)):
        assert list_offsets(cluster, {partition: time_ms}) == {partition: offset}


def test_the_end_for_committed_readers_is_where_an_open_transaction_begins(
    cluster: Cluster, partition: TopicPartition
) -> None:
    write(cluster, partition, batch(numbers(0, 5)))
    name = fresh_name("transaction")
    transaction = SharedTransaction.open(cluster, name)
    transaction.add([partition])
    write(cluster, partition, batch(numbers(5, 10), transaction.identity), transactional_id=name)
    assert end_of(cluster, partition) == 5
    assert end_of(cluster, partition, read_committed=False) == 10
    transaction.abort()
