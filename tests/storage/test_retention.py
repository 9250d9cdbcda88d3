"""Which segments go, by age and by size."""

from __future__ import annotations

import os

import pytest

from headrace.storage.partition import apply_retention
from tests.storage.batches import NOW, Writer, batch, filler, open_log, read_records, read_values

HOUR = 3_600_000


def hourly(folder, hours=6, **settings):
    """A log with one segment for each hour."""
    log = open_log(folder, segment_ms=1, **settings)
    for hour in range(hours):
        log.append(batch(b"%d" % hour, time_ms=NOW + hour * HOUR), NOW + hour * HOUR)
    return log


def test_segments_older_than_the_limit_go(tmp_path):
    log = hourly(tmp_path, retention_ms=2 * HOUR)
    freed = apply_retention(log, NOW + 5 * HOUR)
    assert read_values(log) == [b"3", b"4", b"5"]
    assert freed == 3 * (log.size // 3)


def test_what_is_exactly_as_old_as_the_limit_stays(tmp_path):
    log = hourly(tmp_path, retention_ms=2 * HOUR)
    apply_retention(log, NOW + 2 * HOUR)
    assert len(read_values(log)) == 6
    apply_retention(log, NOW + 2 * HOUR + 1)
    assert len(read_values(log)) == 5


def test_the_active_segment_goes_too_when_all_of_it_is_old(tmp_path):
    log = hourly(tmp_path, retention_ms=2 * HOUR)
    apply_retention(log, NOW + 100 * HOUR)
    assert read_values(log) == []
    assert (log.start_offset, log.end_offset) == (6, 6)
    assert log.append(batch(b"new"), NOW).base_offset == 6


def test_an_old_segment_behind_a_young_one_stays(tmp_path):
    log = open_log(tmp_path, segment_bytes=1024, retention_ms=HOUR)
    for number in range(30):
        time_ms = NOW if number == 0 else NOW - 100 * HOUR
        log.append(batch(b"." * 100, time_ms=time_ms), NOW)
    apply_retention(log, NOW)
    assert len(read_records(log)) == 30


@pytest.mark.parametrize("policy", [{"compact"}, {"delete"}, set()])
def test_nothing_goes_without_a_limit_or_from_a_compacted_topic(tmp_path, policy):
    retention_ms = -1 if "delete" in policy else 1
    log = hourly(tmp_path, retention_ms=retention_ms, cleanup_policy=frozenset(policy))
    assert apply_retention(log, NOW + 10_000 * HOUR) == 0
    assert len(read_values(log)) == 6


def test_a_topic_that_is_compacted_and_deleted_is_deleted(tmp_path):
    log = hourly(tmp_path, retention_ms=HOUR, cleanup_policy=frozenset({"compact", "delete"}))
    apply_retention(log, NOW + 5 * HOUR)
    assert read_values(log) == [b"4", b"5"]


def test_records_without_a_time_are_as_old_as_their_file(tmp_path):
    log = open_log(tmp_path, retention_ms=HOUR)
    log.append(batch(b"v", time_ms=-1), NOW)
    os.utime(log.active.path, (NOW / 1000, NOW / 1000))
    apply_retention(log, NOW + HOUR)
    assert read_values(log) == [b"v"]
    apply_retention(log, NOW + HOUR + 1)
    assert read_values(log) == []


@pytest.mark.parametrize("limit", [0, 1024, 2500, 10**6])
def test_the_oldest_segments_go_until_the_rest_would_be_below_the_limit(tmp_path, limit):
    log = open_log(tmp_path, segment_bytes=1024, retention_bytes=limit)
    for number in range(40):
        log.append(filler(number), NOW)
    sizes = [segment.size for segment in log.segments]
    apply_retention(log, NOW)
    assert log.size >= min(limit, sum(sizes))
    assert log.size - log.segments[0].size < limit or len(log.segments) == 1
    assert [segment.size for segment in log.segments] == sizes[len(sizes) - len(log.segments) :]


def test_readers_are_told_the_new_start(tmp_path):
    log = hourly(tmp_path, retention_ms=2 * HOUR)
    apply_retention(log, NOW + 5 * HOUR)
    assert log.start_offset == read_records(log)[0].offset == 3
    assert log.first_dirty_offset == 3


def test_aborted_transactions_before_the_start_are_forgotten(tmp_path):
    log = open_log(tmp_path, segment_ms=1, retention_ms=HOUR)
    log.append(batch(b"void", writer=Writer(7, transactional=True)), NOW)
    log.append_marker(7, 0, committed=False, now_ms=NOW)
    log.append(batch(b"new", time_ms=NOW + 5 * HOUR), NOW + 5 * HOUR)
    apply_retention(log, NOW + 5 * HOUR)
    assert len(log.aborted) == 0
    assert read_values(log, committed=True) == [b"new"]


def test_files_that_could_not_be_deleted_during_a_swap_go_with_the_next_pass(tmp_path):
    log = hourly(tmp_path, retention_ms=-1)
    log.is_swapping = True
    log.move_start(4)
    log.is_swapping = False
    assert apply_retention(log, NOW) > 0
    assert len(list(tmp_path.glob("*.log"))) == 2
