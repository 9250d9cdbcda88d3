"""The format of the data folder: what version 0.1 wrote is read, and what a newer version wrote is refused.

`data-folder-0.1.tar.gz` was written by the broker of version 0.1: topic `orders` with a committed transaction
of three records, an aborted one, and one that also wrote to the compacted topic `prices` and committed offset
2 for the group `billing`. It was stopped cleanly.
"""

import tarfile
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from headrace.broker.config import BrokerConfig
from headrace.storage.errors import StorageError, UnknownFormat
from headrace.storage.folder import FORMAT, DataFolder
from headrace.testing import EmbeddedBroker

ARCHIVE = Path(__file__).with_name("data-folder-0.1.tar.gz")
NEVER_MS = 2**31 - 1


@pytest.fixture(params=["stopped", "killed"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder of version 0.1, after a clean stop and as a crash would have left it."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    if request.param == "killed":
        (tmp_path / "clean-stop").unlink()
    return tmp_path


def read(bootstrap: str, topic: str) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = []
    while True:
        message = consumer.poll(30)
        assert message is not None
        if message.error():
            break
        values.append(message.value() or b"")
    consumer.close()
    return values


def test_a_folder_of_version_0_1_keeps_records_transactions_and_offsets(folder: Path) -> None:
    broker = EmbeddedBroker(BrokerConfig(data=folder, port=0, maintenance_interval_ms=NEVER_MS))
    try:
        assert read(broker.bootstrap, "orders") == [b"0", b"1", b"2", b"3"]
        assert read(broker.bootstrap, "prices") == [b"9"]
        group = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "billing"})
        assert group.committed([TopicPartition("orders", 0)], timeout=30)[0].offset == 2
        group.close()
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "shop"})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("orders", b"4")
        producer.commit_transaction(30)
        assert read(broker.bootstrap, "orders")[-1] == b"4"
        topics = AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=30).topics
        assert {"orders", "prices"} <= topics.keys()
    finally:
        broker.stop()
    assert (folder / "format").read_text() == f"{FORMAT}\n"


def test_a_new_folder_has_the_number_of_this_format(tmp_path: Path) -> None:
    DataFolder(tmp_path).close()
    assert (tmp_path / "format").read_text() == f"{FORMAT}\n"
    DataFolder(tmp_path).close()


def test_a_folder_of_a_newer_format_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    DataFolder(tmp_path).close()
    (tmp_path / "format").write_text("99\n")
    with pytest.raises(UnknownFormat, match=f"data format 99, .* up to {FORMAT}: start the version"):
        DataFolder(tmp_path)
    assert (tmp_path / "format").read_text() == "99\n"
    assert (tmp_path / "clean-stop").exists()
    (tmp_path / "format").write_text(f"{FORMAT}\n")
    DataFolder(tmp_path).close()


def test_a_damaged_number_is_named(tmp_path: Path) -> None:
    DataFolder(tmp_path).close()
    (tmp_path / "format").write_text("one")
    with pytest.raises(StorageError, match="format is damaged: it says 'one'"):
        DataFolder(tmp_path)
