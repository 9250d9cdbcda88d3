"""Failures of workers: back-off, exceptions, missing topics."""

import gc
import logging
import socket
import time
from datetime import timedelta
from itertools import islice
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer

from headrace import queue
from headrace.client.errors import RequestRefused, UnknownTopic
from headrace.errors import Misuse
from headrace.queues import Message
from tests.broker.processes import wait_until
from tests.queues.conftest import NewQueue, Send

IDLE = timedelta(seconds=2)


class Boom(Exception):
    """An error of a worker."""


def test_a_released_message_is_delivered_again_after_its_delay(
    address: str, new_queue: NewQueue, send: Send
) -> None:
    topic = new_queue()
    send(topic, b"busy")
    released_at = 0.0
    waited: list[float] = []
    for message in islice(queue(topic, group="g", broker=address), 2):
        if message.deliveries == 1:
            released_at = time.time()
            message.release(delay=timedelta(seconds=1))
        else:
            waited.append(time.time() - released_at)
    assert len(waited) == 1
    assert waited[0] >= 0.99


def test_a_released_message_does_not_block_others(address: str, new_queue: NewQueue, send: Send) -> None:
    topic = new_queue()
    send(topic, b"hard", b"easy", b"easier")
    values = []
    for message in islice(queue(topic, group="g", broker=address, backoff="5 minutes"), 3):
        values.append(message.value)
        if message.value == b"hard":
            message.release()
    assert values == [b"hard", b"easy", b"easier"]


def test_the_backoff_grows_with_each_delivery() -> None:
    default = queue("orders", group="g")
    assert [default.delay_s(deliveries) for deliveries in (1, 2, 3, 4)] == [1, 2, 4, 8]
    assert default.delay_s(10_000) == 300


def test_a_message_that_always_fails_is_retried_with_back_off_and_becomes_a_dead_letter(
    address: str, new_queue: NewQueue, send: Send
) -> None:
    topic = new_queue()
    send(topic, b"poison")
    at: list[float] = []
    settings = {"share.delivery.count.limit": "3"}
    worker = queue(topic, group="g", broker=address, backoff="200 ms", settings=settings)
    for message in islice(worker, 3):
        at.append(time.time())
        message.release()
    assert len(at) == 3
    assert (at[1] - at[0] >= 0.19, at[2] - at[1] >= 0.39) == (True, True)
    dead = queue(f"{topic}.g.dead", group="clerk", broker=address)
    assert [letter.value for letter in islice(dead, 1)] == [b"poison"]


def test_a_negative_delay_is_rejected() -> None:
    message = Message(
        topic="t",
        partition=0,
        offset=0,
        key=None,
        value=None,
        headers=(),
        timestamp_ms=0,
        deliveries=1,
        topic_id=UUID(int=0),
        _renew=lambda _: None,
    )
    for delay in (timedelta(seconds=-1), "soon"):
        with pytest.raises(Misuse, match="delay is"):
            message.release(delay=delay)


@pytest.mark.parametrize("on_error", ["release", "reject"])
def test_a_loop_continues_after_an_exception(
    address: str, new_queue: NewQueue, send: Send, caplog: pytest.LogCaptureFixture, on_error: str
) -> None:
    topic = new_queue()
    send(topic, b"bad", b"good")
    seen = []
    worker = queue(
        topic,
        group="g",
        broker=address,
        idle_timeout="1 second",
        on_error=on_error,  # type: ignore[arg-type]  # one of the three
        backoff="100 ms",
    )
    with caplog.at_level(logging.ERROR, "headrace.queues"):
        for message in worker:
            with message:
                seen.append((message.value, message.deliveries))
                if message.value == b"bad" and message.deliveries == 1:
                    raise Boom
    if on_error == "release":
        assert sorted(seen) == [(b"bad", 1), (b"bad", 2), (b"good", 1)]
    else:
        assert sorted(seen) == [(b"bad", 1), (b"good", 1)]
        assert len(list(queue(f"{topic}.g.dead", group="clerk", broker=address, idle_timeout=IDLE))) == 1
    (record,) = caplog.records
    assert f"{topic} partition 0 offset 0 failed at delivery 1" in record.getMessage()


def test_an_exception_ends_the_loop_by_default(address: str, new_queue: NewQueue, send: Send) -> None:
    topic = new_queue()
    send(topic, b"bad")

    def work() -> None:
        for message in queue(topic, group="g", broker=address, backoff="100 ms"):
            with message:
                raise Boom

    with pytest.raises(Boom):
        work()
    assert [m.deliveries for m in islice(queue(topic, group="g", broker=address), 1)] == [2]


async def test_an_async_loop_continues_after_an_exception(
    address: str, new_queue: NewQueue, send: Send
) -> None:
    topic = new_queue()
    send(topic, b"bad", b"good")
    seen = []
    async for message in queue(topic, group="g", broker=address, idle_timeout="1 second", on_error="reject"):
        with message:
            seen.append(message.value)
            if message.value == b"bad":
                raise Boom
    assert seen == [b"bad", b"good"]


def test_a_topic_that_does_not_exist_is_an_error(address: str) -> None:
    with pytest.raises(UnknownTopic, match="'no-such-topic' does not exist"):
        list(queue("no-such-topic", group="g", broker=address, idle_timeout="300 ms"))


def test_a_topic_may_be_created_after_its_worker_started(
    address: str, new_queue: NewQueue, send: Send
) -> None:
    topic = new_queue()
    late = f"{topic}-late"
    values = []
    send(topic, b"first")
    for message in queue(topic, late, group="g", broker=address, idle_timeout="10 seconds"):
        values.append(message.value)
        if message.value == b"first":
            send(late, b"second")
        else:
            break
    assert values == [b"first", b"second"]


def test_invalid_arguments_are_rejected() -> None:
    with pytest.raises(Misuse, match="on_error"):
        queue("t", group="g", on_error="ignore")  # type: ignore[arg-type]  # rejected
    with pytest.raises(Misuse, match="max_backoff"):
        queue("t", group="g", backoff="1 hour")
    with pytest.raises(Misuse, match="idle_timeout is 1, which is not a duration"):
        queue("t", group="g", idle_timeout=1)  # type: ignore[arg-type]  # rejected


@pytest.mark.parametrize("refused", [{"settings": {"share.no.such.setting": "1"}}, {"group": "readers"}])
def test_a_queue_that_is_refused_leaves_no_connection_open(
    address: str, new_queue: NewQueue, refused: dict[str, Any]
) -> None:
    topic = new_queue()
    consumer = Consumer({"bootstrap.servers": address, "group.id": "readers"})
    consumer.subscribe([topic])
    wait_until(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()), "the consumer group")
    with pytest.raises(RequestRefused):
        list(queue(topic, broker=address, **{"group": "workers"} | refused))
    assert open_connections(address) == []
    consumer.close()


def open_connections(address: str) -> list[socket.socket]:
    """The open sockets of Python clients of a broker."""
    sockets = [each for each in gc.get_objects() if isinstance(each, socket.socket) and each.fileno() >= 0]
    port = int(address.rpartition(":")[2])
    return [each for each in sockets if each.family is socket.AF_INET and port_of_peer(each) == port]


def port_of_peer(connection: socket.socket) -> int | None:
    try:
        return int(connection.getpeername()[1])
    except OSError:  # a socket that listens
        return None
