"""The data folder: its lock, its checkpoints, the mark of a clean stop, and partitions that come and go."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.storage.checkpoint import read_checkpoint, write_checkpoint
from headrace.storage.config import TopicConfig
from headrace.storage.errors import DataFolderLocked, DiskError, StorageError
from headrace.storage.folder import DataFolder
from tests.storage.batches import NOW, batch, filler, read_values

CONFIG = TopicConfig(segment_bytes=1024)


def open_topic(folder, topic="orders", partition=0, config=CONFIG):
    return folder.open(topic, partition, config, NOW)


def fill(log, count=20):
    for number in range(log.end_offset, log.end_offset + count):
        log.append(filler(number), NOW)


# The lock


def test_a_second_broker_on_the_folder_is_refused_with_the_first_ones_process_id(tmp_path):
    script = "import sys; from pathlib import Path; from headrace.storage.folder import DataFolder\n"
    script += "folder = DataFolder(Path(sys.argv[1])); print('ready', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        with pytest.raises(DataFolderLocked, match=f"process id {holder.pid}.*--data"):
            DataFolder(tmp_path)
        holder.kill()
    DataFolder(tmp_path).abandon()


def test_a_folder_that_was_closed_can_be_opened_again(tmp_path):
    DataFolder(tmp_path).close()
    folder = DataFolder(tmp_path)
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
    folder.close()


def test_the_cluster_keeps_its_id(tmp_path):
    folder = DataFolder(tmp_path)
    cluster_id = folder.cluster_id
    assert len(cluster_id) == 22
    folder.close()
    folder = DataFolder(tmp_path)
    assert folder.cluster_id == cluster_id
    folder.close()


# Clean stops and crashes


def test_a_clean_stop_is_marked_and_the_mark_goes_with_the_next_start(tmp_path):
    folder = DataFolder(tmp_path)
    assert not folder.was_clean
    fill(open_topic(folder), 3)
    folder.close()
    folder = DataFolder(tmp_path)
    assert folder.was_clean
    log = open_topic(folder)
    assert (log.end_offset, log.recovery_point) == (3, 3)
    fill(log, 3)
    folder.abandon()
    folder = DataFolder(tmp_path)
    assert not folder.was_clean
    assert open_topic(folder).end_offset == 6
    folder.abandon()


def test_starts_and_recovery_points_come_back_from_checkpoints(tmp_path):
    folder = DataFolder(tmp_path)
    log = open_topic(folder)
    fill(log)
    log.move_start(15)
    log.first_dirty_offset = 17
    folder.checkpoint()
    folder.abandon()
    folder = DataFolder(tmp_path)
    opened = open_topic(folder)
    assert (opened.start_offset, opened.first_dirty_offset) == (15, 17)
    assert opened.recovery_point == log.active.base_offset
    folder.abandon()


def test_a_checkpoint_keeps_what_it_says_of_partitions_that_are_not_open_yet(tmp_path):
    folder = DataFolder(tmp_path)
    for topic in ("a", "b"):
        log = open_topic(folder, topic)
        fill(log)
        log.move_start(15)
    folder.close()
    folder = DataFolder(tmp_path)
    open_topic(folder, "a")
    folder.checkpoint()
    folder.abandon()
    folder = DataFolder(tmp_path)
    assert open_topic(folder, "b").start_offset == 15
    folder.abandon()


def test_a_folder_that_cannot_be_closed_cleanly_is_scanned_at_the_next_start(tmp_path):
    folder = DataFolder(tmp_path)
    fill(open_topic(folder), 3)
    obstacle = tmp_path / "orders-0" / f"{0:020d}.index.tmp"
    obstacle.mkdir()
    folder.close()
    obstacle.rmdir()
    folder = DataFolder(tmp_path)
    assert not folder.was_clean
    assert open_topic(folder).end_offset == 3
    folder.close()


def test_snapshots_are_kept_as_long_as_a_recovery_needs_them(tmp_path):
    folder = DataFolder(tmp_path)
    log = open_topic(folder)
    fill(log, 50)
    assert len(list(log.directory.glob("*.snapshot"))) == len(log.segments) - 1
    folder.checkpoint()
    assert [int(path.stem) for path in log.directory.glob("*.snapshot")] == [log.active.base_offset]
    folder.abandon()


# Topics that are deleted


def test_a_deleted_partition_is_gone_at_once_and_its_files_soon(tmp_path):
    jobs = []
    folder = DataFolder(tmp_path, background=jobs.append)
    fill(open_topic(folder), 3)
    folder.delete("orders", 0)
    assert not (tmp_path / "orders-0").exists()
    assert list(tmp_path.glob("*.deleted"))
    for job in jobs:
        job()
    assert not list(tmp_path.glob("*.deleted"))
    folder.abandon()


def test_what_a_crash_left_of_a_deleted_partition_goes_with_the_next_start(tmp_path):
    folder = DataFolder(tmp_path, background=lambda job: None)
    fill(open_topic(folder), 3)
    folder.delete("orders", 0)
    folder.abandon()
    DataFolder(tmp_path).abandon()
    assert not list(tmp_path.glob("*.deleted"))


@pytest.mark.parametrize("restart", ["none", "clean", "crash"])
def test_a_new_topic_of_an_old_name_begins_at_the_beginning(tmp_path, restart):
    folder = DataFolder(tmp_path)
    log = open_topic(folder)
    fill(log)
    log.move_start(15)
    folder.close()
    folder = DataFolder(tmp_path)
    open_topic(folder)
    folder.delete("orders", 0)
    if restart == "clean":
        folder.close()
        folder = DataFolder(tmp_path)
    log = open_topic(folder)
    assert (log.start_offset, log.end_offset, log.first_dirty_offset) == (0, 0, 0)
    fill(log, 3)
    if restart == "crash":
        folder.abandon()
        folder = DataFolder(tmp_path)
        log = open_topic(folder)
    assert (log.start_offset, log.end_offset, log.recovery_point) == (0, 3, 0)
    assert len(read_values(log)) == 3
    folder.abandon()


def test_the_corrupt_tail_of_a_new_topic_of_an_old_name_is_not_trusted(tmp_path):
    folder = DataFolder(tmp_path)
    fill(open_topic(folder))
    folder.checkpoint()
    folder.delete("orders", 0)
    log = open_topic(folder)
    fill(log, 3)
    folder.abandon()
    data = bytearray(log.active.path.read_bytes())
    data[-1] ^= 1
    log.active.path.write_bytes(data)
    folder = DataFolder(tmp_path)
    assert open_topic(folder).end_offset == 2
    folder.abandon()


def test_a_sync_of_a_partition_that_is_being_deleted_is_no_fault(tmp_path):
    folder = DataFolder(tmp_path, background=lambda job: None)
    log = open_topic(folder)
    fill(log)
    folder.delete("orders", 0)
    assert log.sync() == 20
    log.close_rolled()
    assert not (tmp_path / "orders-0").exists()
    folder.abandon()


def test_a_partition_that_cannot_be_made_is_a_fault_of_the_disk(tmp_path):
    folder = DataFolder(tmp_path)
    (tmp_path / "orders-0").write_bytes(b"in the way")
    with pytest.raises(DiskError, match="partition 0 of orders could not be opened"):
        open_topic(folder)
    folder.abandon()


# Checkpoints

names = st.text("abcXYZ019._-", min_size=1, max_size=20)


@given(st.dictionaries(st.tuples(names, st.integers(0, 9999)), st.integers(0, 2**63 - 1)))
@settings(deadline=None, max_examples=50)
def test_offsets_come_back_from_a_checkpoint(tmp_path_factory, offsets):
    path = tmp_path_factory.getbasetemp() / "checkpoint"
    write_checkpoint(path, offsets)
    assert read_checkpoint(path) == offsets


def test_a_checkpoint_has_kafkas_format(tmp_path):
    path = tmp_path / "checkpoint"
    write_checkpoint(path, {("b", 1): 7, ("a", 0): 5})
    assert path.read_text() == "0\n2\na 0 5\nb 1 7\n"


def test_a_checkpoint_that_does_not_exist_says_nothing(tmp_path):
    assert read_checkpoint(tmp_path / "missing") == {}


def test_a_torn_temporary_file_does_not_touch_a_checkpoint(tmp_path):
    path = tmp_path / "checkpoint"
    write_checkpoint(path, {("a", 0): 5})
    (tmp_path / "checkpoint.tmp").write_text("0\n7\na 0")
    assert read_checkpoint(path) == {("a", 0): 5}
    write_checkpoint(path, {("a", 0): 6})
    assert read_checkpoint(path) == {("a", 0): 6}


@pytest.mark.parametrize(
    "text",
    ["", "0\n", "0\n2\na 0 5\n", "9\n0\n", "0\nmany\na 0 5\n", "0\n1\na 0 x\n", "0\n1\na 0\n", "\xff\x00"],
)
def test_a_damaged_checkpoint_is_refused_with_what_to_do(tmp_path, text):
    path = tmp_path / "checkpoint"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(StorageError, match=r"damaged.*delete it"):
        read_checkpoint(path)


def test_partitions_share_the_folder(tmp_path):
    folder = DataFolder(tmp_path)
    for partition in range(3):
        open_topic(folder, partition=partition).append(batch(b"%d" % partition), NOW)
    folder.close()
    folder = DataFolder(tmp_path)
    assert [read_values(open_topic(folder, partition=index)) for index in range(3)] == [
        [b"0"],
        [b"1"],
        [b"2"],
    ]
    folder.close()
