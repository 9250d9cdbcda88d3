"""Members come, go and die; commits stay."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.behavior import member as member_process
from tests.behavior.clients.contract import Client, Consumer, ConsumerOptions, Message, TopicPartition
from tests.behavior.names import NewName, NewTopic
from tests.behavior.reading import ConsumerPool, read, values


def member(client: Client, group: str, topic: str, **options: str) -> Consumer:
    consumer = client.consumer(ConsumerOptions(group=group, **options))
    consumer.subscribe(topic)
    return consumer


def everything(topic: str, partitions: int) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for number in range(partitions))


@pytest.mark.each(assignor=["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_two_members_share_the_partitions_whatever_the_assignor(
    client: Client, new_topic: NewTopic, new_name: NewName, assignor: str
) -> None:
    topic, group = new_topic(partitions=4), new_name("group")
    pool = ConsumerPool(*(member(client, group, topic, assignor=assignor) for _ in range(2)))
    pool.settle(topic, 4)
    assert [len(consumer.assignment()) for consumer in pool.consumers] == [2, 2]
    client.producer().send(topic, [Message(value=b"%d" % n, partition=n % 4) for n in range(40)])
    pool.read(40)
    assert sorted(values(pool.received[0] + pool.received[1])) == sorted(b"%d" % n for n in range(40))


@pytest.mark.each(assignor=["range", "cooperative-sticky"])
def test_a_new_member_takes_its_share(
    client: Client, new_topic: NewTopic, new_name: NewName, assignor: str
) -> None:
    topic, group = new_topic(partitions=2), new_name("group")
    first = member(client, group, topic, assignor=assignor)
    alone = ConsumerPool(first)
    alone.settle(topic, 2)
    both = ConsumerPool(first, member(client, group, topic, assignor=assignor))
    both.settle(topic, 2)
    assert [len(consumer.assignment()) for consumer in both.consumers] == [1, 1]


def test_a_member_beyond_the_number_of_partitions_stays_idle(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(), new_name("group")
    pool = ConsumerPool(member(client, group, topic), member(client, group, topic))

    def has_settled() -> bool:
        if group not in client.groups():
            return False  # no member has joined yet
        described = client.group(group)
        shares = sorted(len(consumer.assignment()) for consumer in pool.consumers)
        return (described.state, len(described.members), shares) == ("stable", 2, [0, 1])

    pool.poll_until(has_settled, "one member with the partition, and one without")
    client.producer().send(topic, [Message(value=b"%d" % n) for n in range(5)])
    pool.read(5)
    assert sorted(map(len, pool.received)) == [0, 5]


def test_the_partitions_of_a_member_that_leaves_move_to_the_others(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(partitions=2), new_name("group")
    first, second = member(client, group, topic), member(client, group, topic)
    ConsumerPool(first, second).settle(topic, 2)
    first.close()
    rest = ConsumerPool(second)
    rest.settle(topic, 2)
    client.producer().send(topic, [Message(value=b"%d" % n, partition=n) for n in range(2)])
    rest.read(2)
    assert sorted(values(rest.received[0])) == [b"0", b"1"]


@contextmanager
def doomed_member(library: str, broker: str, group: str, topic: str) -> Iterator[None]:
    """A member that has joined, in a process that is killed when the block ends."""
    command = [sys.executable, "-m", member_process.__name__, library, broker, group, topic]
    # In a process group of its own, for the Java client is a child of that process.
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "joined\n"
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_the_partitions_of_a_member_that_dies_move_when_its_session_has_ended(
    client: Client, library: str, broker: str, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(partitions=2), new_name("group")
    with doomed_member(library, broker, group, topic):
        assert client.group(group).members[0].partitions == everything(topic, 2)
    survivor = ConsumerPool(member(client, group, topic))
    survivor.settle(topic, 2)
    client.producer().send(topic, [Message(value=b"%d" % n, partition=n) for n in range(2)])
    survivor.read(2)
    assert sorted(values(survivor.received[0])) == [b"0", b"1"]


def test_a_static_member_that_bounces_causes_no_rebalance(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(partitions=2), new_name("group")
    bouncing, staying = (member(client, group, topic, instance_id=name) for name in ("bouncing", "staying"))
    ConsumerPool(bouncing, staying).settle(topic, 2)
    before = (bouncing.assignment(), staying.assignments)
    bouncing.close()
    returned = member(client, group, topic, instance_id="bouncing")
    # The other member does not poll: in a rebalance, this one would wait for it forever.
    ConsumerPool(returned).poll_until(lambda: bool(returned.assignment()), "the returned member's partitions")
    assert returned.assignment() == before[0]
    client.producer().send(topic, [Message(value=b"%d" % n, partition=n) for n in range(2)])
    read(staying, 1)
    assert staying.assignments == before[1]


def test_a_restarted_consumer_goes_on_from_its_commit(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(), new_name("group")
    client.producer().send(topic, [Message(value=b"%d" % n) for n in range(10)])
    first = member(client, group, topic)
    read(first, 10)
    first.commit({TopicPartition(topic, 0): 4})
    first.close()
    second = member(client, group, topic)
    assert values(read(second, 6)) == [b"%d" % n for n in range(4, 10)]


def test_without_a_commit_a_restarted_consumer_starts_again(
    client: Client, new_topic: NewTopic, new_name: NewName
) -> None:
    topic, group = new_topic(), new_name("group")
    client.producer().send(topic, [Message(value=b"%d" % n) for n in range(3)])
    first = member(client, group, topic)
    read(first, 3)
    assert first.committed(TopicPartition(topic, 0)) is None
    first.close()
    assert values(read(member(client, group, topic), 3)) == [b"0", b"1", b"2"]


def test_commits_of_two_groups_do_not_touch(client: Client, new_topic: NewTopic, new_name: NewName) -> None:
    topic = new_topic()
    partition = TopicPartition(topic, 0)
    client.producer().send(topic, [Message(value=b"%d" % n) for n in range(10)])
    readers = [client.consumer(ConsumerOptions(group=new_name("group"))) for _ in range(2)]
    for offset, consumer in zip((3, 7), readers, strict=True):
        consumer.assign(partition)
        consumer.commit({partition: offset})
    assert [consumer.committed(partition) for consumer in readers] == [3, 7]
