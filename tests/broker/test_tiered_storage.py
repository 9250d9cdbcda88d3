"""Tiered topics with real clients: old records come from the archive, and nobody else waits for it."""

import json
import threading
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from kio.schema.errors import ErrorCode

from headrace import queue
from headrace.broker import remote_log_manager
from headrace.broker.archive_recovery import main as recover
from headrace.storage.archive_store import ArchiveStore, open_archive
from headrace.storage.errors import ArchiveError
from headrace.testing import EmbeddedBroker, broker
from tests.broker.overflow_topics import Sender, alter, commit, create, read_all
from tests.broker.processes import BrokerProcess, wait_until
from tests.broker.tiered_topics import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST_TIERED,
    TIERED,
    fill,
    list_offset,
    start_broker,
    wait_until_archived,
)
from tests.broker.wire_client import WireClient, batch_of


class GatedStore:
    """A store that reads only while its gate is open, and fails while it is told to."""

    def __init__(self, store: ArchiveStore) -> None:
        self._store = store
        self.gate = threading.Event()
        self.gate.set()
        self.is_failing = False

    def put(self, name: str, data: bytes | Iterator[bytes]) -> None:
        self._store.put(name, data)

    def get(self, name: str) -> bytes:
        return self._store.get(name)

    def get_range(self, name: str, start: int, size: int) -> bytes:
        self.gate.wait(100)
        if self.is_failing:
            raise ArchiveError("the store is down")
        return self._store.get_range(name, start, size)

    def size(self, name: str) -> int | None:
        return self._store.size(name)

    def list(self, prefix: str) -> Iterator[str]:
        return self._store.list(prefix)

    def delete(self, names: Iterable[str]) -> None:
        self._store.delete(names)


@pytest.fixture
def archive(tmp_path: Path) -> str:
    return (tmp_path / "archive").as_uri()


@pytest.fixture
def gated(archive: str, monkeypatch: pytest.MonkeyPatch) -> GatedStore:
    store = GatedStore(open_archive(archive))
    monkeypatch.setattr(remote_log_manager, "open_archive", lambda _url: store)
    return store


@pytest.fixture
def kafka(tmp_path: Path, archive: str, gated: GatedStore) -> Iterator[EmbeddedBroker]:
    running = start_broker(tmp_path / "data", archive)
    yield running
    gated.gate.set()
    running.stop()


@pytest.fixture
def bootstrap(kafka: EmbeddedBroker) -> str:
    return kafka.bootstrap


def objects(archive: str) -> set[str]:
    return set(open_archive(archive).list("segments"))


def test_old_records_are_read_from_the_archive(bootstrap: str) -> None:
    values = fill(bootstrap, "old")
    assert read_all(bootstrap, "old") == values


def test_the_tiers_are_listed_by_special_timestamps(bootstrap: str) -> None:
    fill(bootstrap, "tiers")
    local = list_offset(bootstrap, "tiers", EARLIEST_LOCAL)
    assert list_offset(bootstrap, "tiers", EARLIEST) == 0 < local
    assert list_offset(bootstrap, "tiers", LATEST_TIERED) == local - 1
    assert list_offset(bootstrap, "tiers", EARLIEST_PENDING_UPLOAD) == local
    create(bootstrap, "plain")
    assert [list_offset(bootstrap, "plain", at) for at in (EARLIEST_LOCAL, LATEST_TIERED)] == [0, -1]


def test_an_archived_record_is_found_by_its_time(bootstrap: str) -> None:
    create(bootstrap, "times", **TIERED, retention_ms="-1")
    with WireClient(bootstrap) as client:
        for number in range(40):
            client.produce("times", batch_of(b"." * 100, timestamp=1_700_000_000_000 + number))
    wait_until_archived(bootstrap, "times")
    found = [list_offset(bootstrap, "times", 1_700_000_000_000 + number) for number in (0, 7, 39)]
    assert found == [0, 7, 39]


def test_committed_and_aborted_transactions_are_told_apart_in_the_archive(bootstrap: str) -> None:
    create(bootstrap, "shop", **TIERED)
    sender = Sender(bootstrap, "shop", transactional_id="shop")
    sender.producer.init_transactions(30)
    for number in range(12):
        sender.producer.begin_transaction()
        sender.write(f"{number:0200d}")
        is_kept = number % 2
        (sender.producer.commit_transaction if is_kept else sender.producer.abort_transaction)(30)
    wait_until_archived(bootstrap, "shop")
    found = read_all(bootstrap, "shop", isolation_level="read_committed")
    assert [int(value) for value in found] == [1, 3, 5, 7, 9, 11]


def test_a_fetch_waits_for_the_archive_while_others_are_served(bootstrap: str, gated: GatedStore) -> None:
    values = fill(bootstrap, "old")
    gated.gate.clear()
    with WireClient(bootstrap) as slow, WireClient(bootstrap) as other:
        slow.send_fetch({("old", 0): 0}, max_wait=60_000)
        create(bootstrap, "new", retention_ms="-1")
        other.produce("new", batch_of(b"value"))
        assert other.fetch({("new", 0): 0}).responses[0].partitions[0].records
        assert not slow.has_answer()
        gated.gate.set()
        assert slow.receive().responses[0].partitions[0].records
    assert read_all(bootstrap, "old") == values


def test_a_fetch_answers_other_partitions_without_the_archive(bootstrap: str, gated: GatedStore) -> None:
    fill(bootstrap, "old")
    create(bootstrap, "new", retention_ms="-1")
    gated.gate.clear()
    with WireClient(bootstrap) as client:
        client.produce("new", batch_of(b"value"))
        old, new = (
            topic.partitions[0]
            for topic in client.fetch({("old", 0): 0, ("new", 0): 0}, max_wait=60_000).responses
        )
    assert (old.error_code, bool(old.records)) == (ErrorCode.none, False)
    assert new.records


def test_a_fetch_from_a_slow_archive_ends_empty_at_its_time(bootstrap: str, gated: GatedStore) -> None:
    fill(bootstrap, "old")
    gated.gate.clear()
    with WireClient(bootstrap) as client:
        found = client.fetch({("old", 0): 0}, max_wait=50).responses[0].partitions[0]
    assert (found.error_code, bool(found.records)) == (ErrorCode.none, False)


def test_a_store_that_fails_is_a_retriable_error_and_then_works(bootstrap: str, gated: GatedStore) -> None:
    values = fill(bootstrap, "old")
    gated.is_failing = True
    with WireClient(bootstrap) as client:
        found = client.fetch({("old", 0): 0}, max_wait=60_000).responses[0].partitions[0]
        assert found.error_code == ErrorCode.kafka_storage_error
    gated.is_failing = False
    assert read_all(bootstrap, "old") == values


def test_deleted_records_leave_the_archive(bootstrap: str, archive: str) -> None:
    fill(bootstrap, "old")
    assert objects(archive)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_records([TopicPartition("old", 0, -1)])[TopicPartition("old", 0, -1)].result(100)
    wait_until(
        lambda: not [name for name in objects(archive) if name.endswith(".log")], "the archive to be empty"
    )
    assert read_all(bootstrap, "old") == []


def test_a_deleted_topic_leaves_the_archive(bootstrap: str, archive: str) -> None:
    fill(bootstrap, "old")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics(["old"])["old"].result(100)
    wait_until(lambda: not objects(archive), "the archive to be empty")
    create(bootstrap, "old", **TIERED)
    assert read_all(bootstrap, "old") == []


def test_disabling_without_deleting_is_refused(bootstrap: str, archive: str) -> None:
    values = fill(bootstrap, "old")
    with pytest.raises(KafkaException, match=r"remote\.log\.delete\.on\.disable"):
        alter(bootstrap, "old", remote_storage_enable="false")
    assert read_all(bootstrap, "old") == values
    alter(bootstrap, "old", remote_storage_enable="false", remote_log_delete_on_disable="true")
    wait_until(
        lambda: not [name for name in objects(archive) if name.endswith(".log")], "the archive to be empty"
    )
    assert read_all(bootstrap, "old") == values[list_offset(bootstrap, "old", EARLIEST) :]


@pytest.mark.parametrize(
    "settings",
    [
        {"cleanup_policy": "compact"},
        {"local_retention_ms": "20", "retention_ms": "10"},
        {"headrace_storage": "memory"},
        {"remote_log_copy_disable": "true"},
    ],
)
def test_settings_that_contradict_tiered_storage_are_refused(
    bootstrap: str, settings: dict[str, str]
) -> None:
    with pytest.raises(KafkaException, match="INVALID_CONFIG"):
        create(bootstrap, "wrong", **(TIERED | settings))


def test_a_broker_without_an_archive_refuses_tiered_topics() -> None:
    with broker() as kafka, pytest.raises(KafkaException, match="--archive"):
        create(kafka.bootstrap, "old", **TIERED)


def test_an_archive_of_another_broker_is_not_written_to(tmp_path: Path, archive: str) -> None:
    open_archive(archive).put("cluster-id", b"another")
    running = start_broker(tmp_path / "data", archive)
    try:
        create(running.bootstrap, "old", **TIERED)
        sender = Sender(running.bootstrap, "old")
        sender.write(*[f"{number:0200d}" for number in range(20)])
        assert list_offset(running.bootstrap, "old", LATEST_TIERED) == -1
        assert not objects(archive)
    finally:
        running.stop()


def test_a_killed_broker_continues_with_both_tiers(tmp_path: Path, archive: str) -> None:
    soon = ("--archive-interval-ms", "20", "--maintenance-interval-ms", "20")
    with BrokerProcess(tmp_path / "data", "--archive", archive, *soon) as process:
        values = fill(process.bootstrap, "old", 40)
        for start in (40, 60):
            sender = Sender(process.bootstrap, "old")
            more = [f"{number:0100d}" for number in range(start, start + 20)]
            sender.write(*more)
            values += more
            process.restart()
            assert read_all(process.bootstrap, "old") == values
        wait_until_archived(process.bootstrap, "old")
        assert read_all(process.bootstrap, "old") == values


def test_a_broker_is_restored_from_the_archive_alone(tmp_path: Path, archive: str) -> None:
    first = start_broker(tmp_path / "data", archive)
    values = fill(first.bootstrap, "old")
    create(first.bootstrap, "untiered")
    commit(first.bootstrap, "old", "readers", 7)
    local = list_offset(first.bootstrap, "old", EARLIEST_LOCAL)
    wait_until(lambda: has_internal(archive, "__consumer_offsets"), "the offsets to be in the archive")
    first.stop()
    assert recover(["--archive", archive, "--data", str(tmp_path / "new")]) == 0
    second = start_broker(tmp_path / "new", archive)
    try:
        admin = AdminClient({"bootstrap.servers": second.bootstrap})
        assert {"old", "untiered"} <= set(admin.list_topics(timeout=30).topics)
        assert read_all(second.bootstrap, "old") == values[:local]
        sender = Sender(second.bootstrap, "old")
        sender.write("next")
        assert read_all(second.bootstrap, "old") == [*values[:local], "next"]
    finally:
        second.stop()


def has_internal(archive: str, topic: str) -> bool:
    store = open_archive(archive)
    name = f"internal/{topic}.json"
    return store.size(name) is not None and bool(json.loads(store.get(name))["segments"])


def test_restore_refuses_a_folder_in_use_and_an_empty_archive(
    tmp_path: Path, archive: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    assert recover(["--archive", archive, "--data", str(tmp_path / "used")]) == 1
    assert "not empty" in capsys.readouterr().err
    assert recover(["--archive", archive, "--data", str(tmp_path / "new")]) == 1
    assert "archive is empty" in capsys.readouterr().err


def test_a_queue_delivers_archived_records(bootstrap: str) -> None:
    values = fill(bootstrap, "jobs")
    jobs = queue("jobs", group="workers", broker=bootstrap, idle_timeout=timedelta(seconds=2))
    assert [message.value.decode() for message in jobs if message.value] == values
