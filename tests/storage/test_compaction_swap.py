"""Cleaned segments take the place of the old ones; a crash between any two steps loses nothing."""

import shutil
from itertools import islice

import pytest

from headrace.storage.compaction import recover_swaps, swap_in
from headrace.storage.compaction.cleaner import compact
from headrace.storage.compaction.plan import recovery_steps, swap_steps
from tests.storage.compacted_log import CompactedLog

LATEST = {b"a": b"2", b"b": b"2", b"c": b"1", b"d": b"1"}


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


def latest(log):
    return {record.key: record.value for record in log.records()}


def names(log):
    return {path.name for path in log.directory.iterdir()}


def test_a_swap_leaves_the_cleaned_segment_and_nothing_else(log):
    (group,) = compact(log.request()).groups
    swap_in(log.directory, group)
    assert latest(log) == LATEST
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
        assert latest(log) == LATEST
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
            assert latest(log) == LATEST
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
