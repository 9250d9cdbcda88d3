"""Groups seen from outside: listed, described, deleted."""

import pytest
from kio.schema.errors import ErrorCode

from tests.behavior.clients.contract import (
    Client,
    Consumer,
    ConsumerOptions,
    Group,
    Message,
    Refused,
    TopicPartition,
)
from tests.behavior.names import NewName, NewTopic
from tests.behavior.reading import ConsumerPool, wait_until


def stable_member(client: Client, group: str, topic: str, **options: str) -> Consumer:
    consumer = client.consumer(ConsumerOptions(group=group, **options))
    consumer.subscribe(topic)
    pool = ConsumerPool(consumer)
    pool.settle(topic, client.partitions(topic))
    pool.poll_until(lambda: client.group(group).state == "stable", "a stable group")
    return consumer


def test_a_group_is_listed(client: Client, new_topic: NewTopic, new_name: NewName) -> None:
    group = new_name("group")
    stable_member(client, group, new_topic())
    assert group in client.groups()


def test_a_group_is_described_with_its_members_and_their_partitions(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(partitions=2), new_name("group")
    stable_member(client, group, topic)
    (member,) = client.group(group).members
    assert member.partitions == {TopicPartition(topic, 0), TopicPartition(topic, 1)}
    assert member.instance_id is None


@pytest.mark.needs("instance id")
def test_a_static_member_is_described_with_its_instance_id(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    group = new_name("group")
    stable_member(client, group, new_topic(), instance_id="machine-1")
    assert [member.instance_id for member in client.group(group).members] == ["machine-1"]


def test_a_group_that_all_members_left_is_empty(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(), new_name("group")
    member = stable_member(client, group, topic)
    member.commit({TopicPartition(topic, 0): 0})
    member.close()
    wait_until(lambda: client.group(group) == Group(state="empty", members=()), "an empty group")


def test_an_unknown_group_is_dead_or_not_found(client: Client, new_name: NewName) -> None:
    # DescribeGroups up to version 5 answers "Dead", from version 6 on an error.
    assert _state_or_error(client, new_name("unknown")) in {"dead", "group_id_not_found"}


def _state_or_error(client: Client, group: str) -> str:
    try:
        return client.group(group).state
    except Refused as refused:
        return refused.error.name


@pytest.mark.needs("delete group")
def test_a_group_with_members_cannot_be_deleted(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    group = new_name("group")
    stable_member(client, group, new_topic())
    with pytest.raises(Refused) as refused:
        client.delete_group(group)
    assert refused.value.error is ErrorCode.non_empty_group


@pytest.mark.needs("delete group")
def test_a_deleted_group_has_no_offsets(client: Client, new_topic: NewTopic, new_name: NewName) -> None:
    topic, group = new_topic(), new_name("group")
    partition = TopicPartition(topic, 0)
    client.producer().send(topic, [Message(value=b"1")])
    member = stable_member(client, group, topic)
    member.commit({partition: 1})
    member.close()
    client.delete_group(group)
    assert group not in client.groups()
    assert client.consumer(ConsumerOptions(group=group)).committed(partition) is None


@pytest.mark.needs("delete group")
def test_an_unknown_group_cannot_be_deleted(client: Client, new_name: NewName) -> None:
    with pytest.raises(Refused) as refused:
        client.delete_group(new_name("unknown"))
    assert refused.value.error is ErrorCode.group_id_not_found


@pytest.mark.needs("delete offsets")
def test_a_deleted_offset_is_gone(client: Client, new_topic: NewTopic, new_name: NewName) -> None:
    topic, group = new_topic(partitions=2), new_name("group")
    kept, deleted = TopicPartition(topic, 0), TopicPartition(topic, 1)
    member = stable_member(client, group, topic)
    member.commit({kept: 1, deleted: 1})
    member.close()
    client.delete_offsets(group, deleted)
    consumer = client.consumer(ConsumerOptions(group=group))
    assert (consumer.committed(kept), consumer.committed(deleted)) == (1, None)


@pytest.mark.needs("delete offsets")
def test_the_offset_of_a_topic_that_members_read_cannot_be_deleted(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(), new_name("group")
    partition = TopicPartition(topic, 0)
    member = stable_member(client, group, topic)
    member.commit({partition: 0})
    with pytest.raises(Refused) as refused:
        client.delete_offsets(group, partition)
    assert refused.value.error is ErrorCode.group_subscribed_to_topic
