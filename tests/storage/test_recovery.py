"""Opening a log after a clean stop, a crash, and damage of every kind."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocol.batch import HEADER_BYTES
from headrace.storage.producers import OutOfOrderSequence
from headrace.storage.recovery import NO_CHECKPOINT, PartitionCheckpoint
from tests.storage.batches import (
    NOW,
    Writer,
    batch,
    checkpoint_of,
    filler,
    find_latest_time,
    find_time,
    open_log,
    read_records,
    read_values,
    reopen,
)

INDEX_SUFFIXES = (".index", ".timeindex")


def fill(log, count=20):
    """Append batches of one record of 100 bytes, a millisecond apart."""
    for number in range(log.end_offset, log.end_offset + count):
        log.append(filler(number), NOW)


def files(log, suffix):
    return sorted(log.directory.glob(f"*{suffix}"))


def spoil(path, position=-1):
    """Change one byte of a file."""
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)


# The tail


@given(st.data())
@settings(max_examples=25, deadline=None)
def test_a_torn_tail_is_cut_at_the_last_whole_batch(tmp_path_factory, data):
    log = open_log(tmp_path_factory.mktemp("log"))
    ends = []
    for number in range(5):
        log.append(batch(*[b"%d" % number] * data.draw(st.integers(1, 3))), NOW)
        ends.append((log.size, log.end_offset))
    size = data.draw(st.integers(0, log.size))
    log.active.truncate(size)
    expected_size, expected_end = max([(0, 0), *(end for end in ends if end[0] <= size)])
    opened = reopen(log)
    assert (opened.size, opened.end_offset) == (expected_size, expected_end)
    assert files(opened, ".log")[0].stat().st_size == expected_size


@given(st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_a_corrupt_batch_ends_the_log(tmp_path_factory, where):
    log = open_log(tmp_path_factory.mktemp("log"))
    fill(log, 6)
    size = log.size // 6
    # The base offset and the leader epoch lie outside the checksum: the broker writes them.
    position = 17 + where % (size - 17)
    victim = where % 6
    spoil(log.active.path, victim * size + position)
    assert [record.offset for record in read_records(reopen(log))] == list(range(victim))


def test_what_follows_a_corrupt_batch_is_written_anew(tmp_path):
    log = open_log(tmp_path)
    fill(log, 3)
    spoil(log.active.path, log.size // 3 + HEADER_BYTES)
    log = reopen(log)
    log.append(batch(b"new"), NOW)
    assert read_values(reopen(log))[-1] == b"new"
    assert reopen(log).end_offset == 2


def test_segments_after_a_torn_one_are_deleted_with_their_files(tmp_path):
    log = open_log(tmp_path, segment_bytes=1024)
    fill(log)
    second = log.segments[1]
    log.active.save_indexes()
    spoil(second.path)
    opened = reopen(log, checkpoint=NO_CHECKPOINT)
    assert len(opened.segments) == 2
    assert {int(path.name.partition(".")[0]) for path in tmp_path.iterdir()} == {0, second.base_offset}
    assert [record.offset for record in read_records(opened)] == list(range(opened.end_offset))


def test_a_segment_that_lost_its_end_between_two_batches_ends_the_log(tmp_path):
    log = open_log(tmp_path, segment_bytes=1024, background=lambda job: None)
    fill(log)
    first = log.segments[0]
    first.truncate(list(first.headers())[-1][0])
    opened = reopen(log)
    assert [record.offset for record in read_records(opened)] == list(range(opened.end_offset))
    assert opened.end_offset == log.segments[1].base_offset - 1


def test_a_header_that_lies_about_its_offsets_is_not_taken_for_an_old_one(tmp_path):
    log = open_log(tmp_path)
    fill(log, 2)
    # The sign of the last offset delta: the batch now seems to end long before the recovery point.
    spoil(log.active.path, 23)
    assert reopen(log).end_offset == 0


def test_a_start_beyond_the_torn_end_begins_an_empty_log_there(tmp_path):
    log = open_log(tmp_path)
    fill(log, 10)
    log.move_start(8)
    checkpoint = checkpoint_of(log)
    log.active.truncate(log.size // 2)
    opened = reopen(log, checkpoint=checkpoint)
    assert (opened.start_offset, opened.end_offset, opened.high_watermark) == (8, 8, 8)
    assert opened.append(batch(b"new"), NOW).base_offset == 8
    assert read_values(reopen(opened)) == [b"new"]


# How much is read


def test_a_clean_stop_skips_the_scan(tmp_path):
    log = open_log(tmp_path)
    fill(log, 5)
    log.close()
    spoil(log.active.path)
    opened = reopen(log, clean=True)
    assert opened.end_offset == 5


def test_a_crash_after_a_clean_stop_scans_only_what_came_since(tmp_path):
    log = open_log(tmp_path)
    fill(log, 5)
    log = reopen(log, clean=True)
    fill(log, 5)
    spoil(log.active.path, HEADER_BYTES + 10)
    assert reopen(log).end_offset == 10


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("writer", [None, Writer(7)])
def test_segments_below_the_recovery_point_are_not_read(tmp_path, clean, writer):
    log = open_log(tmp_path, segment_bytes=1024)
    for number in range(30):
        step = None if writer is None else writer._replace(sequence=number)
        log.append(batch(b"." * 100, writer=step), NOW)
    if clean:
        log.close()
    checkpoint = checkpoint_of(log)
    closed = [segment.path for segment in log.segments[:-1]]
    for path in itertools.chain.from_iterable(
        (p, *(p.with_suffix(s) for s in INDEX_SUFFIXES)) for p in closed
    ):
        # A folder in the place of each file: not even root can read that.
        path.unlink()
        path.mkdir()
    opened = open_log(tmp_path, segment_bytes=1024, checkpoint=checkpoint, clean=clean)
    assert opened.end_offset == 30
    assert len(read_records(opened, opened.active.base_offset)) == 30 - opened.active.base_offset
    if writer is not None:
        again = opened.append(batch(b"." * 100, writer=Writer(7, 29)), NOW)
        assert (again.base_offset, again.is_duplicate) == (29, True)


def test_segments_that_were_not_closed_before_the_crash_are_made_durable(tmp_path):
    log = open_log(tmp_path, segment_bytes=1024, background=lambda job: None)
    fill(log)
    assert log.recovery_point == 0
    assert files(log, ".index") == []
    opened = reopen(log)
    assert opened.recovery_point == opened.active.base_offset > 0
    assert [int(path.stem) for path in files(opened, ".index")] == [
        s.base_offset for s in opened.segments[:-1]
    ]
    assert files(opened, ".snapshot")[-1].stem == opened.active.path.stem


# Indexes


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("suffix", INDEX_SUFFIXES)
@pytest.mark.parametrize("damage", ["missing", "empty", "short", "garbage", "foreign"])
def test_an_index_that_is_damaged_is_made_again(tmp_path, clean, suffix, damage):
    log = open_log(tmp_path, segment_bytes=4096, index_interval_bytes=200)
    fill(log, 60)
    if clean:
        log.close()
    foreign = files(log, suffix)[0].read_bytes()
    for path in files(log, suffix):
        data = path.read_bytes()
        changed = {"empty": b"", "short": data[:-3], "garbage": b"\x7f" * len(data), "foreign": foreign[:24]}
        path.unlink()
        if damage != "missing":
            path.write_bytes(changed[damage])
    opened = open_log(
        tmp_path, segment_bytes=4096, index_interval_bytes=200, checkpoint=checkpoint_of(log), clean=clean
    )
    for offset in range(60):
        assert read_records(opened, offset, max_bytes=500)[0].offset == offset
        assert find_time(opened, NOW + offset) == (offset, NOW + offset)
    assert find_latest_time(opened) == (59, NOW + 59)


# Producers and transactions


def write(log, sequence, producer_id=7, *, transactional=False):
    writer = Writer(producer_id, sequence, transactional=transactional)
    return log.append(batch(b"%d" % sequence, writer=writer), NOW)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["none", "missing", "garbage"])
def test_a_producer_is_known_after_a_restart(tmp_path, clean, damage):
    log = open_log(tmp_path, segment_bytes=1024)
    for sequence in range(20):
        write(log, sequence)
    if clean:
        log.close()
    for path in files(log, ".snapshot"):
        if damage == "missing":
            path.unlink()
        elif damage == "garbage":
            spoil(path)
    opened = open_log(tmp_path, segment_bytes=1024, checkpoint=checkpoint_of(log), clean=clean)
    assert write(opened, 17).base_offset == 17
    with pytest.raises(OutOfOrderSequence):
        write(opened, 21)
    assert not write(opened, 20).is_duplicate


def test_a_damaged_snapshot_is_written_again_before_the_batches_behind_it_may_go(tmp_path):
    log = open_log(tmp_path)
    write(log, 0)
    log.roll()
    for path in files(log, ".snapshot"):
        spoil(path)
    log = reopen(log, checkpoint=NO_CHECKPOINT)
    log.append(batch(b"other"), NOW)
    log.move_start(log.end_offset - 1)
    assert write(reopen(log), 0).is_duplicate


def test_a_transaction_that_began_before_the_start_of_the_log_is_still_open_after_a_crash(tmp_path):
    log = open_log(tmp_path)
    write(log, 0, transactional=True)
    log.move_start(1)
    opened = reopen(log)
    assert opened.producers.has_open(7)


def test_a_snapshot_of_batches_that_were_lost_is_not_believed(tmp_path):
    log = open_log(tmp_path)
    for sequence in range(10):
        write(log, sequence)
    log.close()
    log.active.truncate(log.size // 2)
    log = reopen(log, checkpoint=NO_CHECKPOINT)
    for sequence in range(5, 10):
        write(log, sequence, producer_id=8)
    # The offsets are those of the snapshot again, and the batches are others.
    opened = reopen(log, checkpoint=NO_CHECKPOINT)
    assert not write(opened, 5).is_duplicate


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("damage", ["none", "short", "garbage"])
def test_aborted_transactions_are_known_after_a_restart(tmp_path, clean, closed, damage):
    log = open_log(tmp_path)
    write(log, 0, transactional=True)
    write(log, 0, producer_id=8, transactional=True)
    log.append_marker(7, 0, committed=False, now_ms=NOW)
    if closed:
        log.roll()
    log.append_marker(8, 0, committed=True, now_ms=NOW)
    write(log, 1, transactional=True)
    before = log.aborted.between(0, log.end_offset)
    if clean:
        log.close()
    for path in files(log, ".txnindex"):
        if damage == "short":
            path.write_bytes(path.read_bytes()[:-1])
        elif damage == "garbage":
            path.write_bytes(b"\xff" * path.stat().st_size)
    opened = open_log(tmp_path, checkpoint=checkpoint_of(log), clean=clean)
    assert opened.aborted.between(0, opened.end_offset) == before
    assert opened.last_stable_offset == log.last_stable_offset == 4
    assert read_values(opened, committed=True) == [b"0"]


def test_a_damaged_list_of_aborted_transactions_is_written_again_and_producers_stay_known(tmp_path):
    log = open_log(tmp_path)
    write(log, 0, producer_id=8)
    log.roll()
    write(log, 0, transactional=True)
    log.append_marker(7, 0, committed=False, now_ms=NOW)
    log.roll()
    log.move_start(1)
    (path,) = files(log, ".txnindex")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    opened = reopen(log)
    assert path.read_bytes() == whole
    assert [entry.producer_id for entry in opened.aborted.between(0, 9)] == [7]
    assert write(opened, 0, producer_id=8).is_duplicate


def test_an_abort_in_a_segment_that_was_closed_after_the_checkpoint_is_known(tmp_path):
    log = open_log(tmp_path)
    checkpoint = checkpoint_of(log)
    write(log, 0, transactional=True)
    log.append_marker(7, 0, committed=False, now_ms=NOW)
    log.roll()
    write(log, 0, producer_id=8)
    log.roll()
    opened = reopen(log, checkpoint=checkpoint)
    assert [entry.producer_id for entry in opened.aborted.between(0, 10)] == [7]
    assert [entry.producer_id for entry in reopen(opened).aborted.between(0, 10)] == [7]


# Syncs


@pytest.fixture
def synced(monkeypatch):
    """The sizes of files when they were synced, by name."""
    sizes = {}
    real = os.fdatasync

    def record(descriptor):
        real(descriptor)
        sizes[Path(f"/proc/self/fd/{descriptor}").readlink().name] = os.fstat(descriptor).st_size

    monkeypatch.setattr(os, "fdatasync", record)
    return sizes


def test_a_sync_reaches_a_segment_that_was_rolled_and_not_closed_yet(tmp_path, synced):
    log = open_log(tmp_path, waits_for_sync=True)
    fill(log, 3)
    log.close()
    log = open_log(
        tmp_path, waits_for_sync=True, checkpoint=checkpoint_of(log), clean=True, background=lambda job: None
    )
    fill(log, 3)
    log.roll()
    fill(log, 1)
    synced.clear()
    log.sync()
    assert synced == {segment.path.name: segment.size for segment in log.segments}


def test_what_a_crash_left_unsynced_is_synced_before_it_counts_as_safe(tmp_path, synced):
    log = open_log(tmp_path, segment_bytes=1024, background=lambda job: None)
    fill(log)
    synced.clear()
    opened = reopen(log)
    assert synced == {segment.path.name: segment.size for segment in opened.segments[:-1]}


def test_with_flush_always_readers_see_nothing_that_was_not_synced(tmp_path, synced):
    log = open_log(tmp_path)
    fill(log, 3)
    synced.clear()
    opened = open_log(tmp_path, waits_for_sync=True)
    assert opened.high_watermark == 3
    assert synced == {opened.active.path.name: opened.size}


def test_a_sync_that_failed_once_is_never_believed_again(tmp_path, monkeypatch):
    log = open_log(tmp_path, segment_bytes=1024)
    fill(log, 3)

    def fail(_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", fail)
        log.roll()
    assert log.recovery_point == 0
    with pytest.raises(OSError, match="Input/output"):
        log.sync()
    fill(log, 3)
    log.roll()
    assert log.recovery_point == 0


def test_segments_become_durable_in_their_order(tmp_path):
    jobs = []
    log = open_log(tmp_path, segment_bytes=1024, background=jobs.append)
    fill(log, 30)
    bases = [segment.base_offset for segment in log.segments]
    points = []
    for job in reversed(jobs):
        job()
        points.append(log.recovery_point)
    assert points[0] in bases
    assert points == sorted(points)
    assert points[-1] == bases[-1]
    assert not log.has_rolled


def test_a_segment_that_cannot_be_closed_is_closed_later(tmp_path):
    log = open_log(tmp_path, segment_bytes=1024)
    obstacle = tmp_path / f"{0:020d}.index.tmp"
    obstacle.mkdir()
    fill(log)
    assert log.recovery_point == 0
    assert log.has_rolled
    assert len(read_records(log)) == 20
    obstacle.rmdir()
    log.close_rolled()
    assert log.recovery_point == log.active.base_offset


def test_a_segment_that_was_deleted_before_it_could_be_closed_leaves_no_files(tmp_path):
    jobs = []
    log = open_log(tmp_path, segment_bytes=1024, background=jobs.append)
    fill(log)
    log.move_start(20)
    log.roll()
    for job in jobs:
        job()
    done = len(jobs)
    log.trim()
    for job in jobs[done:]:
        job()
    assert {
        int(path.name.partition(".")[0]) for path in tmp_path.iterdir() if path.suffix != ".snapshot"
    } == {segment.base_offset for segment in log.segments}
    log.sync()


def test_a_start_on_a_full_disk_waits_with_what_it_would_save(tmp_path):
    log = open_log(tmp_path, segment_bytes=1024, background=lambda job: None)
    fill(log)
    (tmp_path / f"{0:020d}.index.tmp").mkdir()
    opened = reopen(log)
    assert len(read_records(opened)) == 20
    assert opened.recovery_point == 0


def test_what_a_crash_left_half_written_or_without_its_log_goes(tmp_path):
    log = open_log(tmp_path, segment_bytes=1024)
    fill(log)
    expected = {path.name for path in tmp_path.iterdir()}
    for name in (f"{3:020d}.index", f"{3:020d}.timeindex", f"{3:020d}.txnindex", f"{0:020d}.index.tmp"):
        (tmp_path / name).write_bytes(b"left")
    reopen(log)
    assert {path.name for path in tmp_path.iterdir()} == expected


def test_marks_of_nothing_start_at_the_beginning(tmp_path):
    log = open_log(tmp_path)
    fill(log, 3)
    assert reopen(log, checkpoint=PartitionCheckpoint()).start_offset == 0
