"""What goes in comes out: keys, values, headers, timestamps, compression, acknowledgements."""

import time

import pytest

from tests.behavior.clients.contract import Client, Message, ProducerOptions, TopicPartition
from tests.behavior.names import NewTopic
from tests.behavior.reading import read, values

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.mark.each(codec=CODECS)
def test_messages_come_back_as_they_were_sent(client: Client, new_topic: NewTopic, codec: str) -> None:
    topic = new_topic()
    sent = [
        Message(
            key=b"key-%d" % n, value=b"value %d " % n * 20, headers=(("number", b"%d" % n), ("kind", b"test"))
        )
        for n in range(100)
    ]
    client.producer(ProducerOptions(compression=codec, linger_ms=20)).send(topic, sent)
    consumer = client.consumer()
    consumer.assign(TopicPartition(topic, 0))
    received = read(consumer, len(sent))
    assert [(each.key, each.value, each.headers) for each in received] == [
        (each.key, each.value, each.headers) for each in sent
    ]
    assert [each.offset for each in received] == list(range(100))


@pytest.mark.each(acks=["0", "1", "all"])
def test_messages_arrive_whatever_acknowledgement_is_asked_for(
    client: Client, new_topic: NewTopic, acks: str
) -> None:
    topic = new_topic()
    sent = [Message(value=b"%d" % n, partition=0) for n in range(20)]
    client.producer(ProducerOptions(acks=acks)).send(topic, sent)
    consumer = client.consumer()
    consumer.assign(TopicPartition(topic, 0))
    assert values(read(consumer, 20)) == values(sent)


def test_an_acknowledged_message_has_its_partition_and_offset(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=2)
    messages = [Message(value=b"%d" % n, partition=n % 2) for n in range(6)]
    reports = client.producer().send(topic, messages)
    assert [(report.partition, report.offset) for report in reports] == [
        (0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)
    ]  # fmt: skip


def test_an_idempotent_producer_writes_each_message_once_and_in_order(
    client: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    sent = [Message(value=b"%d" % n, partition=0) for n in range(300)]
    producer = client.producer(ProducerOptions(idempotent=True))
    for start in range(0, 300, 50):
        producer.send(topic, sent[start : start + 50])
    consumer = client.consumer()
    consumer.assign(TopicPartition(topic, 0))
    assert values(read(consumer, 300)) == values(sent)
    assert client.offset(TopicPartition(topic, 0), "latest") == 300


def test_null_and_empty_are_different_values(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    sent = [
        Message(key=b"k", value=None, partition=0),
        Message(key=b"k", value=b"", partition=0),
        Message(key=b"", value=b"v", partition=0),
        Message(key=None, value=b"v", partition=0),
    ]
    client.producer().send(topic, sent)
    consumer = client.consumer()
    consumer.assign(TopicPartition(topic, 0))
    assert [(each.key, each.value) for each in read(consumer, 4)] == [
        (b"k", None),
        (b"k", b""),
        (b"", b"v"),
        (None, b"v"),
    ]


def test_headers_keep_their_order_their_repetitions_and_empty_values(
    client: Client, new_topic: NewTopic
) -> None:
    topic = new_topic()
    headers = (("b", b"1"), ("a", b"2"), ("b", b"3"), ("nothing", b""), ("ünïcode", "ß".encode()))
    client.producer().send(topic, [Message(value=b"v", headers=headers)])
    consumer = client.consumer()
    consumer.assign(TopicPartition(topic, 0))
    assert read(consumer, 1)[0].headers == headers


def test_a_timestamp_given_by_the_producer_is_kept(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic()
    yesterday = int(time.time() * 1000) - 86_400_000  # nothing so old that retention would delete it
    times = [yesterday + 123, yesterday, yesterday + 124]
    sent = [Message(value=b"v", timestamp_ms=each, partition=0) for each in times]
    client.producer(ProducerOptions(linger_ms=20)).send(topic, sent)
    consumer = client.consumer()
    consumer.assign(TopicPartition(topic, 0))
    assert [each.timestamp_ms for each in read(consumer, 3)] == times


def test_a_topic_with_log_append_time_stamps_messages_itself(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    client.producer().send(topic, [Message(value=b"v", timestamp_ms=1_600_000_000_000)])
    consumer = client.consumer()
    consumer.assign(TopicPartition(topic, 0))
    stamp = read(consumer, 1)[0].timestamp_ms
    assert before - 1000 <= stamp <= int(time.time() * 1000) + 1000


def test_a_key_decides_the_partition(client: Client, new_topic: NewTopic) -> None:
    # The expected places follow from murmur2, whose values for these keys Kafka's own tests state.
    topic = new_topic(partitions=4)
    sent = [Message(key=key, value=b"%d" % n) for n in range(5) for key in (b"21", b"foobar")]
    reports = client.producer().send(topic, sent)
    assert {(message.key, report.partition) for message, report in zip(sent, reports, strict=True)} == {
        (b"21", 0),
        (b"foobar", 2),
    }
    consumer = client.consumer()
    consumer.assign(TopicPartition(topic, 0))
    assert values(read(consumer, 5)) == [b"0", b"1", b"2", b"3", b"4"]


def test_many_messages_keep_their_order_in_each_partition(client: Client, new_topic: NewTopic) -> None:
    topic = new_topic(partitions=3)
    sent = [Message(value=b"%d" % n, partition=n % 3) for n in range(3000)]
    client.producer(ProducerOptions(compression="gzip", linger_ms=5)).send(topic, sent)
    consumer = client.consumer()
    consumer.assign(*(TopicPartition(topic, number) for number in range(3)))
    received = read(consumer, 3000)
    for number in range(3):
        mine = [each.value for each in received if each.partition == number]
        assert mine == [b"%d" % n for n in range(number, 3000, 3)]
