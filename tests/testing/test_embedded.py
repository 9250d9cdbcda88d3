"""The embedded broker: private, started in milliseconds, and removed at the end."""

import threading
from pathlib import Path

import pytest
from confluent_kafka import Producer
from kio.schema.errors import ErrorCode

from headrace.broker.config import InvalidSetting
from headrace.storage.errors import DataFolderLocked
from headrace.testing import EmbeddedBroker, broker
from tests.broker.processes import wait_until
from tests.broker.wire_client import METADATA, WireClient, batch_of


def topics_of(kafka: EmbeddedBroker) -> list[str]:
    """The users' topics."""
    with WireClient(kafka.bootstrap) as client:
        return [topic.name for topic in client.ask(METADATA, 1, topics=None).topics if not topic.is_internal]


def test_two_brokers_at_once_are_private() -> None:
    with broker() as one, broker() as other:
        assert one.bootstrap != other.bootstrap
        with WireClient(one.bootstrap) as client:
            client.create_topic("orders")
        assert (topics_of(one), topics_of(other)) == (["orders"], [])


def test_a_broker_leaves_no_folder_thread_or_port_behind() -> None:
    before = set(threading.enumerate())
    with broker() as kafka, WireClient(kafka.bootstrap) as client:
        client.create_topic("orders")
        folder = kafka.config.data
        assert (folder / "orders-0").is_dir()
    assert not folder.exists()
    assert set(threading.enumerate()) == before
    with pytest.raises(ConnectionRefusedError):
        WireClient(kafka.bootstrap)


def test_a_broker_ends_although_clients_are_still_connected_and_waiting() -> None:
    with broker() as kafka:
        client = WireClient(kafka.bootstrap)
        client.create_topic("orders")
        client.send_fetch({("orders", 0): 0}, max_wait=600_000)
    with client:
        assert client.receive().responses[0].partitions[0].error_code is ErrorCode.none
        assert client.is_ended()


def test_settings_are_those_of_the_broker() -> None:
    with broker(default_partitions=3) as kafka, WireClient(kafka.bootstrap) as client:
        (topic,) = client.ask(METADATA, 1, topics=[{"name": "orders"}]).topics
        assert len(topic.partitions) == 3


def test_auto_creation_can_be_turned_off() -> None:
    with broker(auto_create_topics=False) as kafka, WireClient(kafka.bootstrap) as client:
        (topic,) = client.ask(METADATA, 1, topics=[{"name": "orders"}]).topics
        assert topic.error_code is ErrorCode.unknown_topic_or_partition


def test_a_folder_of_ones_own_is_kept(tmp_path: Path) -> None:
    with broker(data=tmp_path) as kafka, WireClient(kafka.bootstrap) as client:
        client.create_topic("orders")
        client.produce("orders", batch_of(b"tea"))
    with broker(data=tmp_path) as kafka, WireClient(kafka.bootstrap) as client:
        assert client.end_offset("orders") == 1


def test_a_start_that_fails_says_why_in_the_callers_thread(tmp_path: Path) -> None:
    with broker(data=tmp_path), pytest.raises(DataFolderLocked, match="in use"), broker(data=tmp_path):
        pass
    with pytest.raises(InvalidSetting, match="does not listen on"), broker(host="0.0.0.0"):
        pass


def test_a_stop_may_be_asked_for_twice() -> None:
    with broker() as kafka:
        kafka.stop()
        kafka.stop()


def test_compaction_works_in_a_broker_beside_the_caller(tmp_path: Path) -> None:
    settings = {"cleanup_policy": "compact", "segment_bytes": "4096", "min_cleanable_dirty_ratio": "0"}
    with broker(data=tmp_path, maintenance_interval_ms=50) as kafka, WireClient(kafka.bootstrap) as client:
        client.create_topic("cups", **settings)
        for number in range(100):
            client.produce("cups", batch_of(b"%d" % number * 100, key=b"tea"))
        segments = tmp_path / "cups-0"
        written = total_bytes(segments)
        wait_until(lambda: total_bytes(segments) < written / 2, "the topic to be compacted")
        assert client.end_offset("cups") == 100


def total_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def test_any_process_can_use_it(headrace_broker: EmbeddedBroker) -> None:
    producer = Producer({"bootstrap.servers": headrace_broker.bootstrap})
    producer.produce("orders", b"tea")
    assert producer.flush(100) == 0
