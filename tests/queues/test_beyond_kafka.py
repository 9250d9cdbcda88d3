"""Features of queues that Apache Kafka does not have: delays, order by key, one group only, queue mode."""

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path

import pytest

from headrace import queue
from headrace.errors import Misuse
from headrace.queues import deliver_at, deliver_in
from headrace.testing.embedded import EmbeddedBroker
from tests.broker.processes import wait_until
from tests.queues.conftest import NewQueue, Send

IDLE = timedelta(seconds=2)


def test_a_delayed_message_does_not_block_others(address: str, new_queue: NewQueue, send: Send) -> None:
    topic = new_queue()
    send(topic, b"later", headers=deliver_in("1 hour"))
    send(topic, b"now")
    (message,) = islice(queue(topic, group="g", broker=address), 1)
    assert message.value == b"now"


def test_a_delayed_message_is_delivered_when_it_is_due(address: str, new_queue: NewQueue, send: Send) -> None:
    topic = new_queue()
    due = datetime.now(UTC) + timedelta(seconds=1.5)
    send(topic, b"last", headers=deliver_at(due))
    began = time.time()
    send(topic, b"later", headers=deliver_in("1 second"))
    messages = islice(queue(topic, group="g", broker=address), 2)
    arrived = {message.value: time.time() for message in messages}
    assert arrived[b"later"] >= began + 1.0
    assert arrived[b"last"] >= due.timestamp()


def test_invalid_delivery_times_are_rejected() -> None:
    with pytest.raises(Misuse):
        deliver_in(timedelta(seconds=-1))
    with pytest.raises(Misuse):
        deliver_at(datetime(2030, 1, 1))  # noqa: DTZ001  rejected


def test_messages_of_a_key_are_never_acquired_by_two_workers(
    address: str, new_queue: NewQueue, send: Send
) -> None:
    topic = new_queue()
    send(topic, b"a1", b"a2", key=b"a")
    send(topic, b"b1", key=b"b")
    settings = {"headrace.key.order": "true"}
    one = iter(queue(topic, group="ordered", broker=address, settings=settings))
    two = iter(queue(topic, group="ordered", broker=address))
    first, second = next(one), next(two)
    assert (first.value, second.value) == (b"a1", b"b1")
    second.accept()
    impatient = queue(topic, group="ordered", broker=address, idle_timeout=IDLE)
    assert list(impatient) == []  # a2 is blocked by a1
    first.release(delay="0 s")
    third = next(one)
    assert (third.value, third.deliveries) == (b"a1", 2)
    assert next(one).value == b"a2"
    one.close()  # type: ignore[attr-defined]  # both are generators
    two.close()  # type: ignore[attr-defined]
    assert [message.value for message in impatient] == [b"a2"]


def test_a_message_for_one_group_is_skipped_by_the_others(
    address: str, new_queue: NewQueue, send: Send
) -> None:
    topic = new_queue()
    send(topic, b"back", headers=[("headrace-group", b"mailer")])
    send(topic, b"for all")
    values = {
        group: [m.value for m in queue(topic, group=group, broker=address, idle_timeout=IDLE)]
        for group in ("mailer", "printer")
    }
    assert values == {"mailer": [b"back", b"for all"], "printer": [b"for all"]}


def test_a_queue_deletes_messages_that_all_groups_have_accepted(
    headrace_broker: EmbeddedBroker, address: str, new_queue: NewQueue, send: Send
) -> None:
    topic = new_queue(headrace_queue="true", segment_bytes="100000")
    folder = Path(headrace_broker.config.data)
    for group in ("fast", "slow"):
        assert list(queue(topic, group=group, broker=address, idle_timeout="100 ms")) == []

    def size() -> int:
        return sum(path.stat().st_size for path in folder.glob(f"{topic}-0/*.log"))

    send(topic, *(b"x" * 1000 for _ in range(500)))
    full = size()
    fast = queue(topic, group="fast", broker=address, idle_timeout=IDLE, prefetch=200)
    slow = queue(topic, group="slow", broker=address, idle_timeout=IDLE, prefetch=200)
    assert len(list(fast)) == 500
    assert size() == full  # the slow group has not accepted them
    assert len(list(slow)) == 500
    wait_until(lambda: size() < full / 10, "the space to be freed")
    send(topic, b"next")
    assert [message.value for message in slow] == [b"next"]


@pytest.mark.parametrize("storage", ["disk", "memory"])
def test_workers_free_space_for_a_blocked_producer(
    storage: str, address: str, new_queue: NewQueue, send: Send
) -> None:
    topic = new_queue(
        headrace_storage=storage,
        headrace_overflow="block",
        headrace_overflow_records="2",
        headrace_overflow_bytes="100000",
        headrace_overflow_groups="workers",
    )
    workers = queue(topic, group="workers", broker=address, idle_timeout=IDLE)
    assert list(workers) == []  # the group has its start offset
    send(topic, b"one", b"two")
    with ThreadPoolExecutor() as others:
        third = others.submit(send, topic, b"three")
        taken = [message.value for message in workers]
        third.result()
    assert taken == [b"one", b"two", b"three"]
