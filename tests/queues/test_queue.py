import asyncio
import json
from datetime import timedelta

import pytest

from headrace import queue
from headrace.errors import Misuse
from tests.queues.conftest import NewQueue, Send

IDLE = timedelta(seconds=2)


class Boom(Exception):
    """An error of a worker."""


def test_a_message_is_accepted_when_the_body_ends(address: str, new_queue: NewQueue, send: Send) -> None:
    topic = new_queue()
    send(topic, b"1", b"2", b"3")
    orders = queue(topic, group="mailer", broker=address, idle_timeout=IDLE)
    assert [message.value for message in orders] == [b"1", b"2", b"3"]
    assert list(orders) == []


def test_a_message_is_released_when_the_body_raises(address: str, new_queue: NewQueue, send: Send) -> None:
    topic = new_queue()
    send(topic, b"1", b"2")
    orders = queue(topic, group="mailer", broker=address, idle_timeout=IDLE)

    def work() -> None:
        for _ in orders:
            raise Boom

    with pytest.raises(Boom):
        work()
    assert [(message.value, message.deliveries) for message in orders] == [(b"1", 2), (b"2", 1)]


def test_a_break_releases_the_message_unless_it_was_accepted(
    address: str, new_queue: NewQueue, send: Send
) -> None:
    topic = new_queue()
    send(topic, b"1", b"2")
    orders = queue(topic, group="mailer", broker=address, idle_timeout=IDLE)
    for message in orders:
        message.accept()
        break
    for _ in orders:
        break
    assert [(message.value, message.deliveries) for message in orders] == [(b"2", 2)]


def test_prefetched_messages_are_released_when_the_loop_ends(
    address: str, new_queue: NewQueue, send: Send
) -> None:
    topic = new_queue()
    send(topic, *(b"%d" % number for number in range(20)))
    for message in queue(topic, group="mailer", broker=address, prefetch=10):
        if message.value == b"3":
            message.accept()
            break
    rest = queue(topic, group="mailer", broker=address, idle_timeout=IDLE, prefetch=7)
    assert [int(message.value or b"") for message in rest] == list(range(4, 20))


def test_a_rejected_message_is_a_dead_letter_with_its_origin(
    address: str, new_queue: NewQueue, send: Send
) -> None:
    topic = new_queue()
    send(topic, b'{"to": "nobody"}', key=b"k", headers=[("trace", b"t1")])
    for message in queue(topic, group="mailer", broker=address, idle_timeout=IDLE):
        assert message.json() == {"to": "nobody"}
        message.reject()
    (letter,) = queue(f"{topic}.mailer.dead", group="undertaker", broker=address, idle_timeout=IDLE)
    assert (letter.key, letter.json()) == (b"k", {"to": "nobody"})
    assert dict(letter.headers) == {
        "trace": b"t1",
        "__dlq.errors.topic": topic.encode(),
        "__dlq.errors.partition": b"0",
        "__dlq.errors.offset": b"0",
        "__dlq.errors.group": b"mailer",
        "__dlq.errors.delivery.count": b"1",
        "__dlq.errors.message": b"Offset rejected by client.",
    }


def test_a_renewed_message_stays_locked(address: str, new_queue: NewQueue, send: Send) -> None:
    topic = new_queue()
    send(topic, b"long work")
    settings = {"share.record.lock.duration.ms": "3000"}
    orders = queue(topic, group="slow", broker=address, settings=settings)
    impatient = queue(topic, group="slow", broker=address, idle_timeout="400 ms")
    for message in orders:
        for _ in range(8):  # eight times 0.4 s are longer than the lock
            message.renew()
            assert list(impatient) == []
        message.accept()
        break
    assert list(impatient) == []


def test_without_renewal_a_lock_expires(address: str, new_queue: NewQueue, send: Send) -> None:
    topic = new_queue()
    send(topic, b"long work")
    settings = {"share.record.lock.duration.ms": "1000"}
    for _ in queue(topic, group="slow", broker=address, settings=settings):
        for again in queue(topic, group="slow", broker=address):
            assert again.deliveries == 2
            again.accept()
            break
        break
    assert list(queue(topic, group="slow", broker=address, idle_timeout=IDLE)) == []


async def test_async_for_accepts_and_releases(address: str, new_queue: NewQueue, send: Send) -> None:
    topic = new_queue()
    send(topic, b"1", b"2", b"3")

    async def work() -> None:
        async for message in queue(topic, group="mailer", broker=address):
            if message.value == b"2":
                raise Boom

    with pytest.raises(Boom):
        await work()
    got = [m async for m in queue(topic, group="mailer", broker=address, idle_timeout=2 * IDLE)]
    assert [(message.value, message.deliveries) for message in got] == [(b"2", 2), (b"3", 1)]


async def test_workers_share_the_messages(address: str, new_queue: NewQueue, send: Send) -> None:
    topic = new_queue(partitions=2)
    sent = [b"%d" % number for number in range(100)]
    send(topic, *sent)

    async def work() -> list[bytes | None]:
        return [m.value async for m in queue(topic, group="crew", broker=address, idle_timeout=IDLE)]

    done = await asyncio.gather(*(work() for _ in range(4)))
    assert sorted(value for values in done for value in values if value) == sorted(sent)
    assert sum(map(bool, done)) > 1


def test_a_queue_needs_a_topic_a_group_and_a_positive_prefetch() -> None:
    for topics, group, prefetch in (((), "g", 1), (("t",), "", 1), (("t",), "g", 0)):
        with pytest.raises(Misuse):
            queue(*topics, group=group, prefetch=prefetch)


def test_values_that_are_not_json_are_available_as_bytes(
    address: str, new_queue: NewQueue, send: Send
) -> None:
    topic = new_queue()
    send(topic, b"\xff")
    for message in queue(topic, group="g", broker=address, idle_timeout=IDLE):
        with pytest.raises((UnicodeDecodeError, json.JSONDecodeError)):
            message.json()


def test_a_start_in_the_settings_overrides_the_default(address: str, new_queue: NewQueue, send: Send) -> None:
    topic = new_queue()
    send(topic, b"before the group")
    latest = {"share.auto.offset.reset": "latest"}
    assert list(queue(topic, group=topic, broker=address, idle_timeout="200 ms", settings=latest)) == []
