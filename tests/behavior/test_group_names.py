"""One name, one kind of group: a share group and a consumer group cannot have the same."""

import uuid
from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode

from headrace.client.cluster import Cluster
from headrace.client.share_groups import send_share_heartbeat
from tests.behavior.clients.contract import Client, ConsumerOptions, ProducerOptions, Refused, TopicPartition
from tests.behavior.names import NewName, NewTopic
from tests.behavior.reading import read
from tests.behavior.workers import Worker

pytestmark = pytest.mark.broker_only("confluent")

JOIN = 0


@pytest.fixture
def topic(new_topic: NewTopic) -> str:
    """A topic that members of either kind may read."""
    return new_topic()


@pytest.fixture
def share_group(broker: str, topic: str, new_name: NewName) -> Iterator[str]:
    """The name of a share group with a member."""
    name = new_name("share")
    worker = Worker(broker, name, topic)
    worker.take_quietly()
    yield name
    worker.close()


def test_a_consumer_cannot_join_a_share_group(client: Client, topic: str, share_group: str) -> None:
    consumer = client.consumer(ConsumerOptions(group=share_group))
    consumer.subscribe(topic)
    with pytest.raises(Refused) as refused:
        read(consumer, 1)
    assert refused.value.error is ErrorCode.inconsistent_group_protocol


def test_a_share_group_keeps_no_offsets_of_consumers(client: Client, topic: str, share_group: str) -> None:
    consumer = client.consumer(ConsumerOptions(group=share_group))
    first = TopicPartition(topic, 0)
    with pytest.raises(Refused) as refused:
        consumer.commit({first: 7})
    assert refused.value.error is ErrorCode.group_id_not_found
    assert consumer.committed(first) is None


def test_a_share_group_keeps_no_offsets_of_transactions(
    client: Client, topic: str, share_group: str, new_name: NewName
) -> None:
    consumer = client.consumer(ConsumerOptions(group=share_group))
    first = TopicPartition(topic, 0)
    producer = client.producer(ProducerOptions(transactional_id=new_name("tx")))
    producer.begin()
    with pytest.raises(Refused) as refused:
        producer.send_offsets(consumer, {first: 7})
    assert refused.value.error is ErrorCode.group_id_not_found
    producer.abort()
    assert consumer.committed(first) is None


def test_a_share_consumer_cannot_join_a_consumer_group(
    client: Client, broker: str, topic: str, new_name: NewName
) -> None:
    group = new_name("group")
    client.consumer(ConsumerOptions(group=group)).commit({TopicPartition(topic, 0): 0})
    cluster = Cluster.of(broker)
    assert (
        send_share_heartbeat(cluster, group, str(uuid.uuid4()), JOIN, [topic]).error
        is ErrorCode.group_id_not_found
    )
    cluster.close()
