"""Topics: made, grown, deleted, refused."""

import pytest
from kio.schema.errors import ErrorCode

from tests.behavior.clients.contract import Client, Message, Refused, TopicPartition
from tests.behavior.names import NewName, NewTopic
from tests.behavior.reading import read, values, wait_until


def refusal_of_creating(client: Client, topic: str, **arguments: object) -> ErrorCode:
    with pytest.raises(Refused) as refused:
        client.create_topic(topic, **arguments)
    return refused.value.error


def test_a_created_topic_is_listed_with_its_partitions(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=3)
    assert topic in client.topics()
    assert client.partitions(topic) == 3


def test_a_topic_that_exists_cannot_be_created_again(client: Client, new_topic: NewTopic) -> None:
    assert refusal_of_creating(client, new_topic()) is ErrorCode.topic_already_exists


@pytest.mark.parametrize("name", ["with space", "slash/es", "..", "ü", "x" * 250])
def test_a_name_that_kafka_does_not_allow_is_refused(client: Client, name: str) -> None:
    assert refusal_of_creating(client, name) is ErrorCode.invalid_topic_exception


def test_names_that_differ_only_in_dot_and_underscore_collide(client: Client, new_name: NewName) -> None:
    name = new_name("collide")
    client.create_topic(f"{name}.a")
    assert refusal_of_creating(client, f"{name}_a") is ErrorCode.invalid_topic_exception


def test_a_topic_without_partitions_is_refused(client: Client, new_name: NewName) -> None:
    assert refusal_of_creating(client, new_name("none"), partitions=0) is ErrorCode.invalid_partitions


def test_more_replicas_than_brokers_are_refused(client: Client, new_name: NewName) -> None:
    assert refusal_of_creating(client, new_name("many"), replicas=2) is ErrorCode.invalid_replication_factor


def test_a_deleted_topic_is_gone(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.delete_topic(topic)
    wait_until(lambda: topic not in client.topics(), f"{topic} to be gone")


def test_a_topic_made_again_under_its_name_is_empty(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.producer().send(topic, [Message(value=b"old")])
    client.delete_topic(topic)
    wait_until(lambda: topic not in client.topics(), f"{topic} to be gone")
    client.create_topic(topic)
    wait_until(lambda: client.partitions(topic) == 1, f"{topic} to be back")
    client.producer().send(topic, [Message(value=b"new")])
    consumer = client.consumer()
    consumer.assign(TopicPartition(topic, 0))
    assert values(read(consumer, 1)) == [b"new"]


def test_an_unknown_topic_cannot_be_deleted(client: Client, new_name: NewName) -> None:
    with pytest.raises(Refused) as refused:
        client.delete_topic(new_name("unknown"))
    assert refused.value.error is ErrorCode.unknown_topic_or_partition


def test_added_partitions_take_messages(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.producer().send(topic, [Message(value=b"first", partition=0)])
    client.add_partitions(topic, 3)
    wait_until(lambda: client.partitions(topic) == 3, "three partitions")
    client.producer().send(topic, [Message(value=b"second", partition=2)])
    consumer = client.consumer()
    consumer.assign(*(TopicPartition(topic, number) for number in range(3)))
    assert sorted((each.partition, each.value) for each in read(consumer, 2)) == [
        (0, b"first"),
        (2, b"second"),
    ]


@pytest.mark.parametrize("total", [1, 2])
def test_partitions_cannot_become_fewer_or_stay_the_same(
    client: Client, new_topic: NewTopic, total: int
) -> None:
    topic = new_topic(partitions=2)
    with pytest.raises(Refused) as refused:
        client.add_partitions(topic, total)
    assert refused.value.error is ErrorCode.invalid_partitions


def test_partitions_cannot_be_added_to_an_unknown_topic(client: Client, new_name: NewName) -> None:
    with pytest.raises(Refused) as refused:
        client.add_partitions(new_name("unknown"), 3)
    assert refused.value.error is ErrorCode.unknown_topic_or_partition


def test_a_message_to_an_unknown_topic_creates_it_with_one_partition(
    client: Client, new_name: NewName
) -> None:
    topic = new_name("automatic")
    client.producer().send(topic, [Message(value=b"1")])
    assert client.partitions(topic) == 1
    consumer = client.consumer()
    consumer.assign(TopicPartition(topic, 0))
    assert values(read(consumer, 1)) == [b"1"]
