"""Where a reader starts, how it waits, and how it moves."""

import time

import pytest
from kio.schema.errors import ErrorCode

from tests.behavior.clients.contract import (
    CONSUMER_DEFAULTS,
    Client,
    Consumer,
    ConsumerOptions,
    Message,
    Refused,
    TopicPartition,
)
from tests.behavior.names import NewName, NewTopic
from tests.behavior.reading import read, read_quietly, values, wait_until


def messages(count: int) -> list[Message]:
    return [Message(value=b"%d" % n, partition=0) for n in range(count)]


def reader(client: Client, topic: str, options: ConsumerOptions = CONSUMER_DEFAULTS) -> Consumer:
    consumer = client.consumer(options)
    consumer.assign(TopicPartition(topic, 0))
    return consumer


def test_a_waiting_reader_gets_a_message_as_soon_as_it_is_there(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    producer = client.producer()
    consumer = reader(client, topic, ConsumerOptions(fetch_wait_ms=20_000))
    assert read_quietly(consumer) == []  # its fetch now waits at the broker
    producer.send(topic, messages(1))
    sent_at = time.monotonic()
    assert values(read(consumer, 1)) == [b"0"]
    assert time.monotonic() - sent_at < 10  # half the wait of the fetch


def test_a_fetch_that_wants_more_bytes_than_there_are_is_answered_when_its_wait_ends(
    client: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    client.producer().send(topic, messages(3))
    consumer = reader(client, topic, ConsumerOptions(fetch_min_bytes=1_000_000, fetch_wait_ms=300))
    assert values(read(consumer, 3)) == [b"0", b"1", b"2"]


def test_a_reader_can_seek_back(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.producer().send(topic, messages(10))
    consumer = reader(client, topic)
    read(consumer, 10)
    consumer.seek(TopicPartition(topic, 0), 7)
    assert values(read(consumer, 3)) == [b"7", b"8", b"9"]
    assert consumer.position(TopicPartition(topic, 0)) == 10


def test_a_reader_can_seek_forward(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.producer().send(topic, messages(1))
    consumer = reader(client, topic)
    read(consumer, 1)
    client.producer().send(topic, messages(10)[1:])
    consumer.seek(TopicPartition(topic, 0), 8)
    assert values(read(consumer, 2))[-2:] == [b"8", b"9"]


def test_a_reader_without_an_offset_starts_at_the_earliest_message_when_asked(
    client: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    client.producer().send(topic, messages(3))
    assert values(read(reader(client, topic, ConsumerOptions(reset="earliest")), 3)) == [b"0", b"1", b"2"]


def test_a_reader_without_an_offset_starts_after_the_latest_message_when_asked(
    client: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    producer = client.producer()
    producer.send(topic, [Message(value=b"old")])
    consumer = reader(client, topic, ConsumerOptions(reset="latest"))
    received = []

    def something_new_arrives() -> bool:
        producer.send(topic, [Message(value=b"new")])
        received.extend(consumer.poll(0.2))
        return bool(received)

    wait_until(something_new_arrives, "a new message")
    assert set(values(received)) == {b"new"}


def test_an_offset_beyond_the_end_is_out_of_range(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(), new_name("group")
    client.producer().send(topic, messages(3))
    reader(client, topic, ConsumerOptions(group=group)).commit({TopicPartition(topic, 0): 100})
    strict = reader(client, topic, ConsumerOptions(group=group, reset="none"))
    with pytest.raises(Refused) as refused:
        read(strict, 1)
    assert refused.value.error is ErrorCode.offset_out_of_range


def test_a_reader_out_of_range_goes_where_its_reset_policy_says(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.producer().send(topic, messages(3))
    consumer = reader(client, topic)
    read(consumer, 3)
    consumer.seek(TopicPartition(topic, 0), 100)
    assert values(read(consumer, 3)) == [b"0", b"1", b"2"]


def test_deleted_records_are_gone_and_the_log_starts_later(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    client.producer().send(topic, messages(10))
    assert client.delete_records(partition, 6) == 6
    assert client.offset(partition, "earliest") == 6
    assert client.offset(partition, "latest") == 10
    assert values(read(reader(client, topic), 4)) == [b"6", b"7", b"8", b"9"]


def test_all_records_can_be_deleted_and_offsets_go_on(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    producer = client.producer()
    producer.send(topic, messages(4))
    assert client.delete_records(partition, -1) == 4
    assert producer.send(topic, [Message(value=b"next")])[0].offset == 4
    assert values(read(reader(client, topic), 1)) == [b"next"]


def test_records_beyond_the_end_cannot_be_deleted(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    client.producer().send(topic, messages(2))
    with pytest.raises(Refused) as refused:
        client.delete_records(TopicPartition(topic, 0), 5)
    assert refused.value.error is ErrorCode.offset_out_of_range
