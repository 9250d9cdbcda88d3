"""Topics that are created before something is written to them."""

import pytest

from headrace.client.cluster import Cluster
from headrace.client.errors import RequestRefused
from headrace.client.partition import TopicPartition
from headrace.client.topics import NewTopic, create_topics
from tests.client.batches import batch, fresh_name, write


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
