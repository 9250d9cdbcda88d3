"""The log of one partition: what it takes, what it refuses, and what readers get."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace.protocol.batch import CONTROL, HEADER_BYTES, TRANSACTIONAL, build_batch, read_header
from headrace.protocol.compression import CODECS
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import NewRecord, encode_batch, encode_records
from headrace.storage.errors import (
    DiskFault,
    InvalidRecord,
    InvalidTimestamp,
    OffsetOutOfRange,
    RecordTooLarge,
)
from headrace.storage.partition import MAX_OFFSET_SPAN
from tests.storage.batches import NOW, Writer, batch, filler, open_log, read_records, read_values

HOUR = 3_600_000


@pytest.fixture
def log(tmp_path):
    return open_log(tmp_path, max_message_bytes=1000)


def raw(attributes=0, count=1, delta=None, producer_id=-1):
    """A batch whose header says what the test wants."""
    records = encode_records([NewRecord(b"k", b"v", NOW)], NOW)
    return memoryview(
        build_batch(
            records,
            count,
            base_timestamp=NOW,
            max_timestamp=NOW,
            attributes=attributes,
            last_offset_delta=delta,
            producer_id=producer_id,
        )
    )


# What it takes


def test_offsets_count_records_and_not_batches(log):
    assert [log.append(each, NOW).base_offset for each in (batch(b"a", b"b"), batch(b"c"), batch(b"d"))] == [
        0,
        2,
        3,
    ]
    assert [(record.offset, record.value) for record in read_records(log)] == [
        (0, b"a"),
        (1, b"b"),
        (2, b"c"),
        (3, b"d"),
    ]
    assert log.end_offset == log.high_watermark == log.last_stable_offset == 4


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_of_any_codec_is_stored_as_it_came(log, codec):
    sent = bytes(batch(b"v" * 50, b"w" * 50, codec=codec))
    log.append(memoryview(bytearray(sent)), NOW)
    (stored,) = log.batches(0)
    assert stored[HEADER_BYTES:] == sent[HEADER_BYTES:]
    assert read_values(log) == [b"v" * 50, b"w" * 50]


def test_a_repeated_batch_is_answered_with_the_place_of_its_first_copy(log):
    log.append(batch(b"other"), NOW)
    first = log.append(batch(b"a", writer=Writer(7)), NOW)
    again = log.append(batch(b"a", writer=Writer(7)), NOW + 1)
    assert (first.base_offset, again.base_offset, again.is_duplicate) == (1, 1, True)
    assert read_values(log) == [b"other", b"a"]


def test_with_log_append_time_records_have_the_brokers_time(tmp_path):
    log = open_log(tmp_path, message_timestamp_type="LogAppendTime")
    stored = log.append(batch(b"a", b"b", time_ms=(5, 9)), NOW)
    assert stored.append_time_ms == NOW
    assert [record.timestamp for record in read_records(log)] == [NOW, NOW]


def test_with_create_time_records_keep_their_producers_time(log):
    stored = log.append(batch(b"a", b"b", time_ms=(NOW - 5, NOW - 9)), NOW)
    assert stored.append_time_ms == -1
    assert [record.timestamp for record in read_records(log)] == [NOW - 5, NOW - 9]


# What it refuses, with nothing stored


def test_a_batch_with_a_wrong_checksum_is_corrupt(log):
    sent = batch(b"value")
    sent[-3] ^= 1
    with pytest.raises(CorruptBatch, match="checksum"):
        log.append(sent, NOW)
    assert log.end_offset == log.size == 0


@pytest.mark.parametrize("change", [-1, 1])
def test_a_batch_that_is_shorter_or_longer_than_it_says_is_corrupt(log, change):
    sent = bytes(batch(b"value"))
    torn = sent[:change] if change < 0 else sent + b"!"
    with pytest.raises(CorruptBatch, match="says"):
        log.append(memoryview(bytearray(torn)), NOW)


def test_less_than_a_header_is_no_batch(log):
    with pytest.raises(InvalidRecord, match="header alone takes 61"):
        log.append(batch(b"v")[: HEADER_BYTES - 1], NOW)


def test_a_batch_of_another_format_is_corrupt(log):
    sent = batch(b"value")
    sent[16] = 1
    with pytest.raises(CorruptBatch, match="format 1"):
        log.append(sent, NOW)


def test_a_batch_above_the_topics_limit_is_too_large(log):
    with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes is 1000"):
        log.append(batch(b"v" * 1000), NOW)
    assert log.end_offset == 0


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (raw(attributes=TRANSACTIONAL | CONTROL, producer_id=1), "only the broker may"),
        (raw(attributes=TRANSACTIONAL), "without a producer id"),
        (raw(count=0, delta=0), "0 records that spans 1"),
        (raw(count=1, delta=5), "1 records that spans 6"),
        (raw(attributes=5), "codec 5"),
        (raw(attributes=7), "use none, gzip, snappy, lz4, zstd"),
    ],
)
def test_a_batch_that_no_client_may_write_is_invalid(log, sent, reason):
    with pytest.raises(InvalidRecord, match=reason):
        log.append(sent, NOW)
    assert log.end_offset == 0


@pytest.mark.parametrize("time_ms", [NOW + HOUR + 1, NOW - 2 * HOUR - 1])
def test_a_time_outside_what_the_topic_accepts_is_refused(tmp_path, time_ms):
    log = open_log(tmp_path, message_timestamp_before_max_ms=2 * HOUR)
    with pytest.raises(InvalidTimestamp, match=str(time_ms)):
        log.append(batch(b"v", time_ms=time_ms), NOW)


@pytest.mark.parametrize("time_ms", [NOW + HOUR, NOW - 2 * HOUR, -1])
def test_a_time_at_the_edge_of_what_the_topic_accepts_is_taken(tmp_path, time_ms):
    log = open_log(tmp_path, message_timestamp_before_max_ms=2 * HOUR)
    log.append(batch(b"v", time_ms=time_ms), NOW)
    assert log.end_offset == 1


def test_with_log_append_time_the_producers_clock_does_not_matter(tmp_path):
    log = open_log(tmp_path, message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=0)
    log.append(batch(b"v", time_ms=NOW + 1000 * HOUR), NOW)
    assert log.end_offset == 1


def test_a_compacted_topic_refuses_a_record_without_a_key_and_says_which(tmp_path):
    log = open_log(tmp_path, cleanup_policy=frozenset({"compact"}))
    records = [NewRecord(b"k", b"1", NOW), NewRecord(None, b"2", NOW)]
    with pytest.raises(InvalidRecord, match="record 1 has no key"):
        log.append(memoryview(encode_batch(records)), NOW)
    assert log.end_offset == 0


def test_a_segment_that_cannot_be_made_is_a_fault_of_the_disk(tmp_path):
    log = open_log(tmp_path / "log", segment_bytes=1024)
    log.append(batch(b"v" * 1000), NOW)
    # A folder has taken the name of the next segment: the open fails as it does for lack of inodes.
    (tmp_path / "log" / f"{1:020d}.log").mkdir()
    with pytest.raises(DiskFault, match="could not be made"):
        log.append(batch(b"w" * 1000), NOW)
    (tmp_path / "log" / f"{1:020d}.log").rmdir()
    log.append(batch(b"x" * 1000), NOW)
    assert read_values(log) == [b"v" * 1000, b"x" * 1000]


# Segments


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


def test_rolling_an_empty_segment_changes_nothing(log):
    log.roll()
    log.append(batch(b"a"), NOW)
    log.roll()
    log.roll()
    assert [segment.base_offset for segment in log.segments] == [0, 1]


# Reading


def test_a_fetch_brings_the_batch_that_holds_the_offset(log):
    log.append(batch(b"a", b"b", b"c"), NOW)
    found = log.read(2, 1000, 3, at_least_one=True)
    assert found is not None
    assert read_header(os.pread(found.file.fd, found.size, found.position)).base_offset == 0


def test_a_fetch_brings_no_more_than_its_limit(tmp_path):
    log = open_log(tmp_path, index_interval_bytes=500)
    for number in range(50):
        log.append(filler(number), NOW)
    for limit in (200, 1000, 3000):
        found = log.read(7, limit, 50, at_least_one=False)
        assert found is not None
        assert 0 < found.size <= limit
    assert len(read_records(log, max_bytes=600)) == 50


def test_the_first_batch_comes_even_if_it_is_larger_than_the_limit(log):
    log.append(batch(b"v" * 500), NOW)
    assert log.read(0, 100, 1, at_least_one=False) is None
    found = log.read(0, 100, 1, at_least_one=True)
    assert found is not None
    assert found.size == log.size


def test_an_offset_outside_the_log_is_out_of_range(log):
    for value in (b"a", b"b", b"c"):
        log.append(batch(value), NOW)
    log.move_start(1)
    assert log.read(3, 1000, 3, at_least_one=True) is None
    with pytest.raises(OffsetOutOfRange, match="beyond the end 3"):
        log.read(4, 1000, 3, at_least_one=True)
    with pytest.raises(OffsetOutOfRange, match="before the start 1"):
        log.read(0, 1000, 3, at_least_one=True)


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
        assert syncing.result(30) > 0


# Transactions


def write(log, value, sequence, producer_id=7, time_ms=NOW):
    writer = Writer(producer_id, sequence, transactional=True)
    return log.append(batch(value, writer=writer, time_ms=time_ms), NOW)


def test_readers_of_committed_records_stop_before_an_open_transaction(log):
    log.append(batch(b"plain"), NOW)
    write(log, b"open", 0)
    log.append(batch(b"behind"), NOW)
    assert log.last_stable_offset == 1
    assert read_values(log, committed=True) == [b"plain"]
    log.append_marker(7, 0, committed=True, now_ms=NOW)
    assert log.last_stable_offset == 4
    assert read_values(log, committed=True) == [b"plain", b"open", b"behind"]


def test_records_of_an_aborted_transaction_are_not_seen(log):
    write(log, b"void", 0)
    write(log, b"good", 0, producer_id=8)
    marker = log.append_marker(7, 0, committed=False, now_ms=NOW)
    log.append_marker(8, 0, committed=True, now_ms=NOW)
    write(log, b"later", 1)
    log.append_marker(7, 0, committed=True, now_ms=NOW)
    assert read_values(log, committed=True) == [b"good", b"later"]
    (entry,) = log.aborted.between(0, log.end_offset)
    assert (entry.producer_id, entry.first_offset, entry.last_offset) == (7, 0, marker)


def test_the_last_stable_offset_is_never_before_the_start(log):
    write(log, b"open", 0)
    log.append(batch(b"more"), NOW)
    log.move_start(2)
    assert log.last_stable_offset == 2
    with pytest.raises(OffsetOutOfRange):
        log.read(1, 1000, log.last_stable_offset, at_least_one=True)


# Time


def test_a_time_finds_the_first_record_that_is_not_older(tmp_path):
    log = open_log(tmp_path, segment_bytes=1024, index_interval_bytes=300)
    for number in range(40):
        log.append(batch(b"." * 100, b"." * 10, time_ms=(NOW + 10 * number, NOW + 10 * number + 5)), NOW)
    assert log.find_time(0) == (0, NOW)
    assert log.find_time(NOW + 201) == (41, NOW + 205)
    assert log.find_time(NOW + 395) == (79, NOW + 395)
    assert log.find_time(NOW + 396) is None
    assert log.find_latest_time() == (79, NOW + 395)


@pytest.mark.parametrize("codec", CODECS)
def test_times_are_found_inside_compressed_batches(log, codec):
    log.append(batch(b"a", b"b", b"c", time_ms=(NOW, NOW + 2, NOW + 4), codec=codec), NOW)
    assert log.find_time(NOW + 1) == (1, NOW + 2)
    assert log.find_latest_time() == (2, NOW + 4)


def test_times_out_of_order_are_found_at_their_first_offset(tmp_path):
    log = open_log(tmp_path, segment_bytes=1024, index_interval_bytes=0)
    times = [50, 10, 90, 20, 90, 30, 70, 60] * 3
    for time_ms in times:
        log.append(batch(b"." * 100, time_ms=NOW + time_ms), NOW)
    for wanted in range(95):
        expected = next((n for n, time_ms in enumerate(times) if time_ms >= wanted), None)
        found = log.find_time(NOW + wanted)
        assert (None if found is None else found.offset) == expected
    assert log.find_latest_time() == (2, NOW + 90)


def test_times_before_the_start_of_the_log_are_not_found(log):
    for time_ms in (90, 10, 40, 30):
        log.append(batch(b"v", time_ms=NOW + time_ms), NOW)
    log.move_start(1)
    assert log.find_time(NOW) == (1, NOW + 10)
    assert log.find_time(NOW + 50) is None
    assert log.find_latest_time() == (2, NOW + 40)


def test_a_batch_whose_records_nobody_can_read_is_found_by_its_header(log):
    nonsense = build_batch(b"\xff" * 20, 2, base_timestamp=NOW, max_timestamp=NOW + 9)
    log.append(batch(b"good", time_ms=NOW - 5), NOW)
    log.append(memoryview(nonsense), NOW)
    assert log.find_time(NOW) == (1, NOW + 9)
    assert log.find_latest_time() == (1, NOW + 9)


def test_the_end_of_a_transaction_is_no_record_that_a_time_finds(log):
    for number, time_ms in enumerate((10, 20, 30)):
        write(log, b"old", number, time_ms=NOW - 1000 + time_ms)
        log.append_marker(7, 0, committed=True, now_ms=NOW)
    assert log.find_time(NOW - 1000) == (0, NOW - 990)
    assert log.find_time(NOW - 975) == (4, NOW - 970)
    assert log.find_time(NOW - 900) is None
    assert log.find_latest_time() == (4, NOW - 970)


def test_the_latest_time_is_looked_for_among_what_is_left(tmp_path):
    log = open_log(tmp_path, index_interval_bytes=0)
    log.append(batch(b"a", b"b", b"c", time_ms=(NOW + 90, NOW + 10, NOW + 20)), NOW)
    log.append(batch(b"d", b"e", time_ms=(NOW + 30, NOW + 15)), NOW)
    log.move_start(1)
    assert log.find_latest_time() == (3, NOW + 30)


def test_an_empty_log_has_no_times(log):
    assert log.find_time(0) is None
    assert log.find_latest_time() is None


# The start of the log


def test_the_start_moves_to_any_offset_and_segments_before_it_go(tmp_path):
    log = open_log(tmp_path, segment_bytes=1024)
    for number in range(20):
        log.append(filler(number), NOW)
    second = log.segments[1].base_offset
    log.move_start(second + 1)
    assert read_records(log)[0].offset == second + 1
    assert sorted(int(path.stem) for path in tmp_path.glob("*.log")) == [s.base_offset for s in log.segments]
    assert log.segments[0].base_offset == second


@pytest.mark.parametrize("offset", [0, 4])
def test_the_start_cannot_move_back_or_beyond_the_end(log, offset):
    for value in (b"a", b"b", b"c"):
        log.append(batch(value), NOW)
    log.move_start(2)
    with pytest.raises(OffsetOutOfRange, match=f"{offset} is not between 2 and 3"):
        log.move_start(offset)


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
