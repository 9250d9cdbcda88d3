"""A full disk: producers get an error, no acknowledged record is lost, and the broker continues.

The disk of these tests is full because the operating system lets the broker's files grow no further
(RLIMIT_FSIZE), which any user may do to a process of theirs, and may undo. Writes then fail in the middle, as
they do on a disk without room.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from kio.schema.errors import ErrorCode

from headrace.protocol.batch import read_header, split_batches
from headrace.protocol.records import decode_batch
from tests.broker.processes import BrokerProcess, wait_until
from tests.broker.wire_client import INIT_PRODUCER_ID, WireClient, batch_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOPIC = "orders"
OFFSET_COMMIT, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT = 8, 24, 25, 26, 28
DELETE_TOPICS, DELETE_RECORDS, CREATE_PARTITIONS, ALTER_CONFIGS = 20, 21, 37, 44
NO_ROOM_AT_ALL = 1
LIMITED = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY)); "
LIMITED += "os.execv(sys.argv[1], sys.argv[1:])"


class Disk:
    """The disk of one broker, as full as the test says."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker

    def fill(self, *, room_bytes: int = 0) -> None:
        """Let the topic's log grow by so much and no more."""
        size = (self._broker.folder / f"{TOPIC}-0" / f"{0:020d}.log").stat().st_size
        self._limit(size + room_bytes)

    def fill_up(self) -> None:
        """Leave no room for anything."""
        self._limit(NO_ROOM_AT_ALL)

    def make_room(self) -> None:
        """Free disk space."""
        self._limit(resource.RLIM_INFINITY)

    def _limit(self, size: int) -> None:
        resource.prlimit(self._broker.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data", "--maintenance-interval-ms", "100") as broker:
        with WireClient(broker.address) as client:
            # Whatever the times of its records are, the topic stays in the one file that cannot grow.
            client.create_topic(TOPIC, retention_ms="-1", segment_ms=str(2**62))
            client.produce(TOPIC, batch_of(b"first"))
        yield broker


@pytest.fixture
def disk(broker: BrokerProcess) -> Disk:
    return Disk(broker)


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[WireClient]:
    with WireClient(broker.address) as client:
        yield client


def values(client: WireClient, *, committed: bool = False) -> list[bytes | None]:
    """The values of all records that a reader sees; for tests without aborted transactions."""
    (topic,) = client.fetch({(TOPIC, 0): 0}, isolation_level=int(committed)).responses
    (partition,) = topic.partitions
    assert partition.error_code is ErrorCode.none
    batches = split_batches(memoryview(partition.records or b""))
    return [r.value for b in batches if not read_header(b).is_control for r in decode_batch(b)]


def test_a_producer_gets_an_error_and_goes_on_when_there_is_room(client, disk):
    acknowledged = [b"first"]
    disk.fill(room_bytes=1000)
    while (answer := client.produce(TOPIC, batch_of(b"%d" % len(acknowledged) * 50))).error_code == 0:
        acknowledged.append(b"%d" % len(acknowledged) * 50)
    assert answer.error_code is ErrorCode.kafka_storage_error
    assert "free disk space" in answer.error_message
    assert len(acknowledged) > 2
    assert values(client) == acknowledged, "a reader sees what was refused"
    disk.make_room()
    assert client.produce(TOPIC, batch_of(b"last")).base_offset == len(acknowledged)
    assert values(client) == [*acknowledged, b"last"]


def test_an_idempotent_producer_may_send_what_was_refused_again(client, disk):
    sent = {"producer_id": 77, "producer_epoch": 0, "base_sequence": 0}
    disk.fill()
    assert client.produce(TOPIC, batch_of(b"x", **sent)).error_code is ErrorCode.kafka_storage_error
    disk.make_room()
    offsets = [client.produce(TOPIC, batch_of(b"x", **sent)).base_offset for _ in range(2)]
    assert offsets == [1, 1]
    assert values(client) == [b"first", b"x"]


def test_librdkafka_delivers_everything_once_and_in_order_when_there_is_room(broker, client, disk):
    attempts = 0
    outcomes: list[Any] = []

    def count(statistics: str) -> None:
        nonlocal attempts
        attempts = sum(each["req"].get("Produce", 0) for each in json.loads(statistics)["brokers"].values())

    settings = {"enable.idempotence": True, "linger.ms": 0, "retry.backoff.ms": 20, "stats_cb": count}
    settings |= {"retry.backoff.max.ms": 50, "statistics.interval.ms": 20, "batch.num.messages": 20}
    producer = Producer(settings | {"bootstrap.servers": broker.address})
    sent = [b"%d" % number * 10 for number in range(200)]
    disk.fill(room_bytes=1000)
    for value in sent:
        producer.produce(TOPIC, value, on_delivery=lambda fault, _: outcomes.append(fault))
    wait_until(lambda: producer.poll(0.01) >= 0 and attempts > 20, "librdkafka to try again")
    assert len(outcomes) < len(sent)
    disk.make_room()
    assert producer.flush(100) == 0
    assert outcomes == [None] * len(sent)
    assert values(client) == [b"first", *sent]


def test_other_topics_of_a_broker_go_on_while_one_cannot_grow(client, disk):
    client.create_topic("small")
    for number in range(5):
        client.produce(TOPIC, batch_of(b"%d" % number * 300))
    disk.fill()
    assert client.produce(TOPIC, batch_of(b"no")).error_code is ErrorCode.kafka_storage_error
    assert client.produce("small", batch_of(b"yes")).error_code is ErrorCode.none


@pytest.mark.parametrize("ends", ["kill", "stop"])
def test_a_broker_that_ends_while_the_disk_is_full_loses_nothing(broker, disk, ends):
    with WireClient(broker.address) as client:
        client.produce(TOPIC, batch_of(b"second"))
        disk.fill_up()
        assert client.produce(TOPIC, batch_of(b"refused")).error_code is ErrorCode.kafka_storage_error
    if ends == "stop":
        assert broker.stop() == 0
    else:
        broker.kill()
    broker.start()
    with WireClient(broker.address) as client:
        assert values(client) == [b"first", b"second"]


def test_a_broker_starts_on_a_full_disk_and_serves_readers(broker):
    broker.kill()
    limited = BrokerProcess(broker.folder, before=[sys.executable, "-c", LIMITED])
    with limited, WireClient(limited.address) as client:
        assert values(client) == [b"first"]
        assert client.produce(TOPIC, batch_of(b"no")).error_code is ErrorCode.kafka_storage_error
        Disk(limited).make_room()
        assert client.produce(TOPIC, batch_of(b"yes")).error_code is ErrorCode.none
        assert values(client) == [b"first", b"yes"]


# The broker's own topics


def begin_transaction(client: WireClient) -> dict[str, Any]:
    """A transactional producer with one record in an open transaction."""
    found = client.ask(
        INIT_PRODUCER_ID,
        4,
        transactional_id="payer",
        transaction_timeout=60_000,
        producer_id=-1,
        producer_epoch=-1,
    )
    producer = {"producer_id": found.producer_id, "producer_epoch": found.producer_epoch}
    named = {f"v3_and_below_{name}": value for name, value in producer.items()}
    topics = [{"name": TOPIC, "partitions": [0]}]
    client.ask(ADD_PARTITIONS, 3, v3_and_below_transactional_id="payer", v3_and_below_topics=topics, **named)
    sent = batch_of(b"paid", base_sequence=0, attributes=0x10, **producer)
    assert client.produce(TOPIC, sent, transactional_id="payer").error_code is ErrorCode.none
    return {"transactional_id": "payer", **producer}


def end(client: WireClient, producer: dict[str, Any]) -> ErrorCode:
    return client.ask(END_TXN, 3, committed=True, **producer).error_code


def commit_offset(client: WireClient) -> ErrorCode:
    where = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
    answer = client.ask(
        OFFSET_COMMIT,
        8,
        group_id="readers",
        generation_id_or_member_epoch=-1,
        member_id="",
        group_instance_id=None,
        topics=[{"name": TOPIC, "partitions": [where | {"committed_metadata": ""}]}],
    )
    return answer.topics[0].partitions[0].error_code


def test_an_offset_that_cannot_be_kept_is_refused_and_kept_later(client, disk):
    disk.fill_up()
    assert commit_offset(client) is ErrorCode.coordinator_not_available
    disk.make_room()
    assert commit_offset(client) is ErrorCode.none


def test_a_transaction_that_cannot_be_ended_is_ended_later(client, disk):
    producer = begin_transaction(client)
    disk.fill_up()
    assert end(client, producer) is not ErrorCode.none
    assert values(client, committed=True) == [b"first"]
    disk.make_room()
    assert end(client, producer) is ErrorCode.none
    wait_until(lambda: values(client, committed=True) == [b"first", b"paid"], "the marker")


def test_a_transaction_that_was_decided_is_carried_through_when_there_is_room(client, disk):
    for number in range(20):
        client.produce(TOPIC, batch_of(b"%d" % number * 100))
    producer = begin_transaction(client)
    disk.fill()  # the log of transactions is smaller than the topic's: it may still grow
    assert end(client, producer) is ErrorCode.none
    assert values(client, committed=True)[-1] != b"paid"
    disk.make_room()
    wait_until(lambda: values(client, committed=True)[-1] == b"paid", "the marker")


def topic_setting(value: str) -> dict[str, Any]:
    change = {"name": "retention.ms", "config_operation": 0, "value": value}
    resources = [{"resource_type": 2, "resource_name": TOPIC, "configs": [change]}]
    return {"resources": resources, "validate_only": False}


def test_topics_cannot_be_made_or_changed_and_the_client_is_told(client, disk):
    disk.fill_up()
    assert client.create_topic("new").error_code is ErrorCode.kafka_storage_error
    grown = [{"name": TOPIC, "count": 3, "assignments": None}]
    (partitions,) = client.ask(CREATE_PARTITIONS, 3, topics=grown, timeout=1000, validate_only=False).results
    assert partitions.error_code is ErrorCode.kafka_storage_error
    (configs,) = client.ask(ALTER_CONFIGS, 1, **topic_setting("777")).responses
    assert configs.error_code is ErrorCode.kafka_storage_error
    disk.make_room()
    assert client.create_topic("new").error_code is ErrorCode.none
    (configs,) = client.ask(ALTER_CONFIGS, 1, **topic_setting("777000")).responses
    assert configs.error_code is ErrorCode.none


def test_what_cannot_be_deleted_for_good_is_said(client, disk):
    disk.fill_up()
    topics = [{"name": TOPIC, "topic_id": None}]
    (deleted,) = client.ask(DELETE_TOPICS, 6, topics=topics, timeout=1000).responses
    assert deleted.error_code is ErrorCode.kafka_storage_error
    records = [{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 1}]}]
    (trimmed,) = client.ask(DELETE_RECORDS, 2, topics=records, timeout=1000).topics
    assert trimmed.partitions[0].error_code is ErrorCode.kafka_storage_error
    disk.make_room()
    (trimmed,) = client.ask(DELETE_RECORDS, 2, topics=records, timeout=1000).topics
    assert (trimmed.partitions[0].error_code, trimmed.partitions[0].low_watermark) == (ErrorCode.none, 1)
    (deleted,) = client.ask(DELETE_TOPICS, 6, topics=topics, timeout=1000).responses
    assert deleted.error_code is ErrorCode.none


@pytest.mark.parametrize("transactional_id", ["another", "payer"])
def test_a_producer_id_that_cannot_be_kept_is_not_given_away(client, disk, transactional_id):
    begin_transaction(client)
    disk.fill_up()
    request = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    found = client.ask(INIT_PRODUCER_ID, 4, transactional_id=transactional_id, **request)
    assert found.error_code is ErrorCode.coordinator_not_available
    disk.make_room()
    found = client.ask(INIT_PRODUCER_ID, 4, transactional_id=transactional_id, **request)
    assert found.error_code is ErrorCode.none
