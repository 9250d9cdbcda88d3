"""Topics, their sizes and offsets."""

import time

import pytest

from headrace.client.cluster import Cluster
from headrace.client.errors import BrokerUnreachable, RequestRefused
from headrace.client.offsets import EARLIEST, LATEST, commit_offsets, fetch_offsets, list_offsets
from headrace.client.partition import TopicPartition
from headrace.client.shared_transaction import SharedTransaction
from headrace.client.topics import NewTopic, create_topics
from tests.client.batches import batch, end_of, fresh_name, numbers, write

NOON_MS = int(time.time() * 1000) - 3_600_000


def test_a_new_topic_can_be_written_to_at_once(cluster: Cluster) -> None:
    name = fresh_name("topic")
    assert create_topics(cluster, [NewTopic(name=name, partitions=4)]) == {name}
    assert [write(cluster, TopicPartition(name, index), batch([b"x"])) for index in range(4)] == [0] * 4


def test_a_topic_that_exists_is_left_alone(cluster: Cluster) -> None:
    old, new = fresh_name("old"), fresh_name("new")
    create_topics(cluster, [NewTopic(name=old, partitions=2)])
    wanted = [NewTopic(name=old, partitions=5), NewTopic(name=new, configs={"cleanup.policy": "compact"})]
    assert create_topics(cluster, wanted) == {new}
    assert cluster.topics([old])[old].partitions == (0, 1)


def test_nothing_to_create_asks_nobody() -> None:
    assert create_topics(Cluster.of("127.0.0.1:1"), []) == set()


@pytest.mark.parametrize(
    ("topic", "complaint"),
    [
        (NewTopic(name="not/a/name"), "create the topic 'not/a/name'"),
        (NewTopic(name="topic", partitions=0), "(?i)partitions"),
        (NewTopic(name="topic", configs={"no.such.setting": "1"}), r"no\.such\.setting"),
    ],
)
def test_what_cannot_be_created_is_explained(cluster: Cluster, topic: NewTopic, complaint: str) -> None:
    with pytest.raises(RequestRefused, match=complaint):
        create_topics(cluster, [topic])


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


def test_committed_offsets_are_fetched(cluster: Cluster, partitions: list[TopicPartition]) -> None:
    group = fresh_name("group")
    commit_offsets(cluster, group, {partitions[0]: 12, partitions[2]: 7})
    assert fetch_offsets(cluster, group, partitions) == {partitions[0]: 12, partitions[2]: 7}
    commit_offsets(cluster, group, {partitions[0]: 3})
    assert fetch_offsets(cluster, group, partitions[:1]) == {partitions[0]: 3}


def test_an_unknown_group_has_no_offsets(cluster: Cluster, partitions: list[TopicPartition]) -> None:
    assert fetch_offsets(cluster, fresh_name("group"), partitions) == {}
    assert fetch_offsets(cluster, fresh_name("group"), []) == {}


def test_metadata_that_is_too_long_is_refused(cluster: Cluster, partition: TopicPartition) -> None:
    with pytest.raises(RequestRefused, match=f"commit the offset of 'group' in {partition}: offset_meta"):
        commit_offsets(cluster, "group", {partition: 1}, metadata="x" * 5000)


def test_a_stable_offset_waits_for_the_open_transaction(
    cluster: Cluster, partition: TopicPartition, bootstrap: str
) -> None:
    group = fresh_name("group")
    commit_offsets(cluster, group, {partition: 1})
    transaction = SharedTransaction.open(cluster, fresh_name("transaction"))
    transaction.commit_offsets(group, {partition: 2})
    with Cluster.of(bootstrap, timeout_s=2) as impatient:
        with pytest.raises(RequestRefused, match="unstable_offset_commit"):
            fetch_offsets(impatient, group, [partition])
        assert fetch_offsets(impatient, group, [partition], require_stable=False) == {partition: 1}
    transaction.commit()
    assert fetch_offsets(cluster, group, [partition]) == {partition: 2}


def test_a_broker_that_is_gone_is_explained() -> None:
    with Cluster.of("127.0.0.1:1", timeout_s=0.1) as cluster, pytest.raises(BrokerUnreachable):
        commit_offsets(cluster, "group", {TopicPartition("topic", 0): 1})
