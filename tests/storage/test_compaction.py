"""Kafka's rules of compaction, one by one, with keys in a dict and in compiled code."""

import pytest

from headrace.protocol.batch import DELETE_HORIZON, HEADER_BYTES, LOG_APPEND_TIME
from headrace.protocol.compression import CODECS
from headrace.storage.compaction.hash_offset_map import HashOffsetMap
from headrace.storage.compaction.offset_map import DictOffsetMap
from tests.storage.compacted_log import DELETE_RETENTION_MS, TIME, CompactedLog


@pytest.fixture
def log(tmp_path):
    return CompactedLog(tmp_path)


@pytest.fixture(params=["dict", "table"])
def new_keys(request):
    return lambda: DictOffsetMap(1000) if request.param == "dict" else HashOffsetMap(2**20, 1000)


def test_example_compaction(log, new_keys):
    """Keys a=1, b=1, a=2, c=1, b=∅ keep a=2 (offset 2), c=1 (offset 3), b=∅ (offset 4, until it expires)."""
    for key, value in [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"b", None)]:
        log.append((key, value))
    log.roll()
    log.compact(new_keys())
    assert log.contents() == [(2, b"a", b"2"), (3, b"c", b"1"), (4, b"b", None)]
    log.now_ms += DELETE_RETENTION_MS
    log.compact(new_keys())
    assert log.contents() == [(2, b"a", b"2"), (3, b"c", b"1")]


def test_example_compaction_in_one_batch(log, new_keys):
    log.append((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"c", b"1"), (b"b", None))
    log.roll()
    log.compact(new_keys())
    assert log.contents() == [(2, b"a", b"2"), (3, b"c", b"1"), (4, b"b", None)]


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_a_batch_keeps_its_codec_and_place_and_loses_records(log, new_keys, codec):
    log.append(*((b"key %d" % (n % 7), b"value %d" % n) for n in range(70)), codec=codec, producer=4)
    before = log.batches()[0]
    log.append((b"end", b"."))
    log.roll()
    log.compact(new_keys())
    after = log.batches()[0]
    assert after.header == before.header._replace(
        length=after.header.length, crc=after.header.crc, count=7, max_timestamp=TIME + 69
    )
    assert after.records == before.records[-7:]
    assert len(after.data) < len(before.data)


def test_the_latest_time_of_a_batch_is_that_of_the_records_that_stay(log, new_keys):
    log.append((b"a", b"1"), (b"b", b"1"))
    log.append((b"b", b"2"))
    log.roll()
    log.compact(new_keys())
    assert log.batches()[0].header.max_timestamp == TIME


def test_a_batch_with_append_time_keeps_its_time(log, new_keys):
    log.append((b"a", b"1"), (b"b", b"1"), attributes=LOG_APPEND_TIME)
    log.append((b"b", b"2"))
    log.roll()
    log.compact(new_keys())
    assert [(record.key, record.timestamp) for record in log.batches()[0].records] == [(b"a", TIME + 1)]


def test_a_batch_that_loses_nothing_is_copied_byte_for_byte(log, new_keys):
    log.append((b"a", b"1"), (b"b", b"1"), codec=1)
    log.append((b"c", b"1"))
    log.append((b"c", b"2"))
    before = log.batches()
    log.roll()
    log.compact(new_keys())
    assert [batch.data for batch in log.batches()] == [before[0].data, before[2].data]


def test_records_without_key_are_dropped(log, new_keys):
    log.append((None, b"1"), (b"a", b"1"), (None, None))
    log.append((b"b", b"1"))
    log.roll()
    log.compact(new_keys())
    assert log.contents() == [(1, b"a", b"1"), (3, b"b", b"1")]


def test_the_empty_key_is_a_key(log, new_keys):
    log.append((b"", b"1"), (b"", b"2"), (b"\x00", b"3"))
    log.roll()
    log.compact(new_keys())
    assert log.contents() == [(1, b"", b"2"), (2, b"\x00", b"3")]


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_a_tombstone_gets_a_horizon_as_kafka_writes_it_and_its_records_keep_their_times(log, new_keys, codec):
    log.append((b"a", b"1"), (b"b", None), (b"c", b"1"), codec=codec)
    log.append((b"c", b"2"))
    before = log.batches()[0].records
    log.roll()
    log.now_ms += 50
    log.compact(new_keys())
    batch = log.batches()[0]
    assert batch.header.attributes == codec | DELETE_HORIZON
    assert batch.header.base_timestamp == TIME + 50 + DELETE_RETENTION_MS
    assert batch.records == before[:2]
    assert batch.header.max_timestamp == TIME + 1


def test_the_horizon_of_a_tombstone_is_set_only_once(log, new_keys):
    log.append((b"b", None))
    log.append((b"c", b"1"))
    log.roll()
    log.compact(new_keys())
    log.now_ms += DELETE_RETENTION_MS - 1
    log.compact(new_keys())
    assert (0, b"b", None) in log.contents()
    log.now_ms += 1
    log.compact(new_keys())
    assert log.contents() == [(1, b"c", b"1")]


def test_a_tombstone_stays_for_ever_when_the_retention_is_as_long_as_can_be(log, new_keys):
    log.append((b"b", None))
    log.append((b"c", b"1"))
    log.roll()
    log.compact(new_keys(), delete_retention_ms=2**63 - 1)
    assert log.batches()[0].header.base_timestamp == 2**63 - 1
    assert log.records()[0].timestamp == TIME


def test_the_last_batch_of_a_producer_stays_without_records_for_its_sequence(log, new_keys):
    log.append((b"a", b"1"), (b"b", b"1"), producer=7)
    log.append((b"a", b"2"), (b"b", b"2"), producer=8)
    log.append((b"a", b"3"), (b"b", b"3"), producer=7)
    log.append((b"a", b"4"), (b"b", b"4"))
    log.roll()
    log.compact(new_keys())
    headers = [batch.header for batch in log.batches()]
    assert [(h.producer_id, h.base_offset, h.last_offset, h.count) for h in headers] == [
        (8, 2, 3, 0),
        (7, 4, 5, 0),
        (-1, 6, 7, 2),
    ]
    assert headers[1].last_sequence == 3
    assert headers[1].size == HEADER_BYTES
    assert headers[1].max_timestamp == TIME + 1


def test_the_empty_batch_of_a_producer_goes_when_the_producer_is_forgotten(log, new_keys):
    log.append((b"a", b"1"), producer=7)
    log.append((b"a", b"2"))
    log.roll()
    log.compact(new_keys())
    assert log.batches()[0].header.count == 0
    log.last_batches.clear()
    log.compact(new_keys())
    assert [batch.header.base_offset for batch in log.batches()] == [1]


def test_the_last_batch_of_the_range_stays_even_without_records(log, new_keys):
    log.append((b"a", b"1"))
    log.append((None, b"no key"))
    log.roll()
    log.compact(new_keys())
    assert [(batch.header.last_offset, batch.header.count) for batch in log.batches()] == [(0, 1), (1, 0)]


def test_dirty_keys_replace_clean_ones_and_clean_ones_stay(log, new_keys):
    log.append((b"a", b"1"), (b"b", b"1"))
    log.roll()
    log.compact(new_keys())
    log.append((b"a", b"2"), (b"c", b"1"))
    log.roll()
    log.compact(new_keys())
    assert log.contents() == [(1, b"b", b"1"), (2, b"a", b"2"), (3, b"c", b"1")]
