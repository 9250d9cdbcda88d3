"""kill −9: what was acknowledged is there afterwards, once and in order, and so is what was agreed."""

import random
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource
from kio.schema.errors import ErrorCode

from tests.broker.processes import BrokerProcess, wait_until
from tests.broker.wire_client import INIT_PRODUCER_ID, METADATA, WireClient, batch_of
from tests.soak.copying import Plan, assert_copied_exactly_once, copy_under_fire
from tests.soak.kill_storm import PARTITIONS, TOPIC, Storm, read_all, ride_out

DESCRIBE_GROUPS, OFFSET_COMMIT, OFFSET_FETCH = 15, 8, 9


@pytest.mark.parametrize("flush", ["os", "always"])
def test_every_acknowledged_record_is_read_back_once_and_in_order(tmp_path: Path, flush: str) -> None:
    storm = Storm(kills=3, seed=random.randrange(2**32))
    with BrokerProcess(tmp_path / "data", "--flush", flush, "--partitions", str(PARTITIONS)) as kafka:
        writer = ride_out(storm, kafka)
        read = read_all(kafka.address, TOPIC, PARTITIONS)
    for partition, values in enumerate(read):
        assert [int(value) for value in values] == list(range(writer.written[partition])), storm
        assert writer.acknowledged[partition] == list(range(writer.written[partition]))


def test_a_copy_by_transactions_under_fire_has_every_record_once_and_in_order(tmp_path: Path) -> None:
    plan = Plan(records=10_000, bounces=5, longest_life=1.0, seed=random.randrange(2**32))
    with BrokerProcess(tmp_path / "data") as kafka:
        copy_under_fire(plan, kafka)
        assert_copied_exactly_once(kafka.address, plan.records)


def test_topics_keep_their_ids_partitions_and_settings(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as kafka:
        with WireClient(kafka.address) as client:
            client.create_topic("orders", partitions=4, retention_ms="12345", cleanup_policy="compact")
            before = describe(client, "orders")
        kafka.restart()
        with WireClient(kafka.address) as client:
            assert describe(client, "orders") == before
        admin = AdminClient({"bootstrap.servers": kafka.address})
        (found,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "orders")]).values()
        settings = found.result(100)
        assert (settings["retention.ms"].value, settings["cleanup.policy"].value) == ("12345", "compact")


def describe(client: WireClient, name: str) -> tuple[object, int]:
    """The id of a topic, and how many partitions it has."""
    (topic,) = client.ask(
        METADATA,
        12,
        topics=[{"topic_id": None, "name": name}],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    ).topics
    assert topic.error_code is ErrorCode.none
    return topic.topic_id, len(topic.partitions)


def test_a_deleted_topic_stays_deleted(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "--no-auto-create") as kafka:
        with WireClient(kafka.address) as client:
            client.create_topic("orders")
            client.produce("orders", batch_of(b"tea"))
            client.ask(20, 5, topic_names=["orders"], timeout=1000)
        kafka.restart()
        with WireClient(kafka.address) as client:
            assert (
                client.produce("orders", batch_of(b"tea")).error_code is ErrorCode.unknown_topic_or_partition
            )
        assert not list(kafka.folder.glob("orders*"))
        assert not list(kafka.folder.glob("*.deleted"))


def test_an_idempotent_producer_goes_on_where_it_was(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as kafka:
        with WireClient(kafka.address) as client:
            client.create_topic("orders")
            identity = start_producer(client)
            first = client.produce("orders", sequenced(identity, 0))
        kafka.restart()
        with WireClient(kafka.address) as client:
            again = client.produce("orders", sequenced(identity, 0))
            assert (again.error_code, again.base_offset) == (ErrorCode.none, first.base_offset)
            assert client.end_offset("orders") == 1
            assert client.produce("orders", sequenced(identity, 1)).base_offset == 1
            gap = client.produce("orders", sequenced(identity, 5))
            assert gap.error_code is ErrorCode.out_of_order_sequence_number


def test_producer_ids_are_never_given_twice(tmp_path: Path) -> None:
    given = []
    with BrokerProcess(tmp_path / "data") as kafka:
        for _ in range(3):
            with WireClient(kafka.address) as client:
                given += [start_producer(client)[0] for _ in range(3)]
            kafka.restart()
    assert len(set(given)) == len(given)


def start_producer(client: WireClient) -> tuple[int, int]:
    """The id and epoch of a new idempotent producer."""
    answer = client.ask(
        INIT_PRODUCER_ID,
        4,
        transactional_id=None,
        transaction_timeout=1000,
        producer_id=-1,
        producer_epoch=-1,
    )
    return answer.producer_id, answer.producer_epoch


def sequenced(identity: tuple[int, int], sequence: int) -> bytes:
    """A batch of one record with its sequence number."""
    return batch_of(b"tea", producer_id=identity[0], producer_epoch=identity[1], base_sequence=sequence)


def test_committed_offsets_and_memberships_survive(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as kafka:
        with WireClient(kafka.address) as client:
            client.create_topic("orders")
            for _ in range(10):
                client.produce("orders", batch_of(b"tea"))
        consumer = Consumer(consumer_settings(kafka))
        consumer.subscribe(["orders"])
        read: list[Any] = []
        wait_until(lambda: bool(read.extend(consumer.consume(10, 0.1)) or len(read) >= 10), "ten records")
        consumer.commit(offsets=[TopicPartition("orders", 0, 7)], asynchronous=False)
        before = members(kafka.address)
        kafka.restart()
        assert members(kafka.address) == before
        assert consumer.committed([TopicPartition("orders", 0)], 30)[0].offset == 7
        with WireClient(kafka.address) as client:
            client.produce("orders", batch_of(b"after"))
        wait_until(lambda: any(m.value() == b"after" for m in consumer.consume(10, 0.1)), "the record after")
        assert members(kafka.address) == before, "the member had to join again"
        consumer.close()


def consumer_settings(kafka: BrokerProcess) -> dict[str, Any]:
    return {
        "bootstrap.servers": kafka.address,
        "group.id": "shop",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "reconnect.backoff.ms": 20,
        "log_level": 0,
    }


def members(address: str) -> tuple[object, ...]:
    """The state of the group, and its members."""
    with WireClient(address) as client:
        (group,) = client.ask(DESCRIBE_GROUPS, 5, groups=["shop"], include_authorized_operations=False).groups
    return group.group_state, tuple(sorted(member.member_id for member in group.members))


def test_a_record_that_nobody_waits_for_is_seen_with_flush_always_too(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", "--flush", "always") as kafka, WireClient(kafka.address) as client:
        client.create_topic("orders")
        client.send_produce("orders", batch_of(b"tea"), acks=0)
        (topic,) = client.fetch({("orders", 0): 0}, max_wait=20_000).responses
        assert topic.partitions[0].high_watermark == 1
