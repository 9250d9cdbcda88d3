"""Segments in the archive: uploads, local retention, reads through the cache, deletions, and crashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.storage.errors import ArchiveError
from headrace.storage.remote_cache import RemoteReadPending
from headrace.storage.remote_segment import RemoteSegment
from headrace.storage.tiering import (
    apply_local_retention,
    archivable,
    archived_end,
    delete_archived,
    local_size,
    local_start,
    stop_tiering,
)
from tests.storage.archives import FOLDER, FaultyStore, Killed, archive_closed, cache_of, folder_archive
from tests.storage.batches import (
    NOW,
    Writer,
    batch,
    downloaded,
    filler,
    find_latest_time,
    find_time,
    open_log,
    read_records,
    read_values,
    reopen,
)

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.storage.partition import PartitionLog

SEGMENT = 1024


def tiered(folder: Path, store: FaultyStore, **options: object) -> PartitionLog:
    settings = {"remote_storage_enable": True, "segment_bytes": SEGMENT, "local_retention_bytes": 0} | options
    return open_log(folder / "log", remote_cache=cache_of(store, folder / "cache"), **settings)


@pytest.fixture
def store(tmp_path: Path) -> FaultyStore:
    return FaultyStore(folder_archive(tmp_path / "archive"))


@pytest.fixture
def log(tmp_path: Path, store: FaultyStore) -> PartitionLog:
    """A log of 40 records in several segments, of which only the active one is local."""
    log = tiered(tmp_path, store)
    for number in range(40):
        log.append(filler(number), NOW)
    archive_closed(log, store)
    log.apply_retention(NOW)
    return log


def objects(store: FaultyStore) -> set[str]:
    return set(store.store.list(FOLDER))


def expected(log: PartitionLog) -> list[int]:
    return list(range(log.start_offset, log.end_offset))


def offsets(log: PartitionLog) -> list[int]:
    return [record.offset for record in read_records(log)]


def test_local_retention_keeps_only_the_active_segment_on_disk(log: PartitionLog) -> None:
    kinds = [isinstance(segment, RemoteSegment) for segment in log.segments]
    assert kinds == [True] * (len(kinds) - 1) + [False]
    assert len(list(log.directory.glob("*.log"))) == 1
    assert local_size(log) == log.active.size < log.size


def test_archived_records_are_read_back_from_every_offset(log: PartitionLog) -> None:
    for offset in range(40):
        assert [record.offset for record in read_records(log, offset)] == list(range(offset, 40))


def test_a_read_of_archived_records_waits_for_their_download(log: PartitionLog) -> None:
    with pytest.raises(RemoteReadPending) as pending:
        log.read(0, 100, log.high_watermark, at_least_one=True)
    called: list[bool] = []
    pending.value.load(lambda: called.append(True))
    found = log.read(0, 100, log.high_watermark, at_least_one=True)
    assert called
    assert found is not None


def test_records_are_found_by_time_in_both_tiers(log: PartitionLog) -> None:
    for number in range(40):
        assert find_time(log, NOW + number) == (number, NOW + number)
    assert find_latest_time(log) == (39, NOW + 39)


def test_a_cache_that_is_too_small_for_one_segment_still_serves_it(
    tmp_path: Path, log: PartitionLog, store: FaultyStore
) -> None:
    log.remote_cache = cache_of(store, tmp_path / "small", limit_bytes=1)
    log = reopen(log, clean=True)
    assert offsets(log) == expected(log)


@pytest.mark.parametrize("clean", [True, False])
def test_the_tiers_survive_a_restart(log: PartitionLog, clean: bool) -> None:
    assert offsets(reopen(log, clean=clean)) == list(range(40))


def test_recovery_without_checkpoints_does_not_scan_archived_segments(
    log: PartitionLog, store: FaultyStore
) -> None:
    from headrace.storage.recovery import NO_CHECKPOINT

    store.fail_in(0, AssertionError("a restart reads nothing from the archive"))
    opened = reopen(log, checkpoint=NO_CHECKPOINT)
    assert (opened.start_offset, opened.end_offset) == (0, 40)


def test_lost_local_indexes_are_downloaded_again(log: PartitionLog) -> None:
    for path in (*log.directory.glob("*.index"), *log.directory.glob("*.timeindex")):
        path.write_bytes(b"")
    opened = reopen(log)
    assert offsets(opened) == list(range(40))
    assert find_time(opened, NOW + 7) == (7, NOW + 7)


def test_damaged_objects_are_reported_and_never_served(
    tmp_path: Path, log: PartitionLog, store: FaultyStore
) -> None:
    first = tmp_path / "archive" / FOLDER / f"{0:020d}.log"
    data = bytearray(first.read_bytes())
    data[100] ^= 1
    first.write_bytes(data)
    with pytest.raises(ArchiveError, match="damaged"):
        read_records(log)


def test_a_failed_download_is_an_error_first_and_tried_again_later(
    log: PartitionLog, store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RemoteReadPending) as pending:
        log.read(0, 100, 40, at_least_one=True)
    store.fail_in(0, ArchiveError("the network is down"))
    pending.value.load(lambda: None)
    with pytest.raises(ArchiveError, match="network is down"):
        log.read(0, 100, 40, at_least_one=True)
    monkeypatch.setattr("headrace.storage.remote_cache.FAULT_SECONDS", 0)
    assert log.remote_cache is not None
    log.remote_cache._faults.clear()
    assert offsets(log) == expected(log)


def test_an_open_transaction_keeps_its_segments_local(tmp_path: Path, store: FaultyStore) -> None:
    log = tiered(tmp_path, store)
    log.append(batch(b"in", writer=Writer(1, transactional=True)), NOW)
    for number in range(30):
        log.append(filler(number), NOW)
    assert archivable(log, log.recovery_point) == []
    log.append_marker(1, 0, committed=False, now_ms=NOW)
    assert archivable(log, log.recovery_point)


def test_aborted_transactions_are_skipped_in_the_archive_too(tmp_path: Path, store: FaultyStore) -> None:
    log = tiered(tmp_path, store)
    log.append(batch(b"aborted", writer=Writer(1, transactional=True)), NOW)
    log.append_marker(1, 0, committed=False, now_ms=NOW)
    for number in range(30):
        log.append(filler(number), NOW)
    archive_closed(log, store)
    log.apply_retention(NOW)
    for each in (log, reopen(log), reopen(log, clean=True)):
        assert b"aborted" in read_values(each)
        assert b"aborted" not in read_values(each, committed=True)


def test_retention_counts_both_tiers_and_deletes_from_the_archive(
    log: PartitionLog, store: FaultyStore
) -> None:
    from dataclasses import replace

    log.config = replace(log.config, retention_bytes=2 * SEGMENT)
    log.apply_retention(NOW)
    assert log.start_offset > 0
    archive_closed(log, store)
    assert {int(name.rsplit("/", 1)[1][:20]) for name in objects(store)} == {
        segment.base_offset for segment in log.segments[:-1]
    }
    assert offsets(log) == expected(log)


def test_deleting_all_records_empties_the_archive(log: PartitionLog, store: FaultyStore) -> None:
    log.move_start(40)
    archive_closed(log, store)
    assert objects(store) == set()
    assert not list(log.directory.glob("*.remote*"))


def test_a_deletion_that_fails_is_repeated_after_a_restart(log: PartitionLog, store: FaultyStore) -> None:
    log.move_start(40)
    store.fail_in(1, Killed())
    with pytest.raises(Killed):
        archive_closed(log, store)
    assert objects(store)
    log = reopen(log)
    archive_closed(log, store)
    assert objects(store) == set()


def test_disabling_tiered_storage_deletes_the_archive_and_keeps_local_records(
    tmp_path: Path, store: FaultyStore
) -> None:
    log = tiered(tmp_path, store, local_retention_bytes=3 * SEGMENT)
    for number in range(40):
        log.append(filler(number), NOW)
    archive_closed(log, store)
    log.apply_retention(NOW)
    start = local_start(log)
    assert start > 0
    stop_tiering(log)
    assert log.start_offset == start
    delete_archived(store, log.directory, FOLDER)
    assert objects(store) == set()
    assert offsets(reopen(log)) == list(range(start, 40))


def test_the_archived_end_follows_the_uploads(tmp_path: Path, store: FaultyStore) -> None:
    log = tiered(tmp_path, store)
    assert archived_end(log) == 0
    for number in range(40):
        log.append(filler(number), NOW)
    archive_closed(log, store)
    assert archived_end(log) == log.active.base_offset
    assert local_start(log) == 0
    apply_local_retention(log, NOW)
    assert local_start(log) == log.active.base_offset


@pytest.mark.parametrize("after_effect", [False, True])
@pytest.mark.parametrize("call", range(12))
def test_a_kill_at_any_step_of_an_upload_neither_loses_nor_duplicates_a_segment(
    tmp_path: Path, store: FaultyStore, call: int, after_effect: bool
) -> None:
    log = tiered(tmp_path, store)
    for number in range(24):
        log.append(filler(number), NOW)
    store.fail_in(call, Killed(), after_effect=after_effect)
    try:
        archive_closed(log, store)
    except Killed:
        log = reopen(log)
    log.apply_retention(NOW)
    assert offsets(log) == list(range(24))
    archive_closed(log, store)
    log.apply_retention(NOW)
    assert [isinstance(segment, RemoteSegment) for segment in log.segments[:-1]] == [True] * (
        len(log.segments) - 1
    )
    assert offsets(reopen(log)) == list(range(24))
    log.move_start(24)
    archive_closed(log, store)
    assert objects(store) == set()


def test_the_next_batch_and_sizes_are_known_across_the_tiers(log: PartitionLog) -> None:
    header = downloaded(lambda: log.next_batch(3))
    assert header is not None
    assert header.base_offset == 3
    assert downloaded(lambda: log.size_from(0)) == log.size
