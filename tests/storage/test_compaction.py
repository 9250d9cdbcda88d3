"""Kafka's rules of compaction, one by one, with keys in a dict and in compiled code."""

from itertools import pairwise

import pytest

from headrace.protocol.batch import DELETE_HORIZON, HEADER_BYTES, LOG_APPEND_TIME, build_batch, read_header
from headrace.protocol.compression import CODECS
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import NewRecord, encode_records
from headrace.storage.compaction.cleaner import SMALL_BYTES, compact
from headrace.storage.compaction.keydict import KeyDict
from headrace.storage.compaction.keytable import KeyTable
from headrace.storage.compaction.source import read_batches
from headrace.storage.compaction.throttle import Throttle
from headrace.storage.errors import StorageError
from headrace.storage.index import OffsetIndex, TimeIndex
from tests.storage.compacted_log import DELETE_RETENTION_MS, TIME, CompactedLog


@pytest.fixture
def log(tmp_path):
    return CompactedLog(tmp_path)


@pytest.fixture(params=["dict", "table"])
def new_keys(request):
    return lambda: KeyDict(1000) if request.param == "dict" else KeyTable(2**20, 1000)


def names(log):
    return {path.name for path in log.directory.iterdir()}


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


def test_segments_that_lose_nothing_are_left_alone(log, new_keys):
    log.append((b"a", b"1"))
    log.roll()
    before = names(log)
    result = log.compact(new_keys())
    assert result.groups == ()
    assert result.first_dirty == 1
    assert names(log) == before


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


def test_dirty_keys_replace_clean_ones_and_clean_ones_stay(log, new_keys):
    log.append((b"a", b"1"), (b"b", b"1"))
    log.roll()
    log.compact(new_keys())
    log.append((b"a", b"2"), (b"c", b"1"))
    log.roll()
    log.compact(new_keys())
    assert log.contents() == [(1, b"b", b"1"), (2, b"a", b"2"), (3, b"c", b"1")]


@pytest.mark.parametrize(
    "keys", [lambda: KeyDict(10), lambda: KeyTable(16 * 24, 1000)], ids=["dict", "table"]
)
def test_when_keys_do_not_fit_the_log_is_cleaned_as_far_as_they_did(log, keys):
    for n in range(30):
        log.append((b"%d" % (n % 15), b"%d" % n), (b"%d" % (n % 15), b"%d again" % n))
    log.roll()
    result = log.compact(keys())
    assert 0 < result.first_dirty < log.end
    assert result.first_dirty in (20, 24)
    while log.first_dirty < log.end:
        log.compact(keys())
    assert log.contents() == [(2 * n + 1, b"%d" % (n % 15), b"%d again" % n) for n in range(15, 30)]


def test_keys_of_one_batch_that_do_not_fit_are_an_error_that_says_so(log):
    log.append(*((b"%d" % n, b"v") for n in range(20)))
    log.roll()
    with pytest.raises(StorageError, match="larger buffer"):
        log.compact(KeyDict(10))


def test_small_segments_are_joined(log, new_keys):
    for n in range(10):
        log.append((b"%d" % (n % 2), b"%d" % n))
        log.roll()
    result = log.compact(new_keys())
    assert [group.replaces for group in result.groups] == [tuple(range(10))]
    assert log.bases == [0, 10]
    assert log.contents() == [(8, b"0", b"8"), (9, b"1", b"9")]


def test_segments_are_not_joined_beyond_their_size(log, new_keys):
    for n in range(6):
        log.append((b"%d" % n, b"x" * 100))
        log.roll()
    size = log.batches()[0].header.size
    log.compact(new_keys(), segment_bytes=2 * size)
    assert log.bases == [0, 2, 4, 6]
    assert len(log.contents()) == 6


def test_segments_are_not_joined_beyond_what_an_index_can_count(log, new_keys):
    log.append((b"a", b"1"))
    log.end = log.active_base = 2**31
    log.append((b"b", b"1"))
    log.roll()
    log.compact(new_keys())
    assert log.bases == [0, 2**31, 2**31 + 1]


def test_an_emptied_segment_stays_as_an_empty_file(log, new_keys):
    log.append((b"a", b"1"))
    log.roll()
    log.append((b"a", b"2"), (b"b", b"x" * 300))
    log.roll()
    log.compact(new_keys(), segment_bytes=100)
    assert log.bases == [0, 1, 3]
    assert (log.directory / "00000000000000000000.log").stat().st_size == 0


def test_the_indexes_of_a_cleaned_segment_lead_to_its_batches(log, new_keys):
    for n in range(300):
        log.append((b"%d" % (n // 2), b"x" * 200))
        log.now_ms += 10
    log.roll()
    log.compact(new_keys())
    base = log.directory / "00000000000000000000.log"
    index = OffsetIndex.load(0, base.with_suffix(".index").read_bytes())
    times = TimeIndex.load(0, base.with_suffix(".timeindex").read_bytes())
    starts, position = {}, 0
    for batch in log.batches():
        starts[batch.header.last_offset] = position
        position += batch.header.size
    assert len(index) > 5
    assert all(starts[offset] == at for offset, at in zip(index.offsets, index.positions, strict=True))
    assert all(after - before > 4096 for before, after in pairwise(index.positions))
    assert times.max_timestamp == log.batches()[-1].header.max_timestamp
    assert times.offsets[-1] == log.end - 1


def test_a_cleaned_segment_has_the_age_of_what_it_replaces(log, new_keys):
    log.append((b"a", b"1"))
    log.append((b"a", b"2"))
    log.roll()
    path = log.directory / "00000000000000000000.log"
    before = path.stat().st_mtime_ns
    log.compact(new_keys())
    assert path.stat().st_mtime_ns == before


def test_what_was_counted_is_told(log, new_keys):
    log.append(*((b"k", b"%d" % n) for n in range(10)))
    before = log.batches()[0].header.size
    log.roll()
    result = log.compact(new_keys())
    assert (result.records_before, result.records_after) == (10, 1)
    assert (result.bytes_before, result.bytes_after) == (before, log.batches()[0].header.size)


def test_a_batch_that_nobody_can_read_stays_and_does_not_stop_compaction(log, new_keys):
    log.append((b"a", b"1"))
    poison = build_batch(b"\xff" * 20, 2, base_timestamp=TIME, max_timestamp=TIME, base_offset=1)
    log._write(poison)
    log.append((b"a", b"2"))
    log.roll()
    result = log.compact(new_keys())
    assert result.unreadable_batches == 1
    data = (log.directory / "00000000000000000000.log").read_bytes()
    assert data.startswith(poison)
    assert read_header(data, len(poison)).base_offset == 3


def test_a_batch_whose_records_pretend_to_lie_beyond_it_is_not_believed(log, new_keys):
    log.append((b"a", b"1"))
    liar = build_batch(
        b"\x12\x00\x00\xc8\x01\x02a\x02x\x00", 1, base_timestamp=TIME, max_timestamp=TIME, base_offset=1
    )
    log._write(liar)
    log.append((b"a", b"2"))
    log.roll()
    assert log.compact(new_keys()).unreadable_batches == 1
    assert log.batches()[0].data == liar
    assert log.contents()[-1] == (2, b"a", b"2")


@pytest.mark.parametrize("damage", ["checksum", "torn"])
def test_a_damaged_segment_is_an_error_and_no_file_is_left(log, new_keys, damage):
    for n in range(3):
        log.append((b"a", b"%d" % n))
        log.roll()
    path = log.directory / "00000000000000000002.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data if damage == "checksum" else data[:-5])
    before = names(log)
    with pytest.raises(CorruptBatch):
        log.compact(new_keys(), segment_bytes=1, first_dirty=3)
    assert names(log) == before


def test_segments_are_read_in_pieces(log):
    for n in range(50):
        log.append((b"a", b"%d" % n * n * 10))
    path = log.directory / "00000000000000000000.log"
    read = [bytes(batch) for _, batch in read_batches(path, Throttle(None), chunk_bytes=200)]
    assert read == [batch.data for batch in log.batches()]


def test_a_throttle_waits_until_the_bytes_are_within_the_rate():
    clock = [0.0]
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        clock[0] += seconds

    throttle = Throttle(1000, lambda: clock[0], sleep)
    throttle.spend(500)
    clock[0] += 2.0
    throttle.spend(1000)
    throttle.spend(2000)
    assert waits == [0.5, 1.0]


def test_bytes_read_and_written_count_against_the_rate(log, monkeypatch):
    spent = []
    monkeypatch.setattr(Throttle, "spend", lambda _, count: spent.append(count))
    log.append((b"a", b"1"))
    log.append((b"a", b"2"))
    log.roll()
    result = log.compact()
    assert sum(spent) == 2 * result.bytes_before + result.bytes_after


def test_a_large_log_is_compacted_with_the_table_and_a_small_one_with_the_dict(log, monkeypatch):
    used = []
    for kind in (KeyDict, KeyTable):
        monkeypatch.setattr(
            kind, "note", lambda self, *rest, _note=kind.note: used.append(type(self)) or _note(self, *rest)
        )
    log.append((b"a", b"small"))
    log.roll()
    log.compact()
    log.append((b"a", b"x" * SMALL_BYTES))
    log.roll()
    log.compact()
    assert used == [KeyDict, KeyTable]


def test_a_request_and_a_result_survive_the_way_to_another_process(log, new_keys):
    log.begin(7)
    log.append((b"a", b"1"), producer=7)
    log.finish(7, commit=False)
    log.append((b"b", b"1"))
    log.roll()
    request = log.request(io_bytes_per_s=10**9)
    assert type(request).from_json(request.to_json()) == request
    result = compact(request, new_keys())
    assert result.groups
    assert type(result).from_json(result.to_json()) == result


def test_a_key_table_counts_its_keys_and_not_their_updates():
    keys = KeyTable(16 * 24, 1000)
    log_keys = [b"%d" % (n % 12) for n in range(100)]
    section = encode_records([NewRecord(key, b"v", TIME) for key in log_keys], TIME)
    columns = keys.walk(section, 100)
    assert keys.note(section, columns, 1000, 0)
    assert keys.latest(section, columns).tolist() == [
        1000 + 96 + n % 12 - (12 if n % 12 > 3 else 0) for n in range(100)
    ]


def test_both_kinds_of_keys_move_timestamps_alike():
    records = [NewRecord(b"k", b"v" * n, TIME + 10**n, (("h", b"x"),)) for n in range(12)]
    section = encode_records(records, TIME)
    for shift in (0, 1, -(2**40), 2**62, -(2**63)):
        moved = [
            keys.restamp(section, keys.walk(section, 12), shift) for keys in (KeyDict(9), KeyTable(999, 9))
        ]
        assert moved[0] == moved[1]
    assert moved[0] != section
