"""Acknowledgments that wait for the archive: what was acknowledged survives the loss of the disk."""

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from headrace.broker import remote_log_manager
from headrace.broker.archive_acks import choose_tails
from headrace.broker.archive_recovery import main as recover
from headrace.storage.archive_store import ArchiveStore, open_archive
from headrace.storage.errors import ArchiveError
from tests.broker.overflow_topics import Sender, create, read_all
from tests.broker.processes import BrokerProcess, wait_until
from tests.broker.tiered_topics import TIERED, start_broker, wait_until_archived
from tests.broker.wire_client import WireClient, batch_of

ACKS = TIERED | {"headrace_archive_acks": "true", "retention_ms": "-1"}


class ClosedStore:
    """A store that fails or waits at puts of tails while it is told to."""

    def __init__(self, store: ArchiveStore) -> None:
        self._store = store
        self.is_failing = threading.Event()
        self.failures = 0

    def put(self, name: str, data: bytes | Iterator[bytes]) -> None:
        if self.is_failing.is_set() and "/tails/" in name:
            self.failures += 1
            raise ArchiveError("the store is down")
        self._store.put(name, data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


@pytest.fixture
def archive(tmp_path: Path) -> str:
    return (tmp_path / "archive").as_uri()


def tails(archive: str) -> list[str]:
    return [name for name in open_archive(archive).list("segments") if "/tails/" in name]


def test_everything_acknowledged_survives_a_kill_and_the_loss_of_the_disk(
    tmp_path: Path, archive: str
) -> None:
    options = ("--archive", archive, "--archive-interval-ms", "20", "--maintenance-interval-ms", "20")
    values = [f"{number:0100d}" for number in range(45)]
    with BrokerProcess(tmp_path / "data", *options) as process:
        create(process.bootstrap, "safe", **ACKS)
        sender = Sender(process.bootstrap, "safe")
        sender.write(*values)
        process.kill()
    shutil.rmtree(tmp_path / "data")
    assert recover(["--archive", archive, "--data", str(tmp_path / "new")]) == 0
    with BrokerProcess(tmp_path / "new", *options) as process:
        assert read_all(process.bootstrap, "safe") == values
        Sender(process.bootstrap, "safe").write("next")
        process.restart()
        assert read_all(process.bootstrap, "safe") == [*values, "next"]


def test_a_topic_of_which_nothing_was_closed_survives_too(tmp_path: Path, archive: str) -> None:
    first = start_broker(tmp_path / "data", archive, archive_interval_ms=3_600_000)
    create(first.bootstrap, "small", **ACKS)
    Sender(first.bootstrap, "small").write("one", "two")
    first.stop()
    assert recover(["--archive", archive, "--data", str(tmp_path / "new")]) == 0
    second = start_broker(tmp_path / "new", archive)
    try:
        assert read_all(second.bootstrap, "small") == ["one", "two"]
    finally:
        second.stop()


def test_an_acknowledgment_waits_until_the_archive_works_again(
    tmp_path: Path, archive: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ClosedStore(open_archive(archive))
    monkeypatch.setattr(remote_log_manager, "open_archive", lambda _url: store)
    running = start_broker(tmp_path / "data", archive)
    try:
        create(running.bootstrap, "safe", **ACKS)
        create(running.bootstrap, "plain", retention_ms="-1")
        store.is_failing.set()
        with WireClient(running.bootstrap) as client, WireClient(running.bootstrap) as other:
            client.send_produce("safe", batch_of(b"value"))
            wait_until(lambda: store.failures > 0, "an upload")
            other.produce("plain", batch_of(b"value"))  # does not wait
            assert not client.has_answer()
            assert not other.fetch({("safe", 0): 0}).responses[0].partitions[0].records
            store.is_failing.clear()
            client.receive()
            assert other.fetch({("safe", 0): 0}).responses[0].partitions[0].records
    finally:
        running.stop()


def test_parts_of_archived_segments_are_deleted(tmp_path: Path, archive: str) -> None:
    running = start_broker(tmp_path / "data", archive)
    try:
        create(running.bootstrap, "safe", **ACKS)
        Sender(running.bootstrap, "safe").write(*[f"{number:0100d}" for number in range(30)])
        local = wait_until_archived(running.bootstrap, "safe")
        wait_until(
            lambda: {int(name.rsplit("/", 2)[1]) for name in tails(archive)} == {local}, "parts to be deleted"
        )
    finally:
        running.stop()


def test_the_latest_epoch_of_a_segment_counts_up_to_its_first_gap() -> None:
    folder = "segments/topic/0/tails/00000000000000000007/"
    old, new = f"{folder}1-0-9", [f"{folder}2-0-4", f"{folder}2-4-6"]
    assert choose_tails([new[1], old, new[0], f"{folder}2-8-9"]) == {7: new}


def test_it_needs_tiered_storage(tmp_path: Path, archive: str) -> None:
    running = start_broker(tmp_path / "data", archive)
    try:
        with pytest.raises(KafkaException, match="INVALID_CONFIG"):
            create(running.bootstrap, "plain", headrace_archive_acks="true")
    finally:
        running.stop()
