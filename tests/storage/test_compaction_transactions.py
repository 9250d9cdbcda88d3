"""Transactions in a compacted log: what is void goes, and markers stay as long as they mean something."""

import pytest

from headrace.protocol.batch import DELETE_HORIZON
from headrace.storage.compaction.hash_offset_map import HashOffsetMap
from headrace.storage.compaction.offset_map import DictOffsetMap
from tests.storage.compacted_log import DELETE_RETENTION_MS, TIME, CompactedLog


@pytest.fixture
def log(tmp_path):
    return CompactedLog(tmp_path)


@pytest.fixture(params=["dict", "table"])
def new_keys(request):
    return lambda: DictOffsetMap(1000) if request.param == "dict" else HashOffsetMap(2**20, 1000)


def test_records_of_aborted_transactions_are_dropped_and_hide_nothing(log, new_keys):
    log.append((b"a", b"1"))
    log.begin(7)
    log.append((b"a", b"void"), producer=7)
    log.append((b"b", b"1"))
    log.finish(7, commit=False)
    log.append((b"c", b"1"))
    log.roll()
    log.last_batches.clear()
    log.compact(new_keys())
    assert log.contents() == [(0, b"a", b"1"), (2, b"b", b"1"), (4, b"c", b"1")]
    assert not any(batch.header.is_transactional and not batch.header.is_control for batch in log.batches())


def test_only_the_transaction_that_was_aborted_is_dropped(log, new_keys):
    for commit in (True, False, True):
        log.begin(7)
        log.append((b"%d" % log.end, b"v"), producer=7)
        log.finish(7, commit=commit)
    log.roll()
    log.compact(new_keys())
    assert log.contents() == [(0, b"0", b"v"), (4, b"4", b"v")]


def markers(log):
    return [batch.header.base_offset for batch in log.batches() if batch.header.is_control]


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_stays_until_its_transaction_is_gone_and_then_until_its_horizon(log, new_keys, commit):
    log.begin(7)
    log.append((b"a", b"1"), producer=7)
    log.finish(7, commit=commit)
    log.append((b"a", b"2"))
    log.roll()
    log.last_batches.clear()
    log.compact(new_keys())
    assert [batch.header.base_offset for batch in log.batches()] == [1, 2]
    assert not log.batches()[0].header.attributes & DELETE_HORIZON
    log.compact(new_keys())
    assert log.batches()[0].header.attributes & DELETE_HORIZON
    assert log.batches()[0].records[0].timestamp == TIME
    log.now_ms += DELETE_RETENTION_MS - 1
    log.compact(new_keys())
    assert markers(log) == [1]
    log.now_ms += 1
    log.compact(new_keys())
    assert markers(log) == []


def test_a_marker_stays_as_long_as_a_record_of_its_transaction(log, new_keys):
    log.begin(7)
    log.append((b"a", b"1"), (b"b", b"1"), producer=7)
    log.finish(7, commit=True)
    log.append((b"a", b"2"))
    log.roll()
    log.last_batches.clear()
    for _ in range(3):
        log.compact(new_keys())
        log.now_ms += 2 * DELETE_RETENTION_MS
    assert log.contents() == [(1, b"b", b"1"), (3, b"a", b"2")]
    assert markers(log) == [2]


def test_a_marker_that_keeps_its_producer_alive_stays_whole(log, new_keys):
    log.begin(7)
    log.finish(7, commit=True)
    log.append((b"a", b"1"))
    log.roll()
    log.last_batches = {7: 0}
    for _ in range(3):
        log.compact(new_keys())
        log.now_ms += 2 * DELETE_RETENTION_MS
    assert markers(log) == [0]
    assert log.batches()[0].header.count == 1


def test_the_index_of_aborted_transactions_is_kept_until_their_records_are_gone(log, new_keys):
    log.begin(7)
    log.append((b"a", b"void"), producer=7)
    log.finish(7, commit=False)
    log.append((b"b", b"1"))
    log.roll()
    log.last_batches.clear()
    before = log.aborted()
    assert len(before) == 1
    log.compact(new_keys())
    assert log.aborted() == before
    log.compact(new_keys())
    assert log.aborted() == ()


def test_an_open_transaction_is_not_touched_nor_does_it_hide_anything(log, new_keys):
    log.append((b"a", b"1"))
    log.append((b"a", b"2"))
    log.begin(7)
    log.append((b"a", b"maybe"), (b"a", b"perhaps"), producer=7)
    log.append((b"a", b"after"))
    log.roll()
    open_part = [batch.data for batch in log.batches()[2:]]
    log.compact(new_keys())
    assert [batch.data for batch in log.batches()[1:]] == open_part
    assert log.contents() == [(1, b"a", b"2")]
    assert log.first_dirty == 2


def test_a_transaction_aborted_behind_the_range_is_known_to_be_void(log, new_keys):
    log.append((b"a", b"1"))
    log.begin(7)
    log.append((b"a", b"void"), producer=7)
    log.roll()
    log.finish(7, commit=False)
    log.compact(new_keys())
    assert log.contents() == [(0, b"a", b"1")]
