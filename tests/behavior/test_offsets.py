"""Offsets by position and by time."""

import time

import pytest

from tests.behavior.clients.contract import Client, Message, TopicPartition
from tests.behavior.names import NewTopic

HOUR_MS = 3_600_000
# Yesterday: times that retention would not delete at once.
NOON_MS = int(time.time() * 1000) - 24 * HOUR_MS


def send_hourly(client: Client, topic: str, hours: list[int]) -> None:
    """One message for each hour after noon, each in a batch of its own."""
    producer = client.producer()
    for hour in hours:
        producer.send(
            topic, [Message(value=b"%d" % hour, timestamp_ms=NOON_MS + hour * HOUR_MS, partition=0)]
        )


def test_an_empty_partition_begins_and_ends_at_zero(client: Client, new_topic: NewTopic) -> None:
    partition = TopicPartition(new_topic(), 0)
    assert (client.offset(partition, "earliest"), client.offset(partition, "latest")) == (0, 0)


def test_the_latest_offset_is_one_after_the_last_message(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    send_hourly(client, topic, [0, 1, 2])
    partition = TopicPartition(topic, 0)
    assert (client.offset(partition, "earliest"), client.offset(partition, "latest")) == (0, 3)


def test_the_offset_of_a_time_is_the_first_message_at_or_after_it(
    client: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    send_hourly(client, topic, [0, 1, 2, 3])
    partition = TopicPartition(topic, 0)
    assert client.offset(partition, NOON_MS - HOUR_MS) == 0
    assert client.offset(partition, NOON_MS + HOUR_MS) == 1
    assert client.offset(partition, NOON_MS + HOUR_MS + 1) == 2


def test_a_time_after_the_last_message_has_no_offset(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    send_hourly(client, topic, [0, 1])
    assert client.offset(TopicPartition(topic, 0), NOON_MS + 2 * HOUR_MS) == -1


def test_a_time_is_found_inside_a_batch_too(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    batch = [Message(value=b"v", timestamp_ms=NOON_MS + n, partition=0) for n in range(50)]
    client.producer().send(topic, batch)
    assert client.offset(TopicPartition(topic, 0), NOON_MS + 33) == 33


@pytest.mark.needs("max timestamp")
def test_the_largest_timestamp_is_found_where_it_stands(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    send_hourly(client, topic, [1, 5, 2, 3])
    assert client.offset(TopicPartition(topic, 0), "max_timestamp") == 1


@pytest.mark.needs("max timestamp")
def test_an_empty_partition_has_no_largest_timestamp(client: Client, new_topic: NewTopic) -> None:
    assert client.offset(TopicPartition(new_topic(), 0), "max_timestamp") == -1
