"""Acknowledgments are sent in batches, and are not delayed by a busy worker."""

import threading
from collections import Counter
from datetime import timedelta

import pytest

from headrace import queue
from headrace.client.cluster import Cluster
from headrace.client.connection import Connection
from headrace.client.share_groups import SHARE_ACKNOWLEDGE, SHARE_FETCH, share_progress
from headrace.protocol.share import AcknowledgeType
from headrace.queues.consumer import ShareConsumer
from tests.broker.processes import wait_until
from tests.queues.conftest import NewQueue, Send

IDLE = timedelta(seconds=2)


def left_over(address: str, group: str) -> int:
    with Cluster.of(address) as cluster:
        return sum(part.lag for part in share_progress(cluster, group))


def test_messages_of_one_fetch_are_acknowledged_in_batches(
    address: str, new_queue: NewQueue, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = new_queue()
    send(topic, *(b"%d" % number for number in range(500)))
    requests = Counter[int]()
    send_request = Connection.send

    def count(self: Connection, api_key: int, version: int, body: list[bytes]) -> int:
        requests[api_key] += 1
        return send_request(self, api_key, version, body)

    monkeypatch.setattr(Connection, "send", count)
    taken = list(queue(topic, group="batch", broker=address, idle_timeout=IDLE, prefetch=100))
    assert len(taken) == 500
    assert left_over(address, "batch") == 0
    assert requests[SHARE_FETCH] >= 5
    assert requests[SHARE_ACKNOWLEDGE] < 50  # one at the end, and one per 0.1 s on a slow machine


def test_a_message_is_acknowledged_while_its_worker_processes_the_next(
    address: str, new_queue: NewQueue, send: Send
) -> None:
    topic = new_queue()
    send(topic, b"1", b"2", b"3")
    messages = iter(queue(topic, group="busy", broker=address, prefetch=3))
    next(messages)
    next(messages)  # the first is accepted, and the body of the second does not end
    wait_until(lambda: left_over(address, "busy") == 2, "the first message to be acknowledged")
    messages.close()  # type: ignore[attr-defined]  # a generator
    assert len(list(queue(topic, group="busy", broker=address, idle_timeout=IDLE))) == 2


class ClosedBeforeClear(threading.Event):
    """Whether acknowledgments wait; the consumer is closed at the moment at which its thread clears it."""

    def __init__(self, consumer: ShareConsumer) -> None:
        super().__init__()
        self.closing = threading.Thread(target=consumer.close, daemon=True)
        self._closed_and_set = threading.Event()

    def set(self) -> None:
        super().set()
        if threading.current_thread() is self.closing:
            self._closed_and_set.set()

    def clear(self) -> None:
        if self.closing.ident is None:
            self.closing.start()
            self._closed_and_set.wait()
        super().clear()


def test_a_queue_that_is_closed_while_acknowledgments_are_sent_ends(
    address: str, new_queue: NewQueue, send: Send
) -> None:
    topic = new_queue()
    send(topic, b"1", b"2")
    consumer = ShareConsumer(queue(topic, group="ends", broker=address, prefetch=2), address)
    consumer._has_unsent = event = ClosedBeforeClear(consumer)
    while (first := consumer.poll()) is None:
        pass
    consumer.acknowledge(first, AcknowledgeType.ACCEPT)  # the second is ready: a thread sends this soon
    wait_until(lambda: event.closing.ident is not None, "the consumer to be closed")
    event.closing.join(100)
    assert not event.closing.is_alive()
    assert left_over(address, "ends") == 1
