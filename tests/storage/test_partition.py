"""The log of one partition on disk: what it does with files; `test_log_contract` has what every log does."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.protocol.batch import COPY_STEP_BYTES
from headrace.protocol.records import NewRecord, encode_batch
from headrace.storage.errors import DiskError, InvalidRecord
from headrace.storage.partition import MAX_OFFSET_SPAN
from tests.storage.batches import NOW, batch, filler, open_log, read_records, read_values


def test_a_compacted_topic_refuses_a_record_without_a_key_and_says_which(tmp_path):
    log = open_log(tmp_path, cleanup_policy=frozenset({"compact"}))
    records = [NewRecord(b"k", b"1", NOW), NewRecord(None, b"2", NOW)]
    with pytest.raises(InvalidRecord, match="record 1 of the batch has no key"):
        log.append(memoryview(encode_batch(records)), NOW)
    assert log.end_offset == 0


def test_a_segment_that_cannot_be_made_is_a_fault_of_the_disk(tmp_path):
    log = open_log(tmp_path / "log", segment_bytes=1024)
    log.append(batch(b"v" * 1000), NOW)
    # A folder has taken the name of the next segment: the open fails as it does for lack of inodes.
    (tmp_path / "log" / f"{1:020d}.log").mkdir()
    with pytest.raises(DiskError, match="could not be created"):
        log.append(batch(b"w" * 1000), NOW)
    (tmp_path / "log" / f"{1:020d}.log").rmdir()
    log.append(batch(b"x" * 1000), NOW)
    assert read_values(log) == [b"v" * 1000, b"x" * 1000]


def test_a_segment_is_rolled_before_it_grows_beyond_its_size(tmp_path):
    log = open_log(tmp_path, segment_bytes=1024)
    for number in range(20):
        log.append(filler(number), NOW)
    sizes = [path.stat().st_size for path in sorted(tmp_path.glob("*.log"))]
    assert len(sizes) > 2
    assert all(size <= 1024 for size in sizes)
    assert len(read_records(log)) == 20


def test_a_batch_larger_than_a_segment_has_one_of_its_own(tmp_path):
    log = open_log(tmp_path, segment_bytes=1024)
    for value in (b"a", b"B" * 5000, b"c"):
        log.append(batch(value), NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 1, 2]
    assert read_values(log) == [b"a", b"B" * 5000, b"c"]


LARGE = b"L" * (3 * COPY_STEP_BYTES)


def large_log(folder):
    return open_log(folder, max_message_bytes=2 * len(LARGE))


def log_bytes(folder):
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


def test_a_large_batch_that_was_written_in_steps_is_stored_as_any_other(tmp_path):
    whole, staged = large_log(tmp_path / "whole"), large_log(tmp_path / "staged")
    for log in (whole, staged):
        log.append(batch(b"before"), NOW)
        large = batch(LARGE)
        if log is staged:
            assert len(list(log.stage(large))) == 4
        log.append(large, NOW)
        log.append(batch(b"after"), NOW)
    assert log_bytes(tmp_path / "staged") == log_bytes(tmp_path / "whole")
    assert read_values(staged) == [b"before", LARGE, b"after"]


def test_a_batch_that_comes_between_the_steps_of_a_large_one_is_stored_before_it(tmp_path):
    log = large_log(tmp_path)
    large = batch(LARGE)
    steps = log.stage(large)
    next(steps)
    log.append(batch(b"between"), NOW)
    assert len(log_bytes(tmp_path)) == log.size
    assert not list(steps)
    log.append(large, NOW)
    assert read_values(log) == [b"between", LARGE]


@pytest.mark.parametrize("end", ["discard_staged", "roll", "close"])
def test_nothing_is_left_of_a_large_batch_that_is_not_appended(tmp_path, end):
    log = large_log(tmp_path)
    log.append(batch(b"before"), NOW)
    steps = log.stage(batch(LARGE))
    next(steps)
    getattr(log, end)()
    assert len(log_bytes(tmp_path)) == log.size


def test_a_crash_between_the_steps_of_a_large_batch_leaves_what_was_before_it(tmp_path):
    log = large_log(tmp_path / "log")
    log.append(batch(b"before"), NOW)
    list(log.stage(batch(LARGE)))
    shutil.copytree(tmp_path / "log", tmp_path / "crashed")
    crashed = large_log(tmp_path / "crashed")
    assert read_values(crashed) == [b"before"]
    assert len(log_bytes(tmp_path / "crashed")) == log.size


def test_a_large_batch_for_which_the_disk_has_no_room_is_refused_when_it_is_appended(tmp_path):
    log = large_log(tmp_path)
    log.append(batch(b"before"), NOW)
    large = batch(LARGE)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * COPY_STEP_BYTES, limit[1]))
    try:
        list(log.stage(large))
        with pytest.raises(DiskError, match="free disk space"):
            log.append(large, NOW)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert len(log_bytes(tmp_path)) == log.size
    log.append(batch(b"after"), NOW)
    assert read_values(log) == [b"before", b"after"]


def test_a_segment_is_rolled_when_its_first_record_is_old_enough(tmp_path):
    log = open_log(tmp_path, segment_ms=1000)
    for time_ms in (NOW, NOW + 1000, NOW + 1001, NOW + 2001, NOW + 2002):
        log.append(batch(b"v", time_ms=time_ms), NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 4]


def test_the_age_of_a_segment_goes_on_after_a_restart(tmp_path):
    open_log(tmp_path, segment_ms=1000).append(batch(b"v"), NOW)
    log = open_log(tmp_path, segment_ms=1000)
    log.append(batch(b"w", time_ms=NOW + 1001), NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 1]


def test_the_clock_of_a_producer_does_not_roll_segments_that_have_the_brokers_time(tmp_path):
    log = open_log(tmp_path, message_timestamp_type="LogAppendTime", segment_ms=1000)
    for number in range(5):
        log.append(batch(b"v", time_ms=0), NOW + number)
    assert len(log.segments) == 1


def test_a_segment_is_rolled_when_its_index_is_full(tmp_path):
    log = open_log(tmp_path, index_interval_bytes=0, segment_index_bytes=16)
    for number in range(7):
        log.append(filler(number), NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6]


def test_a_segment_is_rolled_before_its_index_runs_out_of_numbers(tmp_path):
    log = open_log(tmp_path)
    log.append(batch(b"v"), NOW)
    log.end_offset = log.high_watermark = MAX_OFFSET_SPAN
    log.append(batch(b"still in"), NOW)
    log.append(batch(b"rolled"), NOW)
    assert [segment.base_offset for segment in log.segments] == [0, MAX_OFFSET_SPAN + 1]


def test_rolling_an_empty_segment_changes_nothing(tmp_path):
    log = open_log(tmp_path)
    log.roll()
    log.append(batch(b"a"), NOW)
    log.roll()
    log.roll()
    assert [segment.base_offset for segment in log.segments] == [0, 1]


def test_records_that_wait_for_a_sync_are_not_seen(tmp_path):
    log = open_log(tmp_path, waits_for_sync=True)
    log.append(batch(b"a"), NOW)
    assert read_values(log) == []
    reached = log.sync()
    log.append(batch(b"b"), NOW)
    log.synced(reached)
    assert read_values(log) == [b"a"]


def test_a_reader_in_the_middle_of_a_segment_goes_on_after_it_was_deleted(tmp_path):
    log = open_log(tmp_path, segment_bytes=1024)
    for number in range(20):
        log.append(filler(number), NOW)
    held = log.read(0, 2**20, 20, at_least_one=True)
    assert held is not None
    before = os.pread(held.file.fd, held.size, held.position)
    log.move_start(20)
    assert not (tmp_path / f"{0:020d}.log").exists()
    assert os.pread(held.file.fd, held.size, held.position) == before


def test_syncs_in_other_threads_never_meet_a_file_that_was_closed_or_deleted(tmp_path):
    with ThreadPoolExecutor(3) as threads:
        log = open_log(tmp_path, segment_bytes=1024, background=threads.submit)
        stop = threading.Event()

        def sync_again_and_again():
            rounds = 0
            while not stop.is_set():
                log.sync()
                rounds += 1
            return rounds

        syncing = threads.submit(sync_again_and_again)
        try:
            for number in range(2000):
                log.append(filler(number), NOW)
                if number % 20 == 0:
                    log.move_start(max(log.start_offset, number - 5))
                    assert read_records(log)[-1].offset == number
        finally:
            stop.set()
        assert syncing.result(100) > 0


def test_the_start_moves_to_any_offset_and_segments_before_it_go(tmp_path):
    log = open_log(tmp_path, segment_bytes=1024)
    for number in range(20):
        log.append(filler(number), NOW)
    second = log.segments[1].base_offset
    log.move_start(second + 1)
    assert read_records(log)[0].offset == second + 1
    assert sorted(int(path.stem) for path in tmp_path.glob("*.log")) == [s.base_offset for s in log.segments]
    assert log.segments[0].base_offset == second


def test_no_file_is_deleted_while_another_takes_its_name(tmp_path):
    log = open_log(tmp_path, segment_bytes=1024)
    for number in range(20):
        log.append(filler(number), NOW)
    log.is_swapping = True
    log.move_start(20)
    assert (tmp_path / f"{0:020d}.log").exists()
    log.is_swapping = False
    log.trim()
    assert not (tmp_path / f"{0:020d}.log").exists()
