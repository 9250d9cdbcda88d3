"""Compaction of segments and files: joined, indexed, damaged, too large for the keys, and in pieces."""

from itertools import pairwise

import pytest

from headrace.protocol.batch import build_batch, read_header
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import NewRecord, encode_records
from headrace.storage.compaction.cleaner import SMALL_BYTES, Throttle, compact, read_batches
from headrace.storage.compaction.hash_offset_map import HashOffsetMap
from headrace.storage.compaction.offset_map import DictOffsetMap
from headrace.storage.errors import StorageError
from headrace.storage.index import OffsetIndex, TimeIndex
from tests.storage.compacted_log import TIME, CompactedLog


@pytest.fixture
def log(tmp_path):
    return CompactedLog(tmp_path)


@pytest.fixture(params=["dict", "table"])
def new_keys(request):
    return lambda: DictOffsetMap(1000) if request.param == "dict" else HashOffsetMap(2**20, 1000)


def names(log):
    return {path.name for path in log.directory.iterdir()}


def test_segments_that_lose_nothing_are_left_alone(log, new_keys):
    log.append((b"a", b"1"))
    log.roll()
    before = names(log)
    result = log.compact(new_keys())
    assert result.groups == ()
    assert result.first_dirty == 1
    assert names(log) == before


@pytest.mark.parametrize(
    "keys", [lambda: DictOffsetMap(10), lambda: HashOffsetMap(16 * 24, 1000)], ids=["dict", "table"]
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
        log.compact(DictOffsetMap(10))


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
    log.write(poison)
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
    log.write(liar)
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
    for kind in (DictOffsetMap, HashOffsetMap):
        monkeypatch.setattr(
            kind, "add", lambda self, *rest, _add=kind.add: used.append(type(self)) or _add(self, *rest)
        )
    log.append((b"a", b"small"))
    log.roll()
    log.compact()
    log.append((b"a", b"x" * SMALL_BYTES))
    log.roll()
    log.compact()
    assert used == [DictOffsetMap, HashOffsetMap]


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
    keys = HashOffsetMap(16 * 24, 1000)
    log_keys = [b"%d" % (n % 12) for n in range(100)]
    section = encode_records([NewRecord(key, b"v", TIME) for key in log_keys], TIME)
    columns = keys.walk(section, 100)
    assert keys.add(section, columns, 1000, 0)
    assert keys.latest(section, columns).tolist() == [
        1000 + 96 + n % 12 - (12 if n % 12 > 3 else 0) for n in range(100)
    ]


def test_both_kinds_of_keys_move_timestamps_alike():
    records = [NewRecord(b"k", b"v" * n, TIME + 10**n, (("h", b"x"),)) for n in range(12)]
    section = encode_records(records, TIME)
    for shift in (0, 1, -(2**40), 2**62, -(2**63)):
        moved = [
            keys.restamp(section, keys.walk(section, 12), shift)
            for keys in (DictOffsetMap(9), HashOffsetMap(999, 9))
        ]
        assert moved[0] == moved[1]
    assert moved[0] != section
