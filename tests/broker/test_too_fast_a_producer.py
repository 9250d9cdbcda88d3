"""Too fast a producer: each policy driven to the bound and back, with real producers and consumers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import PolicyViolationError
from confluent_kafka import KafkaException

from headrace.testing import EmbeddedBroker
from tests.broker.overflow_topics import (
    Sender,
    alter,
    commit,
    create,
    read_all,
    status,
    wait_for_status,
)
from tests.broker.processes import BrokerProcess, wait_until

TEN = {"headrace_overflow_records": "10"}
BLOCK = TEN | {"headrace_overflow": "block", "headrace_overflow_groups": "mailer"}
DROP_NEWEST = TEN | {"headrace_overflow": "drop-newest", "headrace_overflow_groups": "mailer"}
IN_MEMORY = {"headrace_storage": "memory", "headrace_overflow_bytes": "1000000"}
# What must not be lost in memory has a bound in bytes too.
CASES = [
    pytest.param({"enable_idempotence": True}, {}, id="idempotent, on disk"),
    pytest.param({"enable_idempotence": False}, IN_MEMORY, id="plain, in memory"),
]


def numbers(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


@pytest.fixture
def bootstrap(headrace_broker: EmbeddedBroker) -> str:
    return headrace_broker.bootstrap


def test_a_buffer_grows(bootstrap: str) -> None:
    create(bootstrap, "orders", headrace_overflow="buffer")
    sender = Sender(bootstrap, "orders")
    sender.send(*numbers(0, 1000))
    sender.finish()
    assert sender.stored == read_all(bootstrap, "orders") == numbers(0, 1000)


@pytest.mark.parametrize(("kind", "storage"), CASES)
def test_drop_oldest_keeps_the_newest_and_counts_what_went(
    bootstrap: str, kind: dict[str, Any], storage: dict[str, str]
) -> None:
    create(bootstrap, "orders", headrace_overflow="drop-oldest", **TEN, **storage)
    sender = Sender(bootstrap, "orders", **kind)
    sender.write(*numbers(0, 10))
    assert read_all(bootstrap, "orders") == numbers(0, 10)
    sender.write(*numbers(10, 40))
    assert sender.stored == numbers(0, 40)
    assert read_all(bootstrap, "orders") == numbers(30, 40)
    found = status(bootstrap, "orders")
    assert (found["dropped_records"], found["backlog_records"], found["full_percent"]) == (30, 10, 100.0)


def test_drop_oldest_by_bytes_keeps_no_more_than_its_bound(bootstrap: str) -> None:
    create(bootstrap, "orders", headrace_overflow="drop-oldest", headrace_overflow_bytes="50000")
    sender = Sender(bootstrap, "orders")
    values = [f"{number:01000d}" for number in range(300)]
    sender.send(*values)
    sender.finish()
    found, left = status(bootstrap, "orders"), read_all(bootstrap, "orders")
    assert 40_000 < found["backlog_bytes"] <= 50_000
    assert left == values[-len(left) :]
    assert found["dropped_records"] == 300 - len(left)


@pytest.mark.parametrize(("kind", "storage"), CASES)
def test_drop_newest_refuses_counts_and_takes_again_when_consumers_have_read(
    bootstrap: str, kind: dict[str, Any], storage: dict[str, str]
) -> None:
    create(bootstrap, "orders", **DROP_NEWEST, **storage)
    commit(bootstrap, "orders", "mailer", 0)
    sender = Sender(bootstrap, "orders", **kind)
    sender.write(*numbers(0, 15))
    assert sender.stored == numbers(0, 10)
    assert sender.failed == dict.fromkeys(numbers(10, 15), "POLICY_VIOLATION")
    assert status(bootstrap, "orders")["refused_records"] == 5
    commit(bootstrap, "orders", "mailer", 4)
    sender.write(*numbers(15, 20))
    assert sender.stored[10:] == numbers(15, 19)
    assert sender.failed["19"] == "POLICY_VIOLATION"
    assert read_all(bootstrap, "orders") == sender.stored


def test_an_idempotent_producer_with_batches_under_way_goes_on_after_refusals(bootstrap: str) -> None:
    create(bootstrap, "orders", **DROP_NEWEST)
    commit(bootstrap, "orders", "mailer", 0)
    sender = Sender(bootstrap, "orders", enable_idempotence=True)
    sender.send(*numbers(0, 30))
    sender.finish()
    commit(bootstrap, "orders", "mailer", 10)
    sender.write("again")
    assert sender.stored == [*numbers(0, 10), "again"]
    assert sender.failed.keys() == set(numbers(10, 30))
    assert set(sender.failed.values()) == {"POLICY_VIOLATION"}
    assert read_all(bootstrap, "orders") == sender.stored


@pytest.mark.parametrize(("kind", "storage"), CASES)
def test_block_lets_the_producer_wait_until_consumers_have_read(
    bootstrap: str, kind: dict[str, Any], storage: dict[str, str]
) -> None:
    create(bootstrap, "orders", **BLOCK, **storage)
    commit(bootstrap, "orders", "mailer", 0)
    sender = Sender(bootstrap, "orders", max_in_flight_requests_per_connection=1, **kind)
    sender.write(*numbers(0, 10))
    sender.send("10")
    wait_for_status(bootstrap, "orders", "waiting_batches", 1)
    assert status(bootstrap, "orders")["slowest_group"] == "mailer"
    assert sender.stored == numbers(0, 10)
    commit(bootstrap, "orders", "mailer", 3)
    sender.finish()
    sender.write("11", "12")
    sender.send("13")
    wait_for_status(bootstrap, "orders", "waiting_batches", 1)
    commit(bootstrap, "orders", "mailer", 13)
    sender.finish()
    assert sender.failed == {}
    assert sender.stored == read_all(bootstrap, "orders") == numbers(0, 14)


def test_a_producers_own_buffer_fills_while_it_waits(bootstrap: str) -> None:
    create(bootstrap, "orders", **BLOCK)
    commit(bootstrap, "orders", "mailer", 0)
    sender = Sender(bootstrap, "orders", queue_buffering_max_messages=20)
    sender.write(*numbers(0, 10))
    sender.send("10")
    wait_for_status(bootstrap, "orders", "waiting_batches", 1)
    with pytest.raises(BufferError):
        sender.send(*numbers(11, 100))
    waiting = len(sender.producer)
    assert waiting == 20
    commit(bootstrap, "orders", "mailer", 10)
    sender.wait_for(20)
    commit(bootstrap, "orders", "mailer", 20)
    sender.finish()
    assert sender.stored == read_all(bootstrap, "orders") == numbers(0, 30)


def test_a_producer_that_waits_longer_than_it_will_is_told_and_nothing_is_stored(bootstrap: str) -> None:
    create(bootstrap, "orders", **BLOCK, headrace_overflow_timeout_ms="100")
    commit(bootstrap, "orders", "mailer", 0)
    Sender(bootstrap, "orders").write(*numbers(0, 10))
    sender = Sender(bootstrap, "orders", message_timeout_ms=1500)
    sender.producer.list_topics("orders", timeout=30)  # it is connected before its time runs
    sender.write("10")
    assert sender.failed == {"10": "_MSG_TIMED_OUT"}
    found = status(bootstrap, "orders")
    assert found["timed_out_records"] >= 1
    assert found["waiting_batches"] == 0
    assert read_all(bootstrap, "orders") == numbers(0, 10)


def test_a_producer_that_is_told_to_try_again_stores_each_record_once_and_in_order(bootstrap: str) -> None:
    create(bootstrap, "orders", **BLOCK, headrace_overflow_timeout_ms="50")
    commit(bootstrap, "orders", "mailer", 0)
    sender = Sender(bootstrap, "orders", enable_idempotence=True)
    sender.send(*numbers(0, 60))
    for read in range(10, 60, 10):
        sender.wait_for(read)
        wait_for_more_timeouts(bootstrap)
        commit(bootstrap, "orders", "mailer", read)
    sender.finish()
    assert sender.failed == {}
    assert read_all(bootstrap, "orders") == numbers(0, 60)


def wait_for_more_timeouts(bootstrap: str) -> None:
    """Return when the producer has got a retriable error."""
    before = status(bootstrap, "orders")["timed_out_records"]
    wait_until(lambda: status(bootstrap, "orders")["timed_out_records"] > before, "a time-out")


def test_a_transaction_waits_at_the_bound_and_commits_when_there_is_room(bootstrap: str) -> None:
    create(bootstrap, "orders", **BLOCK)
    commit(bootstrap, "orders", "mailer", 0)
    sender = Sender(bootstrap, "orders", transactional_id="shop")
    sender.producer.init_transactions(30)
    sender.producer.begin_transaction()
    sender.write(*numbers(0, 10))
    sender.send("10")
    wait_for_status(bootstrap, "orders", "waiting_batches", 1)
    commit(bootstrap, "orders", "mailer", 5)
    sender.producer.commit_transaction(30)
    assert read_all(bootstrap, "orders", isolation_level="read_committed") == numbers(0, 11)


def test_a_transaction_that_is_refused_a_record_is_aborted_and_a_later_one_goes_through(
    bootstrap: str,
) -> None:
    create(bootstrap, "orders", **DROP_NEWEST)
    commit(bootstrap, "orders", "mailer", 0)
    sender = Sender(bootstrap, "orders", transactional_id="shop")
    sender.producer.init_transactions(30)
    assert not is_committed(sender, *numbers(0, 11))
    commit(bootstrap, "orders", "mailer", 11)
    # librdkafka has given a sequence number to the record that was refused: the next transaction fails for
    # the gap, and then it takes a new epoch.
    assert not is_committed(sender, "too early")
    assert is_committed(sender, "again")
    assert read_all(bootstrap, "orders", isolation_level="read_committed") == ["again"]


def is_committed(sender: Sender, *values: str) -> bool:
    """Whether a transaction of these records went through; one that did not is aborted."""
    sender.producer.begin_transaction()
    sender.write(*values)
    try:
        sender.producer.commit_transaction(30)
    except KafkaException as failed:
        if not failed.args[0].txn_requires_abort():
            raise
        sender.producer.abort_transaction(30)
        return False
    return True


async def test_aiokafka_is_refused_what_does_not_fit_and_waits_where_it_must(bootstrap: str) -> None:
    create(bootstrap, "refusing", **DROP_NEWEST)
    create(bootstrap, "waiting", **BLOCK)
    for topic in ("refusing", "waiting"):
        commit(bootstrap, topic, "mailer", 0)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for topic in ("refusing", "waiting"):
            for number in range(10):
                await producer.send_and_wait(topic, b"%d" % number)
        with pytest.raises(PolicyViolationError):
            await producer.send_and_wait("refusing", b"10")
        waiting = asyncio.ensure_future(producer.send_and_wait("waiting", b"10"))
        await asyncio.to_thread(wait_for_status, bootstrap, "waiting", "waiting_batches", 1)
        assert not waiting.done()
        await asyncio.to_thread(commit, bootstrap, "waiting", "mailer", 1)
        assert (await waiting).offset == 10


def test_a_topic_can_be_given_another_policy_while_producers_wait(bootstrap: str) -> None:
    create(bootstrap, "orders", **BLOCK)
    commit(bootstrap, "orders", "mailer", 0)
    sender = Sender(bootstrap, "orders")
    sender.write(*numbers(0, 10))
    sender.send("10")
    wait_for_status(bootstrap, "orders", "waiting_batches", 1)
    alter(bootstrap, "orders", **dict.fromkeys(BLOCK))
    sender.finish()
    assert sender.stored == numbers(0, 11)


def test_the_bound_holds_after_kill_9_and_what_waited_is_stored_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as kafka:
        create(kafka.address, "orders", **BLOCK)
        commit(kafka.address, "orders", "mailer", 0)
        sender = Sender(kafka.address, "orders", enable_idempotence=True)
        sender.write(*numbers(0, 10))
        sender.send(*numbers(10, 15))
        wait_for_status(kafka.address, "orders", "backlog_records", 10)
        kafka.kill()
        kafka.start()
        wait_for_status(kafka.address, "orders", "full_percent", 100.0)
        assert sender.stored == numbers(0, 10)
        commit(kafka.address, "orders", "mailer", 10)
        sender.finish()
        assert sender.failed == {}
        assert sender.stored == read_all(kafka.address, "orders") == numbers(0, 15)


def test_what_was_dropped_before_kill_9_and_has_come_back_goes_with_the_next_record(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as kafka:
        create(kafka.address, "orders", headrace_overflow="drop-oldest", **TEN)
        Sender(kafka.address, "orders").write(*numbers(0, 40))
        kafka.kill()
        kafka.start()
        assert read_all(kafka.address, "orders")[-10:] == numbers(30, 40)
        Sender(kafka.address, "orders").write("40")
        assert read_all(kafka.address, "orders") == numbers(31, 41)
