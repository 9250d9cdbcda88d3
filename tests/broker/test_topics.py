"""The topics: what they are called, what they keep, and what a crash in the middle leaves of them."""

from pathlib import Path

import pytest

from headrace.broker.state_log import MemoryStateLog, StateRecord
from headrace.broker.topics import (
    MAX_PARTITIONS,
    InvalidPartitions,
    InvalidTopicName,
    TopicExists,
    Topics,
    UnknownTopic,
    check_name,
)
from headrace.storage.errors import DiskError, InvalidConfig
from headrace.storage.folder import DataFolder
from tests.broker.virtual_clock import VirtualClock
from tests.broker.wire_client import batch_of


class Bench:
    """Topics in a folder; `restart` is a kill −9 and a new start."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state = MemoryStateLog()
        self.topics = self._open()

    def _open(self) -> Topics:
        self.folder = DataFolder(self.path)
        topics = Topics(self.folder, VirtualClock())
        topics.load(self.state)
        return topics

    def restart(self) -> None:
        self.folder.abandon()
        self.topics = self._open()

    def write(self, name: str, index: int = 0) -> None:
        topic = self.topics.get(name)
        assert topic is not None
        topic.partitions[index].log.append(memoryview(bytearray(batch_of(b"tea"))), VirtualClock().now_ms())

    def ends(self, name: str) -> list[int]:
        """The end offset of each partition."""
        topic = self.topics.get(name)
        assert topic is not None
        return [partition.log.end_offset for partition in topic.partitions]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("name", ["a", "orders.v1_final-2", "x" * 249, "...", "1"])
def test_names_of_letters_digits_and_three_marks_are_taken(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a b", "a/b", "x" * 250, "größe", "a\n", "\0", "a\\b", "%2e"]
)
def test_every_other_name_is_refused_with_the_rule(name: str) -> None:
    with pytest.raises(InvalidTopicName, match="use up to 249 letters"):
        check_name(name)


def test_a_topic_is_found_by_name_and_by_id(bench: Bench) -> None:
    topic = bench.topics.create("orders", 2, {})
    assert bench.topics.get("orders") is bench.topics.by_id(topic.id) is bench.topics.find(topic.id) is topic
    assert topic.partition(1) is topic.partitions[1]
    assert topic.partition(2) is topic.partition(-1) is None


def test_a_topic_is_made_once(bench: Bench) -> None:
    bench.topics.create("orders", 1, {})
    with pytest.raises(TopicExists):
        bench.topics.create("orders", 1, {})


def test_names_that_differ_only_in_dot_and_underscore_are_one_name(bench: Bench) -> None:
    bench.topics.create("orders.new", 1, {})
    with pytest.raises(InvalidTopicName, match="differ only in"):
        bench.topics.create("orders_new", 1, {})
    bench.restart()
    with pytest.raises(InvalidTopicName, match="differ only in"):
        bench.topics.create("orders_new", 1, {})
    bench.topics.delete("orders.new")
    bench.topics.create("orders_new", 1, {})


@pytest.mark.parametrize("partitions", [0, -5, MAX_PARTITIONS + 1])
def test_a_topic_has_a_possible_number_of_partitions(bench: Bench, partitions: int) -> None:
    with pytest.raises(InvalidPartitions):
        bench.topics.create("orders", partitions, {})
    assert bench.topics.get("orders") is None


def test_a_topic_with_settings_that_do_not_exist_is_not_made(bench: Bench) -> None:
    with pytest.raises(InvalidConfig, match=r"retention\.mss"):
        bench.topics.create("orders", 1, {"retention.mss": "1"})
    assert (bench.topics.get("orders"), bench.state.entries) == (None, [])


def test_partitions_can_be_added_and_not_taken_away(bench: Bench) -> None:
    bench.topics.create("orders", 2, {})
    bench.topics.add_partitions("orders", 3)
    assert bench.ends("orders") == [0, 0, 0]
    for partitions in (3, 1):
        with pytest.raises(InvalidPartitions, match="can only be added"):
            bench.topics.add_partitions("orders", partitions)


def test_what_is_not_there_cannot_be_changed(bench: Bench) -> None:
    for change in (
        lambda: bench.topics.delete("orders"),
        lambda: bench.topics.configure("orders", {}),
        lambda: bench.topics.add_partitions("orders", 3),
    ):
        with pytest.raises(UnknownTopic):
            change()


def test_settings_hold_for_the_partitions_that_are_there(bench: Bench) -> None:
    topic = bench.topics.create("orders", 2, {})
    bench.topics.configure("orders", {"retention.ms": "7"})
    assert [partition.log.config.retention_ms for partition in topic.partitions] == [7, 7]


def test_topics_are_the_same_after_a_crash(bench: Bench) -> None:
    topic = bench.topics.create("orders", 2, {"retention.ms": "7"})
    bench.topics.add_partitions("orders", 3)
    bench.write("orders", 1)
    bench.restart()
    found = bench.topics.get("orders")
    assert found is not None
    assert (found.id, found.config.retention_ms, bench.ends("orders")) == (topic.id, 7, [0, 1, 0])


def test_a_topic_that_was_recorded_before_the_crash_is_made_after_it(bench: Bench) -> None:
    bench.topics.create("orders", 2, {})
    for partition in (0, 1):
        bench.folder.delete("orders", partition)
    bench.restart()
    assert bench.ends("orders") == [0, 0]


def test_a_deleted_topic_is_gone_for_good_and_its_waiters_are_told(bench: Bench) -> None:
    topic = bench.topics.create("orders", 1, {})
    notified: list[str] = []
    topic.partitions[0].waiters.add(lambda: notified.append("orders"))
    bench.topics.delete("orders")
    assert notified == ["orders"]
    bench.restart()
    assert bench.topics.get("orders") is bench.topics.by_id(topic.id) is None


def test_records_of_a_half_deleted_topic_do_not_come_back_in_a_new_one_of_the_same_name(bench: Bench) -> None:
    bench.topics.create("orders", 2, {})
    bench.write("orders", 0)
    bench.write("orders", 1)
    bench.state.append([(b"orders", None)])  # the broker dies before the folders are gone
    bench.restart()
    bench.topics.create("orders", 1, {})
    assert bench.ends("orders") == [0]
    bench.topics.add_partitions("orders", 2)
    assert bench.ends("orders") == [0, 0]


def test_a_topic_that_the_disk_has_no_room_for_is_not_there_and_can_be_made_later(bench: Bench) -> None:
    obstacle = bench.path / "orders-1"
    obstacle.write_text("where a folder should be")
    with pytest.raises(DiskError, match="orders"):
        bench.topics.create("orders", 2, {})
    assert bench.topics.get("orders") is None
    assert not (bench.path / "orders-0").exists()
    obstacle.unlink()
    bench.restart()
    assert bench.topics.get("orders") is None
    bench.topics.create("orders", 2, {})
    assert bench.ends("orders") == [0, 0]


def test_partitions_that_the_disk_has_no_room_for_are_not_there(bench: Bench) -> None:
    topic = bench.topics.create("orders", 1, {})
    obstacle = bench.path / "orders-2"
    obstacle.write_text("where a folder should be")
    with pytest.raises(DiskError):
        bench.topics.add_partitions("orders", 3)
    assert len(topic.partitions) == 1
    obstacle.unlink()
    bench.restart()
    assert bench.ends("orders") == [0]


def test_every_change_is_one_record_of_the_state(bench: Bench) -> None:
    bench.topics.create("orders", 1, {})
    bench.topics.add_partitions("orders", 2)
    bench.topics.configure("orders", {"retention.ms": "7"})
    bench.topics.delete("orders")
    records = [entry for entry in bench.state.entries if isinstance(entry, StateRecord)]
    assert [record.key for record in records] == [b"orders"] * 4
    assert [record.value is None for record in records] == [False, False, False, True]
