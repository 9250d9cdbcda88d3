"""Large messages, and the limits of topic and broker."""

import os

import pytest
from kio.schema.errors import ErrorCode

from tests.behavior.clients.contract import (
    Client,
    ConsumerOptions,
    Message,
    ProducerOptions,
    Refused,
    TopicPartition,
)
from tests.behavior.names import NewTopic
from tests.behavior.reading import read, values


def test_a_message_of_nearly_a_megabyte_passes(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    large = os.urandom(1_000_000)
    client.producer().send(topic, [Message(value=large)])
    consumer = client.consumer()
    consumer.assign(TopicPartition(topic, 0))
    assert values(read(consumer, 1)) == [large]


def test_a_message_above_the_default_limit_is_refused(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    with pytest.raises(Refused) as refused:
        client.producer().send(topic, [Message(value=os.urandom(1_100_000))])
    assert refused.value.error is ErrorCode.message_too_large


def test_a_message_above_the_topics_limit_is_refused_and_the_next_one_passes(
    client: Client, new_topic: NewTopic
) -> None:
    topic = new_topic(max_message_bytes="10000")
    producer = client.producer()
    with pytest.raises(Refused) as refused:
        producer.send(topic, [Message(value=os.urandom(12_000))])
    assert refused.value.error is ErrorCode.message_too_large
    producer.send(topic, [Message(value=b"small")])
    consumer = client.consumer()
    consumer.assign(TopicPartition(topic, 0))
    assert values(read(consumer, 1)) == [b"small"]


def test_a_topic_may_allow_more_than_the_default(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(max_message_bytes="5000000")
    large = os.urandom(3_000_000)
    client.producer().send(topic, [Message(value=large)])
    consumer = client.consumer()
    consumer.assign(TopicPartition(topic, 0))
    assert values(read(consumer, 1)) == [large]


def test_the_limit_counts_compressed_bytes(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(max_message_bytes="10000")
    compressible = b"a" * 500_000
    client.producer(ProducerOptions(compression="gzip")).send(topic, [Message(value=compressible)])
    consumer = client.consumer()
    consumer.assign(TopicPartition(topic, 0))
    assert values(read(consumer, 1)) == [compressible]


def test_a_message_larger_than_what_a_reader_asks_for_arrives_all_the_same(
    client: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    large = [Message(value=os.urandom(50_000), partition=0) for _ in range(3)]
    producer = client.producer()
    for message in large:
        producer.send(topic, [message])
    consumer = client.consumer(ConsumerOptions(partition_max_bytes=1_000))
    consumer.assign(TopicPartition(topic, 0))
    assert values(read(consumer, 3)) == [message.value for message in large]
