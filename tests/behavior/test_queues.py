"""Share groups with librdkafka's share consumer."""

import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.behavior.clients.contract import Client, Message, ProducerOptions
from tests.behavior.clients.java import SOURCE, class_path
from tests.behavior.names import NewName, NewTopic
from tests.behavior.reading import wait_until
from tests.behavior.workers import REJECT, RELEASE, Worker, set_group

pytestmark = pytest.mark.broker_only("confluent")

NewWorker = Callable[..., Worker]


@pytest.fixture
def group(broker: str, new_name: NewName) -> str:
    """A share group that starts at the earliest offset with a delivery limit of three."""
    name = new_name("share")
    set_group(broker, name, {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": "3"})
    return name


@pytest.fixture
def new_worker(broker: str, group: str) -> Iterator[NewWorker]:
    """A function that creates workers of the group, which are closed at the end."""
    made: list[Worker] = []

    def make(*topics: str, **options: int) -> Worker:
        made.append(Worker(broker, group, *topics, **options))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


def send(client: Client, topic: str, *values: bytes) -> None:
    producer = client.producer()
    for value in values:
        producer.send(topic, [Message(value=value)])


def test_a_queue(client: Client, new_topic: NewTopic, new_worker: NewWorker) -> None:
    """A, B and C share one partition; m1 is delivered again after A releases it, and blocks no other."""
    topic = new_topic()
    send(client, topic, b"m1", b"m2", b"m3")
    a, b, c = (new_worker(topic, at_once=1) for _ in range(3))
    (first,) = a.take()
    (second,) = b.take()
    (third,) = c.take()
    assert [m.value() for m in (first, second, third)] == [b"m1", b"m2", b"m3"]
    b.say([second])
    a.say([first], RELEASE)
    c.say([third])
    (again,) = b.take()
    assert (again.value(), again.delivery_count()) == (b"m1", 2)
    b.say([again])
    assert [worker.take_quietly() for worker in (a, b, c)] == [[], [], []]


def test_records_of_a_member_that_leaves_are_delivered_to_another(
    client: Client, new_topic: NewTopic, new_worker: NewWorker
) -> None:
    topic = new_topic()
    send(client, topic, b"m1", b"m2")
    gone = new_worker(topic)
    taken = gone.take(2)
    other = new_worker(topic)
    gone.say(taken[:1])
    gone._consumer.acknowledge(taken[1], RELEASE)
    gone.close()
    (message,) = other.take()
    assert (message.value(), message.delivery_count()) == (b"m2", 2)
    other.say([message])


def test_a_message_is_delivered_up_to_the_delivery_limit(
    client: Client, new_topic: NewTopic, new_worker: NewWorker
) -> None:
    topic = new_topic()
    send(client, topic, b"poison", b"good")
    worker = new_worker(topic, at_once=1)
    counts = []
    for _ in range(4):
        (message,) = worker.take()
        counts.append((message.value(), message.delivery_count()))
        worker.say([message], RELEASE if message.value() == b"poison" else 1)
    assert sorted(counts) == [(b"good", 1), (b"poison", 1), (b"poison", 2), (b"poison", 3)]
    assert worker.take_quietly() == []


def test_a_rejected_message_is_not_delivered_again(
    client: Client, new_topic: NewTopic, new_worker: NewWorker
) -> None:
    topic = new_topic()
    send(client, topic, b"bad", b"good")
    worker = new_worker(topic)
    bad, good = worker.take(2)
    worker.say([bad], REJECT)
    worker.say([good])
    assert worker.take_quietly() == []


def test_more_workers_than_partitions_share_all_messages(
    client: Client, new_topic: NewTopic, new_worker: NewWorker
) -> None:
    topic = new_topic(partitions=2)
    workers = [new_worker(topic, at_once=1) for _ in range(5)]
    sent = [b"%d" % number for number in range(40)]
    send(client, topic, *sent)
    got: list[bytes] = []

    def turn() -> bool:
        for worker in workers:
            messages = worker.poll()
            worker.say(messages)
            got.extend(message.value() for message in messages)
        return len(got) >= len(sent)

    wait_until(turn, "all messages to be done")
    assert sorted(got) == sorted(sent)


def test_each_group_receives_all_messages(
    client: Client, broker: str, new_topic: NewTopic, new_worker: NewWorker, new_name: NewName
) -> None:
    topic, other_group = new_topic(), new_name("other")
    set_group(broker, other_group, {"share.auto.offset.reset": "earliest"})
    send(client, topic, b"m1", b"m2")
    ours, other = new_worker(topic), Worker(broker, other_group, topic)
    for worker in (ours, other):
        messages = worker.take(2)
        assert [message.value() for message in messages] == [b"m1", b"m2"]
        worker.say(messages)
    other.close()


def test_aborted_messages_are_not_delivered_to_a_group_that_reads_committed_ones(
    client: Client, broker: str, group: str, new_topic: NewTopic, new_worker: NewWorker, new_name: NewName
) -> None:
    topic = new_topic()
    set_group(broker, group, {"share.isolation.level": "read_committed"})
    producer = client.producer(ProducerOptions(transactional_id=new_name("txn")))
    for value, commits in ((b"aborted", False), (b"kept", True)):
        producer.begin()
        producer.send(topic, [Message(value=value)])
        (producer.commit if commits else producer.abort)()
    worker = new_worker(topic)
    (message,) = worker.take()
    assert message.value() == b"kept"
    worker.say([message])
    assert worker.take_quietly() == []


def test_a_group_starts_with_the_first_message_within_a_duration(
    client: Client, broker: str, group: str, new_topic: NewTopic, new_worker: NewWorker
) -> None:
    topic, now_ms = new_topic(), round(1000 * time.time())
    set_group(broker, group, {"share.auto.offset.reset": "by_duration:PT1H30M"})
    for value, age_minutes in ((b"two hours", 120), (b"one hour", 60), (b"two hours again", 120)):
        message = Message(value=value, timestamp_ms=now_ms - 60_000 * age_minutes)
        client.producer().send(topic, [message])
    worker = new_worker(topic)
    messages = worker.take(2)
    assert [message.value() for message in messages] == [b"one hour", b"two hours again"]
    worker.say(messages)


def test_a_group_starts_at_the_end_when_no_message_is_within_the_duration(
    client: Client, broker: str, group: str, new_topic: NewTopic, new_worker: NewWorker
) -> None:
    topic, now_ms = new_topic(), round(1000 * time.time())
    set_group(broker, group, {"share.auto.offset.reset": "by_duration:P1D"})
    client.producer().send(topic, [Message(value=b"last week", timestamp_ms=now_ms - 7 * 86_400_000)])
    worker = new_worker(topic)
    assert worker.take_quietly() == []
    send(client, topic, b"now")
    (message,) = worker.take()
    assert message.value() == b"now"
    worker.say([message])


@pytest.mark.broker_only("java")
def test_the_java_client_renews_rejects_releases_and_accepts(
    client: Client, broker: str, group: str, new_topic: NewTopic
) -> None:
    topic = new_topic()
    send(client, topic, b"m1", b"m2", b"m3", b"m4")
    command = ["java", "-XX:TieredStopAtLevel=1", "-cp", class_path(), str(SOURCE.with_name("Shares.java"))]
    done = subprocess.run(
        [*command, broker, group, topic], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.splitlines() == [
        "took [m1/1, m2/1, m3/1, m4/1]",
        "said true",
        "again [m1/1, m3/2]",
        "members 1",
        "partitions 1",
    ], done.stderr
