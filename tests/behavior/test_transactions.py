"""All or nothing: transactions, what readers see of them, and who may write."""

import pytest
from kio.schema.errors import ErrorCode

from tests.behavior.clients.contract import (
    Client,
    Consumer,
    ConsumerOptions,
    Isolation,
    Message,
    Producer,
    ProducerOptions,
    Refused,
    TopicPartition,
)
from tests.behavior.names import NewName, NewTopic
from tests.behavior.reading import read, read_quietly, values, wait_until

FENCED = {ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch}


def transactional(client: Client, transactional_id: str, timeout_ms: int = 60_000) -> Producer:
    options = ProducerOptions(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
    return client.producer(options)


def reader(client: Client, topic: str, isolation: Isolation, partitions: int = 1) -> Consumer:
    consumer = client.consumer(ConsumerOptions(isolation=isolation))
    consumer.assign(*(TopicPartition(topic, number) for number in range(partitions)))
    return consumer


def messages(*texts: bytes) -> list[Message]:
    return [Message(value=text, partition=0) for text in texts]


def test_a_committed_transaction_is_seen(client: Client, new_topic: NewTopic, new_name: NewName) -> None:
    topic = new_topic()
    producer = transactional(client, new_name("txn"))
    producer.begin()
    producer.send(topic, messages(b"1", b"2"))
    producer.commit()
    assert values(read(reader(client, topic, "read_committed"), 2)) == [b"1", b"2"]
    assert values(read(reader(client, topic, "read_uncommitted"), 2)) == [b"1", b"2"]


def test_an_aborted_transaction_is_seen_only_by_those_who_read_uncommitted(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topic = new_topic()
    producer = transactional(client, new_name("txn"))
    producer.begin()
    producer.send(topic, messages(b"aborted"))
    producer.abort()
    producer.begin()
    producer.send(topic, messages(b"committed"))
    producer.commit()
    assert values(read(reader(client, topic, "read_committed"), 1)) == [b"committed"]
    assert values(read(reader(client, topic, "read_uncommitted"), 2)) == [b"aborted", b"committed"]


def test_the_end_of_a_transaction_takes_an_offset(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    producer = transactional(client, new_name("txn"))
    producer.begin()
    producer.send(topic, messages(b"1"))
    producer.commit()
    wait_until(lambda: client.offset(partition, "latest", "read_committed") == 2, "the marker of the commit")
    producer.begin()
    assert producer.send(topic, messages(b"2"))[0].offset == 2
    producer.abort()
    wait_until(lambda: client.offset(partition, "latest", "read_committed") == 4, "the marker of the abort")


def test_an_open_transaction_holds_back_those_who_read_committed(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    client.producer().send(topic, messages(b"before"))
    producer = transactional(client, new_name("txn"))
    producer.begin()
    producer.send(topic, messages(b"inside"))
    client.producer().send(topic, messages(b"after"))
    assert client.offset(partition, "latest", "read_committed") == 1
    assert client.offset(partition, "latest", "read_uncommitted") == 3
    patient = reader(client, topic, "read_committed")
    assert values(read(patient, 1)) == [b"before"]
    assert read_quietly(patient) == []
    assert values(read(reader(client, topic, "read_uncommitted"), 3)) == [b"before", b"inside", b"after"]
    producer.commit()
    assert values(read(patient, 2)) == [b"inside", b"after"]


def test_a_transaction_spans_partitions_and_topics(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topics = [new_topic(partitions=2), new_topic(partitions=2)]
    producer = transactional(client, new_name("txn"))
    for finish in (producer.abort, producer.commit):
        producer.begin()
        for topic in topics:
            word = finish.__name__.encode()
            producer.send(topic, [Message(value=word, partition=0), Message(value=word, partition=1)])
        finish()
    for topic in topics:
        received = read(reader(client, topic, "read_committed", 2), 2)
        assert sorted((each.partition, each.value) for each in received) == [(0, b"commit"), (1, b"commit")]


def test_consumed_offsets_are_committed_with_the_transaction(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    source, target = new_topic(), new_topic()
    partition = TopicPartition(source, 0)
    client.producer().send(source, messages(b"a", b"b", b"c"))
    consumer = client.consumer(ConsumerOptions(group=new_name("group"), isolation="read_committed"))
    consumer.subscribe(source)
    received = read(consumer, 3)
    producer = transactional(client, new_name("txn"))
    producer.begin()
    producer.send(target, [Message(value=(each.value or b"").upper()) for each in received])
    producer.send_offsets(consumer, {partition: 3})
    producer.commit()
    wait_until(lambda: consumer.committed(partition) == 3, "the offset that the transaction committed")
    assert values(read(reader(client, target, "read_committed"), 3)) == [b"A", b"B", b"C"]


def test_consumed_offsets_are_dropped_with_the_transaction(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    source, target, group = new_topic(), new_topic(), new_name("group")
    partition = TopicPartition(source, 0)
    client.producer().send(source, messages(b"a", b"b", b"c"))
    consumer = client.consumer(ConsumerOptions(group=group))
    consumer.subscribe(source)
    read(consumer, 3)
    consumer.commit({partition: 1})
    producer = transactional(client, new_name("txn"))
    producer.begin()
    producer.send(target, messages(b"A"))
    producer.send_offsets(consumer, {partition: 3})
    producer.abort()
    consumer.close()
    again = client.consumer(ConsumerOptions(group=group))
    again.subscribe(source)
    assert values(read(again, 2)) == [b"b", b"c"]


def test_a_second_producer_fences_the_first(client: Client, new_topic: NewTopic, new_name: NewName) -> None:
    topic, transactional_id = new_topic(), new_name("txn")
    zombie = transactional(client, transactional_id)
    zombie.begin()
    zombie.send(topic, messages(b"zombie's"))
    successor = transactional(client, transactional_id)
    successor.begin()
    successor.send(topic, messages(b"successor's"))
    with pytest.raises(Refused) as refused:
        zombie.commit()
    assert refused.value.error in FENCED
    successor.commit()
    assert values(read(reader(client, topic, "read_committed"), 1)) == [b"successor's"]


def test_a_late_message_of_a_fenced_producer_is_refused(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, transactional_id = new_topic(), new_name("txn")
    zombie = transactional(client, transactional_id)
    zombie.begin()
    zombie.send(topic, messages(b"early"))
    transactional(client, transactional_id)
    with pytest.raises(Refused) as refused:
        zombie.send(topic, messages(b"late"))
    assert refused.value.error in FENCED
    witness = reader(client, topic, "read_uncommitted")
    assert values(read(witness, 1)) == [b"early"]
    assert read_quietly(witness) == []


def test_a_producer_can_make_many_transactions(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topic = new_topic()
    producer = transactional(client, new_name("txn"))
    for number in range(12):
        producer.begin()
        producer.send(topic, messages(b"%d" % number, b"%d!" % number))
        if number % 3 == 2:
            producer.abort()
        else:
            producer.commit()
    expected = [text for n in range(12) if n % 3 != 2 for text in (b"%d" % n, b"%d!" % n)]
    assert values(read(reader(client, topic, "read_committed"), 16)) == expected


def test_a_restarted_producer_goes_on_under_its_transactional_id(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, transactional_id = new_topic(), new_name("txn")
    for number in range(3):
        producer = transactional(client, transactional_id)
        producer.begin()
        producer.send(topic, messages(b"%d" % number))
        producer.commit()
        producer.close()
    assert values(read(reader(client, topic, "read_committed"), 3)) == [b"0", b"1", b"2"]


def test_a_transaction_without_messages_commits(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topic = new_topic()
    producer = transactional(client, new_name("txn"))
    producer.begin()
    producer.commit()
    producer.begin()
    producer.send(topic, messages(b"1"))
    producer.commit()
    assert values(read(reader(client, topic, "read_committed"), 1)) == [b"1"]


def test_two_open_transactions_hold_back_readers_until_the_first_has_ended(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topic = new_topic()
    first, second = transactional(client, new_name("txn")), transactional(client, new_name("txn"))
    first.begin()
    first.send(topic, messages(b"first"))
    second.begin()
    second.send(topic, messages(b"second"))
    second.commit()
    patient = reader(client, topic, "read_committed")
    assert read_quietly(patient) == []
    assert client.offset(TopicPartition(topic, 0), "latest", "read_committed") == 0
    first.abort()
    assert values(read(patient, 1)) == [b"second"]


def test_a_transaction_timeout_above_the_brokers_maximum_is_refused(
    client: Client, new_name: NewName
) -> None:
    with pytest.raises(Refused) as refused:
        transactional(client, new_name("txn"), timeout_ms=900_001)
    assert refused.value.error is ErrorCode.invalid_transaction_timeout


@pytest.mark.broker_only("confluent")
def test_a_transaction_that_outlasts_its_timeout_is_aborted_by_the_broker(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    producer = transactional(client, new_name("txn"), timeout_ms=1_000)
    producer.begin()
    producer.send(topic, messages(b"forgotten"))
    assert client.offset(partition, "latest", "read_committed") == 0
    wait_until(lambda: client.offset(partition, "latest", "read_committed") == 2, "the broker's abort")
    client.producer().send(topic, messages(b"next"))
    assert values(read(reader(client, topic, "read_committed"), 1)) == [b"next"]
