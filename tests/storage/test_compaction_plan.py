"""What a compaction takes, and how its result replaces segments."""

from __future__ import annotations

import shutil
from itertools import islice

import pytest

from headrace.storage.compaction import recover_swaps, swap_in
from headrace.storage.compaction.cleaner import compact
from headrace.storage.compaction.plan import plan_compaction, recovery_steps, swap_steps
from tests.storage.batches import (
    NOW,
    Writer,
    batch,
    checkpoint_of,
    find_latest_time,
    open_log,
    read_records,
    read_values,
    reopen,
)
from tests.storage.compacted_log import CompactedLog

DAY = 24 * 3_600_000
COMPACT = {"cleanup_policy": frozenset({"compact"}), "segment_bytes": 1024}
LATEST = {b"a": b"2", b"b": b"2", b"c": b"1", b"d": b"1"}


def update(log, count=30, keys=3, time_ms=NOW):
    for number in range(count):
        log.append(batch(b"%03d" % number + b"." * 100, key=b"%d" % (number % keys), time_ms=time_ms), NOW)


def clean(log, now_ms=NOW):
    """Compact the log as the broker does, in this process; whether there was anything to do."""
    request = plan_compaction(log, now_ms, None)
    if request is None:
        return False
    result = compact(request)
    for group in result.groups:
        swap_in(log.directory, group)
        log.replace_segments(group.replaces)
    log.first_dirty_offset = result.first_dirty
    return True


def latest(log):
    return {record.key: record.value for record in read_records(log)}


def test_a_log_that_is_not_compacted_is_left_alone(tmp_path):
    log = open_log(tmp_path, segment_bytes=1024)
    update(log)
    assert plan_compaction(log, NOW, None) is None


def test_only_closed_segments_are_compacted(tmp_path):
    log = open_log(tmp_path, **COMPACT)
    update(log)
    request = plan_compaction(log, NOW, 77)
    assert request is not None
    assert request.segments == tuple(segment.base_offset for segment in log.segments[:-1])
    assert request.segments_end == request.clean_until == log.active.base_offset
    assert request.io_bytes_per_s == 77


def test_a_log_with_only_an_active_segment_has_nothing_to_compact(tmp_path):
    log = open_log(tmp_path, **COMPACT | {"segment_bytes": 2**20})
    update(log)
    assert plan_compaction(log, NOW, None) is None


def test_the_latest_record_of_each_key_is_left_at_its_offset(tmp_path):
    log = open_log(tmp_path, **COMPACT)
    update(log)
    before = {record.offset: record for record in read_records(log)}
    keys = latest(log)
    closed_end = log.active.base_offset
    assert clean(log)
    after = read_records(log)
    assert latest(log) == keys
    assert all(before[record.offset] == record for record in after)
    assert len([record for record in after if record.offset < closed_end]) == 3


def test_what_was_compacted_is_found_from_every_offset_and_after_a_restart(tmp_path):
    log = open_log(tmp_path, **COMPACT)
    update(log)
    clean(log)
    offsets = [record.offset for record in read_records(log)]
    for opened in (log, reopen(log), reopen(log, clean=True)):
        for offset in range(log.end_offset):
            assert [r.offset for r in read_records(opened, offset)] == [o for o in offsets if o >= offset]


def test_a_clean_log_is_not_compacted_again_until_enough_of_it_is_dirty(tmp_path):
    log = open_log(tmp_path, **COMPACT, min_cleanable_dirty_ratio=0.5)
    update(log, count=200, keys=100)
    assert clean(log)
    clean_bytes = sum(segment.size for segment in log.segments[:-1])
    assert not clean(log)
    dirty_bytes, written = 0, 0
    while not clean(log):
        dirty_bytes = sum(s.size for s in log.segments[:-1] if s.base_offset >= log.first_dirty_offset)
        assert dirty_bytes <= clean_bytes + 1024
        update(log, count=1)
        written += 1
    assert written > 10
    assert dirty_bytes >= clean_bytes - 1024


def test_a_segment_of_which_a_part_is_dirty_is_compacted(tmp_path):
    log = open_log(tmp_path, **COMPACT, min_cleanable_dirty_ratio=0)
    update(log, count=9)
    log.roll()
    log.first_dirty_offset = log.segments[-2].base_offset + 1
    assert clean(log)
    assert log.first_dirty_offset == 9


def test_records_younger_than_the_lag_are_safe(tmp_path):
    log = open_log(tmp_path, **COMPACT, min_compaction_lag_ms=DAY)
    update(log, time_ms=NOW - DAY)
    log.roll()
    young = log.end_offset
    update(log)
    request = plan_compaction(log, NOW, None)
    assert request is not None
    assert request.clean_until == young


def test_an_open_transaction_is_not_touched(tmp_path):
    log = open_log(tmp_path, **COMPACT)
    update(log)
    log.append(batch(b"open", writer=Writer(7, transactional=True)), NOW)
    first = log.end_offset - 1
    update(log)
    request = plan_compaction(log, NOW, None)
    assert request is not None
    assert request.clean_until <= first
    assert request.clean_until in [segment.base_offset for segment in log.segments]


def test_what_has_not_been_synced_is_not_compacted(tmp_path):
    log = open_log(tmp_path, **COMPACT, background=lambda job: None)
    update(log)
    assert plan_compaction(log, NOW, None) is None
    log.close_rolled()
    assert plan_compaction(log, NOW, None) is not None


def test_a_record_that_waited_too_long_rolls_its_segment_and_is_compacted(tmp_path):
    log = open_log(tmp_path, cleanup_policy=frozenset({"compact"}), max_compaction_lag_ms=DAY)
    update(log)
    assert not clean(log, NOW + DAY)
    assert clean(log, NOW + DAY + 1)
    assert len(read_records(log)) == 3


def test_an_aborted_transaction_whose_marker_is_gone_does_not_hide_what_its_producer_writes_later(tmp_path):
    log = open_log(tmp_path, **COMPACT, delete_retention_ms=0)
    log.append(batch(b"void", key=b"x", writer=Writer(7, 0, transactional=True)), NOW)
    log.append_marker(7, 0, committed=False, now_ms=NOW)
    update(log)
    log.append(batch(b"good", key=b"y", writer=Writer(7, 1, transactional=True)), NOW)
    log.append_marker(7, 0, committed=True, now_ms=NOW)
    log.roll()
    for now_ms in range(NOW, NOW + 5):
        log.first_dirty_offset = 0
        clean(log, now_ms)
        assert read_values(log, committed=True)[-1] == b"good"
    assert len(log.aborted) == 0


@pytest.mark.parametrize("is_crash", [True, False])
def test_a_producer_is_known_after_its_records_were_compacted_away(tmp_path, is_crash):
    log = open_log(tmp_path, **COMPACT)
    for sequence in range(20):
        log.append(batch(b"." * 100, writer=Writer(7, sequence)), NOW)
    update(log)
    clean(log)
    for path in tmp_path.glob("*.snapshot"):
        path.unlink()
    opened = (
        open_log(tmp_path, **COMPACT, checkpoint=checkpoint_of(log)) if is_crash else reopen(log, clean=True)
    )
    again = opened.append(batch(b"." * 100, writer=Writer(7, 19)), NOW)
    assert (again.base_offset, again.is_duplicate) == (19, True)


def test_the_largest_time_is_found_although_compaction_removed_the_record_that_had_it(tmp_path):
    log = open_log(tmp_path, **COMPACT)
    log.append(batch(b"latest", key=b"0", time_ms=NOW + 1000, writer=Writer(7)), NOW)
    update(log)
    clean(log)
    found = find_latest_time(log)
    assert found is not None
    assert found.timestamp == NOW
    assert found.offset == read_records(log)[0].offset


@pytest.fixture
def log(tmp_path):
    """Three segments that become one; an aborted transaction is in the first and its files in the second."""
    folder = tmp_path / "log"
    folder.mkdir()
    log = CompactedLog(folder)
    log.append((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    log.begin(7)
    log.append((b"c", b"void"), producer=7)
    log.roll()
    log.append((b"a", b"2"))
    log.finish(7, commit=False)
    log.roll()
    log.append((b"b", b"2"), (b"d", b"1"))
    log.roll()
    for base in log.bases[:-1]:
        for suffix in (".index", ".timeindex", ".snapshot"):
            (folder / f"{base:020d}{suffix}").write_bytes(b"old")
    return log


def latest_records(log):
    return {record.key: record.value for record in log.records()}


def names(log):
    return {path.name for path in log.directory.iterdir()}


def test_a_swap_leaves_the_cleaned_segment_and_nothing_else(log):
    (group,) = compact(log.request()).groups
    swap_in(log.directory, group)
    assert latest_records(log) == LATEST
    assert names(log) == {
        "00000000000000000000.log",
        "00000000000000000000.index",
        "00000000000000000000.timeindex",
        "00000000000000000000.txnindex",
        "00000000000000000000.snapshot",
        f"{log.active_base:020d}.log",
    }
    assert (log.directory / "00000000000000000000.index").read_bytes() != b"old"


def crash_points(log, scratch):
    """The folder as it is when the swap dies after each of its steps."""
    (group,) = compact(log.request()).groups
    cleaned = scratch / "cleaned"
    shutil.copytree(log.directory, cleaned)
    done = 0
    while True:
        shutil.rmtree(log.directory)
        shutil.copytree(cleaned, log.directory)
        taken = sum(1 for _ in islice(swap_steps(log.directory, group), done))
        if taken < done:
            return
        yield done
        done += 1


def test_a_crash_at_any_point_of_a_swap_leaves_the_latest_of_each_key(log, tmp_path):
    swapped = []
    for _ in crash_points(log, tmp_path):
        recover_swaps(log.directory)
        assert latest_records(log) == LATEST
        assert not [name for name in names(log) if name.endswith((".cleaned", ".swap"))]
        swapped.append(len(log.bases) == 2)
    assert len(swapped) > 15
    # Before the plan is decided the old segments come back, from then on the cleaned one comes through.
    assert swapped == sorted(swapped)
    assert {True, False} == set(swapped)


def test_a_crash_at_any_point_of_a_recovery_leaves_the_latest_of_each_key(log, tmp_path):
    crashed = tmp_path / "crashed"
    for _ in crash_points(log, tmp_path):
        shutil.rmtree(crashed, ignore_errors=True)
        shutil.copytree(log.directory, crashed)
        for done in range(100):
            shutil.rmtree(log.directory)
            shutil.copytree(crashed, log.directory)
            taken = sum(1 for _ in islice(recovery_steps(log.directory), done))
            recover_swaps(log.directory)
            assert latest_records(log) == LATEST
            if taken < done:
                break


def test_what_a_dead_compactor_left_is_deleted(log):
    before = names(log)
    compact(log.request())
    assert names(log) > before
    recover_swaps(log.directory)
    assert names(log) == before


def test_a_folder_without_swaps_is_left_alone(log):
    before = {path.name: path.read_bytes() for path in log.directory.iterdir()}
    recover_swaps(log.directory)
    assert {path.name: path.read_bytes() for path in log.directory.iterdir()} == before


def test_the_index_of_aborted_transactions_goes_with_the_last_of_them(log):
    log.last_batches.clear()
    log.compact()
    assert "00000000000000000000.txnindex" in names(log)
    log.compact()
    assert "00000000000000000000.txnindex" not in names(log)
