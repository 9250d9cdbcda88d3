"""The worked examples of fan-out, load balancing, both at once, and a slow consumer."""

from tests.behavior.clients.contract import (
    Client,
    Consumer,
    ConsumerOptions,
    Message,
    Received,
    TopicPartition,
)
from tests.behavior.names import NewName, NewTopic
from tests.behavior.reading import ConsumerPool, read, values


def member(client: Client, group: str, topic: str) -> Consumer:
    consumer = client.consumer(ConsumerOptions(group=group))
    consumer.subscribe(topic)
    return consumer


def send_numbered(client: Client, topic: str, count: int, partitions: int) -> list[bytes]:
    sent = [Message(value=b"%d" % n, partition=n % partitions) for n in range(count)]
    client.producer().send(topic, sent)
    return [b"%d" % n for n in range(count)]


def are_in_order(received: list[Received]) -> bool:
    offsets: dict[int, list[int]] = {}
    for message in received:
        offsets.setdefault(message.partition, []).append(message.offset)
    return all(each == sorted(each) for each in offsets.values())


def test_fan_out(client: Client, new_topic: NewTopic, new_name: NewName) -> None:
    topic = new_topic()
    pool = ConsumerPool(
        member(client, new_name("group-a"), topic), member(client, new_name("group-b"), topic)
    )
    client.producer().send(topic, [Message(value=value) for value in (b"1", b"2", b"3")])
    pool.read(6)
    assert [values(received) for received in pool.received] == [[b"1", b"2", b"3"], [b"1", b"2", b"3"]]


def test_load_balancing(client: Client, new_topic: NewTopic, new_name: NewName) -> None:
    topic, group = new_topic(partitions=2), new_name("group")
    pool = ConsumerPool(member(client, group, topic), member(client, group, topic))
    pool.settle(topic, 2)
    sent = send_numbered(client, topic, 40, 2)
    pool.read(40)
    a, b = pool.received
    assert sorted(values(a + b)) == sorted(sent)
    assert (len(a), len(b)) == (20, 20)
    assert are_in_order(a)
    assert are_in_order(b)


def test_both_at_once(client: Client, new_topic: NewTopic, new_name: NewName) -> None:
    topic, x, y = new_topic(partitions=2), new_name("group-x"), new_name("group-y")
    pair = ConsumerPool(member(client, x, topic), member(client, x, topic))
    pair.settle(topic, 2)
    everything = ConsumerPool(*pair.consumers, member(client, y, topic))
    sent = send_numbered(client, topic, 40, 2)
    everything.read(80)
    a, b, c = everything.received
    assert sorted(values(c)) == sorted(sent)
    assert sorted(values(a + b)) == sorted(sent)
    assert a
    assert b


def test_a_slow_consumer(client: Client, new_topic: NewTopic, new_name: NewName) -> None:
    topic, slow_group = new_topic(), new_name("slow")
    partition = TopicPartition(topic, 0)
    sent = send_numbered(client, topic, 100, 1)
    slow, fast = member(client, slow_group, topic), member(client, new_name("fast"), topic)
    read(slow, 1)
    slow.commit({partition: 10})  # it has done a tenth when the other has done all
    assert values(read(fast, 100)) == sent
    slow.close()
    resumed = member(client, slow_group, topic)
    assert values(read(resumed, 90)) == sent[10:]
    assert resumed.committed(partition) == 10
