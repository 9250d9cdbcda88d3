"""The log in memory: its bound, its offsets over a restart, and what it costs."""

from __future__ import annotations

import tracemalloc

import pytest

from headrace.storage.checkpoint import read_checkpoint
from headrace.storage.config import MEMORY_BYTES, TopicConfig
from headrace.storage.errors import InvalidConfig, RecordTooLarge
from headrace.storage.folder import DataFolder
from headrace.storage.memory_log import BLOCK_OFFSETS, CHUNK_BYTES, MemoryLog
from tests.storage.batches import NOW, batch, filler, read_records, read_values

IN_MEMORY = TopicConfig.parse({"headrace.storage": "memory"})


def memory_log(retention_bytes=MEMORY_BYTES, **settings):
    return MemoryLog(TopicConfig(headrace_storage="memory", retention_bytes=retention_bytes, **settings))


# The bound


def test_the_oldest_batch_goes_as_soon_as_a_new_one_does_not_fit():
    size = len(filler(0))
    log = memory_log(retention_bytes=10 * size)
    for number in range(10):
        log.append(filler(number), NOW)
    assert (log.start_offset, log.size) == (0, 10 * size)
    log.append(filler(10), NOW)
    assert (log.start_offset, log.end_offset, log.size) == (1, 11, 10 * size)


def test_a_batch_larger_than_the_bound_is_refused_and_nothing_goes_for_it():
    log = memory_log(retention_bytes=500)
    log.append(batch(b"small"), NOW)
    with pytest.raises(RecordTooLarge, match=r"holds 500 bytes in memory"):
        log.append(batch(b"." * 500), NOW)
    assert read_values(log) == [b"small"]


def test_a_smaller_bound_holds_from_the_next_upkeep_on():
    log = memory_log()
    for number in range(100):
        log.append(filler(number), NOW)
    log.config = TopicConfig(headrace_storage="memory", retention_bytes=2000)
    assert log.apply_retention(NOW) > 0
    assert log.size <= 2000


def test_memory_is_given_back_however_many_batches_pass():
    log = memory_log(retention_bytes=100_000)
    tracemalloc.start()
    try:
        for number in range(6_000):
            log.append(filler(number), NOW)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert log.end_offset == 6_000
    assert held < 3 * 100_000
    assert [record.offset for record in read_records(log)] == list(range(log.start_offset, 6_000))


def test_records_without_a_time_are_kept_by_the_time_of_their_append():
    log = memory_log(retention_ms=3_600_000)
    log.append(batch(b"a", time_ms=-1), NOW)
    assert log.apply_retention(NOW) == 0
    assert log.apply_retention(10 * NOW) > 0


# What is sent


def test_small_batches_are_joined_and_large_ones_are_not_cut():
    log = memory_log()
    sizes = [100] * 50 + [300_000] + [100] * 10
    for size in sizes:
        log.append(batch(b"." * size), NOW)
    found = log.read(0, 2**20, len(sizes), at_least_one=True)
    assert found is not None
    pieces = list(found.chunks())
    assert b"".join(pieces) == found.read()
    assert sum(map(len, pieces)) == found.size == log.size
    assert [len(piece) > CHUNK_BYTES for piece in pieces] == [False, True, False]


# Restarts


def written(folder, count):
    log = folder.open("live", 0, IN_MEMORY, NOW)
    for number in range(count):
        log.append(filler(number), NOW)
    return log


def test_after_a_clean_stop_the_log_is_empty_and_its_offsets_go_on(tmp_path):
    folder = DataFolder(tmp_path)
    written(folder, 5)
    folder.close()
    again = DataFolder(tmp_path)
    log = again.open("live", 0, IN_MEMORY, NOW)
    assert (log.start_offset, log.end_offset, log.size) == (5, 5, 0)
    assert log.append(filler(5), NOW).base_offset == 5
    again.close()


def test_after_a_crash_no_offset_is_given_a_second_time(tmp_path):
    ends = [0]
    for _ in range(3):
        folder = DataFolder(tmp_path)
        log = written(folder, 5)
        assert log.start_offset >= ends[-1]
        ends.append(log.end_offset)
        assert read_checkpoint(tmp_path / "memory-offset-checkpoint")["live", 0] >= log.end_offset
        folder.abandon()
    assert ends[-1] < 4 * BLOCK_OFFSETS


def test_nothing_of_the_records_is_on_disk(tmp_path):
    folder = DataFolder(tmp_path)
    written(folder, 5)
    assert not any(path.is_dir() for path in tmp_path.iterdir())
    assert all(path.stat().st_size < 200 for path in tmp_path.iterdir())
    folder.close()


@pytest.mark.parametrize("is_crash", [False, True])
def test_a_deleted_topic_leaves_its_offsets_to_nobody(tmp_path, is_crash):
    folder = DataFolder(tmp_path)
    written(folder, 5)
    if not is_crash:
        folder.delete("live", 0)
    folder.abandon()
    again = DataFolder(tmp_path)
    again.discard("live", 0)
    assert again.open("live", 0, IN_MEMORY, NOW).start_offset == 0
    again.close()


def test_partitions_together_may_hold_only_so_much(tmp_path):
    folder = DataFolder(tmp_path, memory_bytes=2 * MEMORY_BYTES)
    folder.open("live", 0, IN_MEMORY, NOW)
    folder.memory.check_room(MEMORY_BYTES)
    with pytest.raises(InvalidConfig, match=r"--memory-topics-bytes"):
        folder.memory.check_room(MEMORY_BYTES + 1)
    folder.close()


# Settings


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"cleanup.policy": "compact"}, "not compacted"),
        ({"retention.bytes": "-1"}, "has a limit"),
        (
            {"headrace.overflow": "drop-newest", "headrace.overflow.records": "5"},
            "set headrace.overflow.bytes to at most",
        ),
    ],
)
def test_settings_that_memory_cannot_keep_are_refused(settings, reason):
    with pytest.raises(InvalidConfig, match=reason):
        TopicConfig.parse({"headrace.storage": "memory"} | settings)


def test_a_topic_in_memory_has_a_bound_by_default():
    assert IN_MEMORY.retention_bytes == MEMORY_BYTES
    assert IN_MEMORY.text("retention.bytes") == str(MEMORY_BYTES)
    assert TopicConfig.parse({}).text("retention.bytes") == "-1"
