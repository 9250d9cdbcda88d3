"""The contract of `headrace.storage.log.Log`: what it takes, what it refuses, and what readers get.

Every test runs with each kind of log. Settings of segments and indexes make the one on disk small enough to
have several; the one in memory does not look at them.
"""

from __future__ import annotations

import pytest

from headrace.protocol.batch import (
    CONTROL,
    COPY_STEP_BYTES,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    build_batch,
    read_header,
)
from headrace.protocol.compression import CODECS
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import NewRecord, decode_batch, encode_records
from headrace.storage.config import MEMORY_BYTES, TopicConfig
from headrace.storage.errors import (
    InvalidRecord,
    InvalidTimestamp,
    OffsetOutOfRange,
    RecordTooLarge,
    StorageError,
)
from headrace.storage.memory_log import MemoryLog
from headrace.storage.producers import OutOfOrderSequence, StaleProducerEpoch
from tests.storage.batches import (
    NOW,
    Writer,
    batch,
    filler,
    find_latest_time,
    find_time,
    open_log,
    read_records,
    read_values,
)

HOUR = 3_600_000


@pytest.fixture(params=["disk", "memory"])
def new_log(request, tmp_path):
    """Makes a log with the settings that a test gives it."""

    def make(**settings):
        if request.param == "disk":
            return open_log(tmp_path, **settings)
        return MemoryLog(
            TopicConfig(headrace_storage="memory", **({"retention_bytes": MEMORY_BYTES} | settings))
        )

    return make


@pytest.fixture
def log(new_log):
    return new_log(max_message_bytes=1000)


@pytest.mark.parametrize("ending", ["append", "discard_staged"])
def test_a_batch_that_was_staged_in_steps_is_stored_if_it_is_appended(new_log, ending):
    value = b"L" * (3 * COPY_STEP_BYTES)
    log = new_log(max_message_bytes=2 * len(value))
    log.append(batch(b"before"), NOW)
    large = batch(value)
    assert len(list(log.stage(large))) == 4
    if ending == "append":
        log.append(large, NOW)
    log.discard_staged()
    log.append(batch(b"after"), NOW)
    stored = [value] if ending == "append" else []
    assert read_values(log) == [b"before", *stored, b"after"]


def test_a_batch_that_comes_between_the_steps_is_stored_before_the_staged_one(new_log):
    value = b"L" * (3 * COPY_STEP_BYTES)
    log = new_log(max_message_bytes=2 * len(value))
    large = batch(value)
    steps = log.stage(large)
    next(steps)
    log.append(batch(b"between"), NOW)
    list(steps)
    log.append(large, NOW)
    assert read_values(log) == [b"between", value]


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


def test_with_log_append_time_records_have_the_brokers_time(new_log):
    log = new_log(message_timestamp_type="LogAppendTime")
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
    with pytest.raises(CorruptBatch, match="record batch of"):
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
        (raw(producer_id=1), "without a sequence"),
        (raw(attributes=5), "codec 5"),
        (raw(attributes=7), "use none, gzip, snappy, lz4, zstd"),
    ],
)
def test_a_batch_that_no_client_may_write_is_invalid(log, sent, reason):
    with pytest.raises(InvalidRecord, match=reason):
        log.append(sent, NOW)
    assert log.end_offset == 0


@pytest.mark.parametrize("time_ms", [NOW + HOUR + 1, NOW - 2 * HOUR - 1])
def test_a_time_outside_what_the_topic_accepts_is_refused(new_log, time_ms):
    log = new_log(message_timestamp_before_max_ms=2 * HOUR)
    with pytest.raises(InvalidTimestamp, match=str(time_ms)):
        log.append(batch(b"v", time_ms=time_ms), NOW)


@pytest.mark.parametrize("time_ms", [NOW + HOUR, NOW - 2 * HOUR, -1])
def test_a_time_at_the_edge_of_what_the_topic_accepts_is_taken(new_log, time_ms):
    log = new_log(message_timestamp_before_max_ms=2 * HOUR)
    log.append(batch(b"v", time_ms=time_ms), NOW)
    assert log.end_offset == 1


def test_with_log_append_time_the_producers_clock_does_not_matter(new_log):
    log = new_log(message_timestamp_type="LogAppendTime", message_timestamp_before_max_ms=0)
    log.append(batch(b"v", time_ms=NOW + 1000 * HOUR), NOW)
    assert log.end_offset == 1


# Reading


def test_a_fetch_brings_the_batch_that_holds_the_offset(log):
    log.append(batch(b"a", b"b", b"c"), NOW)
    found = log.read(2, 1000, 3, at_least_one=True)
    assert found is not None
    assert read_header(found.read()).base_offset == 0


def test_a_fetch_brings_no_more_than_its_limit(new_log):
    log = new_log(index_interval_bytes=500)
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
    with pytest.raises(OffsetOutOfRange, match="after the end 3"):
        log.read(4, 1000, 3, at_least_one=True)
    with pytest.raises(OffsetOutOfRange, match="before the start 1"):
        log.read(0, 1000, 3, at_least_one=True)


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


def test_a_time_finds_the_first_record_that_is_not_older(new_log):
    log = new_log(segment_bytes=1024, index_interval_bytes=300)
    for number in range(40):
        log.append(batch(b"." * 100, b"." * 10, time_ms=(NOW + 10 * number, NOW + 10 * number + 5)), NOW)
    assert find_time(log, 0) == (0, NOW)
    assert find_time(log, NOW + 201) == (41, NOW + 205)
    assert find_time(log, NOW + 395) == (79, NOW + 395)
    assert find_time(log, NOW + 396) is None
    assert find_latest_time(log) == (79, NOW + 395)


@pytest.mark.parametrize("codec", CODECS)
def test_times_are_found_inside_compressed_batches(log, codec):
    log.append(batch(b"a", b"b", b"c", time_ms=(NOW, NOW + 2, NOW + 4), codec=codec), NOW)
    assert find_time(log, NOW + 1) == (1, NOW + 2)
    assert find_latest_time(log) == (2, NOW + 4)


def test_times_out_of_order_are_found_at_their_first_offset(new_log):
    log = new_log(segment_bytes=1024, index_interval_bytes=0)
    times = [50, 10, 90, 20, 90, 30, 70, 60] * 3
    for time_ms in times:
        log.append(batch(b"." * 100, time_ms=NOW + time_ms), NOW)
    for wanted in range(95):
        expected = next((n for n, time_ms in enumerate(times) if time_ms >= wanted), None)
        found = find_time(log, NOW + wanted)
        assert (None if found is None else found.offset) == expected
    assert find_latest_time(log) == (2, NOW + 90)


def test_times_before_the_start_of_the_log_are_not_found(log):
    for time_ms in (90, 10, 40, 30):
        log.append(batch(b"v", time_ms=NOW + time_ms), NOW)
    log.move_start(1)
    assert find_time(log, NOW) == (1, NOW + 10)
    assert find_time(log, NOW + 50) is None
    assert find_latest_time(log) == (2, NOW + 40)


def test_a_batch_whose_records_nobody_can_read_is_found_by_its_header(log):
    nonsense = build_batch(b"\xff" * 20, 2, base_timestamp=NOW, max_timestamp=NOW + 9)
    log.append(batch(b"good", time_ms=NOW - 5), NOW)
    log.append(memoryview(nonsense), NOW)
    assert find_time(log, NOW) == (1, NOW + 9)
    assert find_latest_time(log) == (1, NOW + 9)


def test_the_end_of_a_transaction_is_no_record_that_a_time_finds(log):
    for number, time_ms in enumerate((10, 20, 30)):
        write(log, b"old", number, time_ms=NOW - 1000 + time_ms)
        log.append_marker(7, 0, committed=True, now_ms=NOW)
    assert find_time(log, NOW - 1000) == (0, NOW - 990)
    assert find_time(log, NOW - 975) == (4, NOW - 970)
    assert find_time(log, NOW - 900) is None
    assert find_latest_time(log) == (4, NOW - 970)


def test_the_latest_time_is_looked_for_among_what_is_left(new_log):
    log = new_log(index_interval_bytes=0)
    log.append(batch(b"a", b"b", b"c", time_ms=(NOW + 90, NOW + 10, NOW + 20)), NOW)
    log.append(batch(b"d", b"e", time_ms=(NOW + 30, NOW + 15)), NOW)
    log.move_start(1)
    assert find_latest_time(log) == (3, NOW + 30)


def test_an_empty_log_has_no_times(log):
    assert find_time(log, 0) is None
    assert find_latest_time(log) is None


# The start of the log


@pytest.mark.parametrize("offset", [0, 4])
def test_the_start_cannot_move_back_or_beyond_the_end(log, offset):
    for value in (b"a", b"b", b"c"):
        log.append(batch(value), NOW)
    log.move_start(2)
    with pytest.raises(OffsetOutOfRange, match=f"{offset} is not between 2 and 3"):
        log.move_start(offset)


# Who has the last word


class Refused(StorageError):
    """What the test's admission raises."""


def refuse(header):
    raise Refused(f"{header.count} records")


def test_a_batch_that_is_not_admitted_leaves_no_trace(log):
    with pytest.raises(Refused, match="2 records"):
        log.append(batch(b"a", b"b", writer=Writer(7)), NOW, refuse)
    assert (log.end_offset, log.size, len(log.producers)) == (0, 0, 0)
    assert log.append(batch(b"a", writer=Writer(7)), NOW).base_offset == 0


def test_a_repeated_batch_needs_no_admission(log):
    log.append(batch(b"a", writer=Writer(7)), NOW)
    assert log.append(batch(b"a", writer=Writer(7)), NOW, refuse).is_duplicate


def test_only_a_good_batch_is_asked_about(log):
    sent = batch(b"value")
    sent[-3] ^= 1
    with pytest.raises(CorruptBatch):
        log.append(sent, NOW, refuse)


# Producers


def test_a_gap_in_the_sequence_of_a_producer_is_refused(log):
    log.append(batch(b"a", writer=Writer(7)), NOW)
    with pytest.raises(OutOfOrderSequence, match="wrote sequence 5 instead of 1"):
        log.append(batch(b"b", writer=Writer(7, sequence=5)), NOW)
    assert read_values(log) == [b"a"]


def test_a_producer_of_an_old_epoch_is_fenced_off(log):
    log.append(batch(b"new", writer=Writer(7, epoch=2)), NOW)
    with pytest.raises(StaleProducerEpoch):
        log.append(batch(b"old", writer=Writer(7, epoch=1)), NOW)
    with pytest.raises(StaleProducerEpoch):
        log.append_marker(7, 1, committed=True, now_ms=NOW)
    assert read_values(log) == [b"new"]


def test_a_client_does_not_stamp_the_time_of_the_append(log):
    with pytest.raises(InvalidTimestamp, match="only the broker"):
        log.append(raw(attributes=LOG_APPEND_TIME), NOW)


# The broker's own


def test_records_of_the_broker_itself_are_kept_like_any_other(log):
    records = [NewRecord(b"k", b"own", NOW)]
    assert log.append_internal(encode_records(records, NOW), 1, NOW) == 0
    assert log.append_internal(encode_records(records, NOW), 1, NOW, (7, 0)) == 1
    assert log.last_stable_offset == 1
    log.append_marker(7, 0, committed=True, now_ms=NOW)
    assert read_values(log, committed=True) == [b"own", b"own"]


def test_batches_are_read_one_by_one_from_any_offset(log):
    for values in ((b"a", b"b"), (b"c",), (b"d",)):
        log.append(batch(*values), NOW)
    assert [[record.value for record in decode_batch(each)] for each in log.batches(1)] == [
        [b"a", b"b"],
        [b"c"],
        [b"d"],
    ]
    header = log.next_batch(2)
    assert header is not None
    assert (header.base_offset, header.count) == (2, 1)
    assert log.next_batch(4) is None


# How much there is


def test_bytes_are_counted_from_the_batch_that_holds_an_offset(new_log):
    log = new_log(segment_bytes=1024, index_interval_bytes=300)
    sizes = [len(each) for each in map(filler, range(40)) if log.append(each, NOW)]
    for offset in range(41):
        assert log.size_from(offset) == sum(sizes[offset:])
    assert log.size == log.written_bytes == sum(sizes)


def test_the_first_offset_is_found_from_which_on_a_number_of_bytes_is_enough(new_log):
    log = new_log(segment_bytes=1024, index_interval_bytes=300)
    for number in range(40):
        log.append(filler(number), NOW)
    for size in range(0, log.size + 200, 37):
        offset = log.offset_within(size)
        assert log.size_from(offset) <= size
        assert offset == 0 or log.size_from(offset - 1) > size
    log.move_start(30)
    assert log.offset_within(log.written_bytes) == 30


# Retention


def test_what_is_older_than_the_limit_goes_and_offsets_stay(new_log):
    log = new_log(segment_ms=1, retention_ms=2 * HOUR)
    for hour in range(6):
        log.append(batch(b"%d" % hour, time_ms=NOW + hour * HOUR), NOW + hour * HOUR)
    freed = log.apply_retention(NOW + 5 * HOUR)
    assert [(record.offset, record.value) for record in read_records(log)] == [
        (3, b"3"),
        (4, b"4"),
        (5, b"5"),
    ]
    assert freed == log.size
    log.apply_retention(NOW + 100 * HOUR)
    assert (log.start_offset, log.end_offset, log.size) == (6, 6, 0)
    assert log.append(batch(b"new"), NOW).base_offset == 6


def test_what_is_more_than_the_limit_goes_the_oldest_first(new_log):
    log = new_log(segment_bytes=1024, retention_bytes=4096)
    for number in range(100):
        log.append(filler(number), NOW)
    log.apply_retention(NOW)
    assert 4096 - 1024 < log.size <= 4096 + 1024
    assert [record.offset for record in read_records(log)] == list(range(log.start_offset, 100))


def test_aborted_transactions_go_with_their_records(new_log):
    log = new_log(segment_ms=1, retention_ms=HOUR)
    write(log, b"void", 0)
    log.append_marker(7, 0, committed=False, now_ms=NOW)
    log.append(batch(b"later", time_ms=NOW + 5 * HOUR), NOW + 5 * HOUR)
    assert len(log.aborted) == 1
    log.apply_retention(NOW + 5 * HOUR)
    assert len(log.aborted) == 0
    assert read_values(log, committed=True) == [b"later"]


def test_a_reader_goes_on_with_what_it_was_given_after_the_log_has_let_go_of_it(new_log):
    log = new_log(segment_bytes=1024)
    for number in range(20):
        log.append(filler(number), NOW)
    held = log.read(0, 2**20, 20, at_least_one=True)
    assert held is not None
    before = held.read()
    log.move_start(20)
    assert len(before) == held.size
    assert held.read() == before


# Safety


def test_after_a_sync_everything_is_seen(log):
    log.append(batch(b"a"), NOW)
    log.synced(log.sync())
    assert log.high_watermark == log.end_offset == 1
    assert read_values(log) == [b"a"]
