"""Topics in memory, with real clients: as any other until the broker restarts, and then empty."""

import time
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from headrace.testing import EmbeddedBroker
from tests.broker.overflow_topics import Sender, alter, commit, configs, create, read_all
from tests.broker.processes import BrokerProcess, wait_until
from tests.broker.wire_client import WireClient, batch_of

IN_MEMORY = {"headrace_storage": "memory"}
MEGABYTE = 2**20


@pytest.fixture
def bootstrap(headrace_broker: EmbeddedBroker) -> str:
    return headrace_broker.bootstrap


def numbers(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


def test_records_are_read_as_they_were_written(bootstrap: str) -> None:
    create(bootstrap, "live", **IN_MEMORY)
    sender = Sender(bootstrap, "live", batch_num_messages=100, enable_idempotence=True)
    sender.send(*numbers(0, 2000))
    sender.finish()
    assert read_all(bootstrap, "live") == numbers(0, 2000)


async def test_aiokafka_reads_what_it_wrote(bootstrap: str) -> None:
    create(bootstrap, "live", **IN_MEMORY)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in range(20):
            await producer.send_and_wait("live", b"%d" % number)
    consumer = AIOKafkaConsumer("live", bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    async with consumer:
        assert [(await consumer.getone()).value for _ in range(20)] == [b"%d" % n for n in range(20)]


def test_a_transaction_is_seen_whole_or_not_at_all(bootstrap: str) -> None:
    create(bootstrap, "live", **IN_MEMORY)
    sender = Sender(bootstrap, "live", transactional_id="shop")
    sender.producer.init_transactions(30)
    for value, is_commit in (("good", True), ("void", False), ("later", True)):
        sender.producer.begin_transaction()
        sender.write(value)
        (sender.producer.commit_transaction if is_commit else sender.producer.abort_transaction)(30)
    assert read_all(bootstrap, "live", isolation_level="read_committed") == ["good", "later"]


def test_a_record_is_found_by_its_time(bootstrap: str) -> None:
    create(bootstrap, "live", **IN_MEMORY)
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    now_ms = int(time.time() * 1000)
    for second in range(5):
        producer.produce("live", b"v", timestamp=now_ms + 1000 * second)
        assert producer.flush(100) == 0
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    (found,) = consumer.offsets_for_times([TopicPartition("live", 0, now_ms + 2500)], timeout=100)
    assert found.offset == 3
    consumer.close()


def test_memory_stays_within_the_bound_however_much_is_written(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as kafka:
        create(kafka.address, "live", **IN_MEMORY, retention_bytes=str(4 * MEGABYTE))
        before = kafka.resident_bytes
        with WireClient(kafka.address) as client:
            for _ in range(200):
                client.produce("live", batch_of(b"." * 500_000))
            assert kafka.resident_bytes - before < 24 * MEGABYTE
            answer = client.fetch({("live", 0): 0}).responses[0].partitions[0]
            assert 0 < 200 - answer.log_start_offset <= 8


def test_a_slow_reader_gets_everything_that_it_was_answered(bootstrap: str) -> None:
    with WireClient(bootstrap) as client, WireClient(bootstrap, receive_bytes=4096) as slow:
        client.create_topic("live", **IN_MEMORY, retention_bytes=str(3 * MEGABYTE))
        values = [bytes([number]) * 500_000 for number in range(4)]
        for value in values:
            client.produce("live", batch_of(value))
        slow.send_fetch({("live", 0): 0}, partition_bytes=4 * MEGABYTE)
        wait_until(slow.has_answer, "the beginning of the answer")
        for _ in range(10):
            client.produce("live", batch_of(b"!" * 500_000))
        records = slow.receive().responses[0].partitions[0].records
        assert all(value in records for value in values)


@pytest.mark.parametrize("flush", ["interval", "always"])
def test_no_flush_setting_makes_a_producer_or_a_reader_wait_for_the_disk(tmp_path: Path, flush: str) -> None:
    with BrokerProcess(tmp_path / "data", "--flush", flush) as kafka, WireClient(kafka.address) as client:
        client.create_topic("live", **IN_MEMORY)
        with WireClient(kafka.address) as reader:
            reader.send_fetch({("live", 0): 0}, max_wait=60_000)
            assert client.produce("live", batch_of(b"tea")).base_offset == 0
            assert reader.receive().responses[0].partitions[0].high_watermark == 1
        assert not list((tmp_path / "data").glob("live-*"))


def restarted(kafka: BrokerProcess, how: str) -> None:
    if how == "stop":
        kafka.stop()
    else:
        kafka.kill()
    kafka.start()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_after_a_restart_a_topic_is_empty_and_its_groups_are_told(tmp_path: Path, how: str) -> None:
    with BrokerProcess(tmp_path / "data") as kafka:
        create(kafka.address, "live", **IN_MEMORY, retention_bytes="123456")
        sender = Sender(kafka.address, "live")
        sender.write(*numbers(0, 5))
        commit(kafka.address, "live", "readers", 2)
        restarted(kafka, how)
        assert read_all(kafka.address, "live") == []
        assert configs(kafka.address, "live")["retention.bytes"] == "123456"
        Sender(kafka.address, "live").write("new")
        reader = Consumer(
            {
                "bootstrap.servers": kafka.address,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
            }
        )
        reader.subscribe(["live"])
        message = reader.poll(100)
        assert message is not None
        assert message.value() == b"new"
        assert message.offset() >= 5
        reader.close()


def test_a_consumer_that_stays_connected_reads_on_after_a_crash(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as kafka:
        create(kafka.address, "live", **IN_MEMORY)
        Sender(kafka.address, "live").write(*numbers(0, 3))
        reader = Consumer(
            {
                "bootstrap.servers": kafka.address,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "reconnect.backoff.max.ms": 200,
            }
        )
        reader.assign([TopicPartition("live", 0, 0)])
        assert take(reader, 3) == numbers(0, 3)
        kafka.kill()
        kafka.start()
        Sender(kafka.address, "live").write(*numbers(10, 16))
        assert take(reader, 6) == numbers(10, 16)
        reader.close()


def take(reader: Consumer, count: int) -> list[str]:
    """The values of the next records."""
    values: list[str] = []

    def has_enough() -> bool:
        message: Any = reader.poll(0.1)
        if message is not None and message.error() is None:
            values.append(message.value().decode())
        return len(values) >= count

    wait_until(has_enough, f"{count} records")
    return values


# What is refused


def refusal(action: Any, *arguments: Any, **settings: str | None) -> str:
    with pytest.raises(KafkaException) as refused:
        action(*arguments, **settings)
    return str(refused.value.args[0].str())


def test_where_records_are_kept_cannot_be_changed(bootstrap: str) -> None:
    create(bootstrap, "live", **IN_MEMORY)
    assert "is memory and cannot be changed" in refusal(alter, bootstrap, "live", headrace_storage="disk")
    assert "is memory and cannot be changed" in refusal(alter, bootstrap, "live", headrace_storage=None)
    assert configs(bootstrap, "live")["headrace.storage"] == "memory"


def test_a_topic_that_would_hold_too_much_is_refused_when_it_is_made_or_altered(bootstrap: str) -> None:
    create(bootstrap, "live", **IN_MEMORY, retention_bytes=str(2**29))
    too_much = {"retention_bytes": str(2**29 + 1)}
    assert "may hold 1073741824 bytes" in refusal(create, bootstrap, "more", **IN_MEMORY, **too_much)
    grown = {"retention_bytes": str(2**30 + 1)}
    assert "may hold 1073741824 bytes" in refusal(alter, bootstrap, "live", **grown)
    create(bootstrap, "more", **IN_MEMORY, retention_bytes=str(2**29))


def test_a_compacted_topic_is_not_kept_in_memory(bootstrap: str) -> None:
    reason = refusal(create, bootstrap, "live", **IN_MEMORY, cleanup_policy="compact")
    assert "not compacted" in reason
