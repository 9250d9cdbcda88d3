"""Messages and members that the broker refuses, and with which error."""

import time

import pytest
from kio.schema.errors import ErrorCode

from tests.behavior.clients.contract import Client, Consumer, ConsumerOptions, Message, Refused
from tests.behavior.names import NewName, NewTopic
from tests.behavior.reading import ConsumerPool, read

HOUR_MS = 3_600_000


def refusal_of_sending(client: Client, topic: str, message: Message) -> ErrorCode:
    with pytest.raises(Refused) as refused:
        client.producer().send(topic, [message])
    return refused.value.error


def refusal_of_reading(consumer: Consumer) -> ErrorCode:
    with pytest.raises(Refused) as refused:
        read(consumer, 1)
    return refused.value.error


def test_a_message_from_more_than_an_hour_in_the_future_is_refused(
    client: Client, new_topic: NewTopic
) -> None:
    future_ms = int(time.time() * 1000) + 2 * HOUR_MS
    error = refusal_of_sending(client, new_topic(), Message(value=b"v", timestamp_ms=future_ms))
    assert error is ErrorCode.invalid_timestamp


def test_a_message_older_than_the_topic_allows_is_refused(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(message_timestamp_before_max_ms=str(HOUR_MS))
    past_ms = int(time.time() * 1000) - 2 * HOUR_MS
    error = refusal_of_sending(client, topic, Message(value=b"v", timestamp_ms=past_ms))
    assert error is ErrorCode.invalid_timestamp


@pytest.mark.needs("invalid record")
def test_a_message_without_a_key_is_refused_by_a_compacted_topic(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(cleanup_policy="compact")
    assert refusal_of_sending(client, topic, Message(value=b"v")) is ErrorCode.invalid_record


def test_a_session_timeout_below_the_brokers_minimum_is_refused(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    consumer = client.consumer(ConsumerOptions(group=new_name("group"), session_timeout_ms=1_000))
    consumer.subscribe(new_topic())
    assert refusal_of_reading(consumer) is ErrorCode.invalid_session_timeout


def test_a_member_whose_assignor_the_group_does_not_know_is_refused(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(), new_name("group")
    first = client.consumer(ConsumerOptions(group=group, assignor="range"))
    first.subscribe(topic)
    ConsumerPool(first).settle(topic, 1)
    stranger = client.consumer(ConsumerOptions(group=group, assignor="roundrobin"))
    stranger.subscribe(topic)
    assert refusal_of_reading(stranger) is ErrorCode.inconsistent_group_protocol


@pytest.mark.needs("fenced instance")
def test_a_static_member_is_fenced_by_another_of_its_name(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(), new_name("group")
    first, second = (client.consumer(ConsumerOptions(group=group, instance_id="twin")) for _ in range(2))
    first.subscribe(topic)
    ConsumerPool(first).settle(topic, 1)
    second.subscribe(topic)
    ConsumerPool(second).settle(topic, 1)
    assert refusal_of_reading(first) is ErrorCode.fenced_instance_id
