"""Snapshots of the data folder: what a crash at their moment would leave, whatever happens afterwards."""

from __future__ import annotations

import json
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage.config import TopicConfig
from headrace.storage.folder import SNAPSHOT_SIZES, DataFolder, FolderSnapshot
from tests.storage.batches import NOW, filler, read_values

CONFIG = TopicConfig(segment_bytes=1024)


def fill(log, count):
    for number in range(log.end_offset, log.end_offset + count):
        log.append(filler(number), NOW)


def restored(snapshot, target):
    """A folder made of the files of a snapshot, each with the size that it had at the moment."""
    shutil.copytree(snapshot.path, target)
    for partition, sizes in json.loads((target / SNAPSHOT_SIZES).read_text()).items():
        for name, size in sizes.items():
            with (target / partition / name).open("r+b") as file:
                file.truncate(size)
    return DataFolder(target)


@pytest.fixture
def folder(tmp_path):
    folder = DataFolder(tmp_path / "data")
    yield folder
    folder.abandon()


def taken(folder):
    snapshot = FolderSnapshot(folder)
    snapshot.prepare()
    assert snapshot.try_complete()
    return snapshot


def test_records_after_the_moment_are_not_in_a_snapshot(folder, tmp_path):
    log = folder.open("orders", 0, CONFIG, NOW)
    fill(log, 20)
    before = read_values(log)
    snapshot = taken(folder)
    fill(log, 30)
    copy = restored(snapshot, tmp_path / "copy")
    assert read_values(copy.open("orders", 0, CONFIG, NOW)) == before
    copy.close()


def test_records_between_the_preparation_and_the_moment_are_in_a_snapshot(folder, tmp_path):
    log = folder.open("orders", 0, CONFIG, NOW)
    fill(log, 20)
    snapshot = FolderSnapshot(folder)
    snapshot.prepare()
    fill(log, 30)
    late = folder.open("late", 0, CONFIG, NOW)
    fill(late, 3)
    assert snapshot.try_complete()
    copy = restored(snapshot, tmp_path / "copy")
    assert read_values(copy.open("orders", 0, CONFIG, NOW)) == read_values(log)
    assert read_values(copy.open("late", 0, CONFIG, NOW)) == read_values(late)
    copy.close()


def test_a_snapshot_keeps_what_is_deleted_after_its_moment(folder, tmp_path):
    log = folder.open("orders", 0, CONFIG, NOW)
    fill(log, 30)
    before = read_values(log)
    snapshot = taken(folder)
    folder.delete("orders", 0)
    copy = restored(snapshot, tmp_path / "copy")
    assert read_values(copy.open("orders", 0, CONFIG, NOW)) == before
    copy.close()


def test_a_topic_deleted_and_created_again_before_the_moment_is_the_new_one(folder, tmp_path):
    fill(folder.open("orders", 0, CONFIG, NOW), 30)
    snapshot = FolderSnapshot(folder)
    snapshot.prepare()
    folder.delete("orders", 0)
    log = folder.open("orders", 0, CONFIG, NOW)
    fill(log, 2)
    assert snapshot.try_complete()
    copy = restored(snapshot, tmp_path / "copy")
    assert len(read_values(copy.open("orders", 0, CONFIG, NOW))) == 2
    copy.close()


def test_a_snapshot_waits_for_a_compacted_segment_that_replaces_others(folder):
    log = folder.open("orders", 0, CONFIG, NOW)
    fill(log, 3)
    snapshot = FolderSnapshot(folder)
    snapshot.prepare()
    log.is_swapping = True
    assert not snapshot.try_complete()
    log.is_swapping = False
    assert snapshot.try_complete()


def test_a_snapshot_that_a_crash_left_is_deleted_by_the_next_start(folder, tmp_path):
    snapshot = taken(folder)
    folder.abandon()
    again = DataFolder(tmp_path / "data")
    assert not snapshot.path.exists()
    folder._lock = again._lock


STEPS = st.sampled_from(["append", "roll", "close", "checkpoint", "delete", "trim"])


@settings(max_examples=60)
@given(
    before=st.lists(STEPS, max_size=12),
    between=st.lists(STEPS, max_size=8),
    after=st.lists(STEPS, max_size=8),
)
def test_a_snapshot_has_the_log_of_its_moment_whatever_is_done_before_and_after(
    tmp_path_factory, before, between, after
):
    tmp_path = tmp_path_factory.mktemp("model")
    folder = DataFolder(tmp_path / "data")
    log = folder.open("orders", 0, CONFIG, NOW)

    def do(step):
        nonlocal log
        if step == "append":
            fill(log, 4)
        elif step == "roll" and log.active.size:
            log.roll()
        elif step == "close":
            log.close_rolled()
        elif step == "checkpoint":
            folder.checkpoint()
        elif step == "trim":
            log.move_start((log.start_offset + log.end_offset) // 2)
        elif step == "delete":
            folder.delete("orders", 0)
            log = folder.open("orders", 0, CONFIG, NOW)

    for step in before:
        do(step)
    snapshot = FolderSnapshot(folder)
    snapshot.prepare()
    for step in between:
        do(step)
    assert snapshot.try_complete()
    expected, end = read_values(log), log.end_offset
    for step in after:
        do(step)
    folder.abandon()
    copy = restored(snapshot, tmp_path / "copy")
    found = copy.open("orders", 0, CONFIG, NOW)
    assert found.end_offset == end
    # The log start offset is saved with the checkpoints: after a crash, records below it may be back.
    values = read_values(found)
    assert values[len(values) - len(expected) :] == expected
    copy.close()
