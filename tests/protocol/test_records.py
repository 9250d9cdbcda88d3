"""Records inside a batch: there and back, and nothing but `CorruptBatch` for bytes that lie."""

import contextlib

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.batch import LOG_APPEND_TIME, build_batch, check_batch, read_header
from headrace.protocol.compression import CODECS
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import (
    NewRecord,
    Record,
    decode_batch,
    decode_varint,
    encode_batch,
    encode_records,
    encode_varint,
    records_without_key,
)

TIME = 1_700_000_000_000

blobs = st.none() | st.binary(max_size=80)
new_records = st.builds(
    NewRecord,
    key=blobs,
    value=blobs,
    timestamp=st.integers(0, 2**62),
    headers=st.lists(st.tuples(st.text(max_size=8), blobs), max_size=3).map(tuple),
)


def batch_of(section: bytes, count: int) -> bytearray:
    return build_batch(section, count, base_timestamp=TIME, max_timestamp=TIME)


def section_of(*bodies: bytes) -> bytes:
    return b"".join(encode_varint(len(body)) + body for body in bodies)


@given(st.lists(new_records, min_size=1, max_size=5), st.sampled_from(sorted(CODECS)), st.integers(0, 2**60))
def test_records_come_back_with_their_offsets(records, codec, base_offset):
    batch = encode_batch(records, codec=codec, base_offset=base_offset)
    check_batch(memoryview(batch), read_header(batch))
    assert decode_batch(batch) == [
        Record(base_offset + index, record.timestamp, record.key, record.value, record.headers)
        for index, record in enumerate(records)
    ]


def test_a_batch_of_ours_is_read_by_aiokafka():
    batch = encode_batch([NewRecord(b"k", b"v", TIME, (("h", b"1"),)), NewRecord(None, None, TIME + 5)])
    theirs = DefaultRecordBatch(bytes(batch))
    assert theirs.validate_crc()
    assert [(r.offset, r.timestamp, r.key, r.value, r.headers) for r in theirs] == [
        (0, TIME, b"k", b"v", [("h", b"1")]),
        (1, TIME + 5, None, None, []),
    ]


def test_a_batch_of_aiokafka_is_read():
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 100_000)
    for offset in range(200):
        builder.append(offset, TIME - offset, b"key", b"x" * offset, [("h", None)])
    assert decode_batch(builder.build()) == [
        Record(offset, TIME - offset, b"key", b"x" * offset, (("h", None),)) for offset in range(200)
    ]


def test_records_of_a_topic_with_append_time_have_the_time_of_their_batch():
    batch = encode_batch(
        [NewRecord(b"k", b"v", TIME), NewRecord(b"k", b"v", TIME + 9)], attributes=LOG_APPEND_TIME
    )
    assert [record.timestamp for record in decode_batch(batch)] == [TIME + 9, TIME + 9]


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_varint_comes_back(value):
    data = encode_varint(value)
    assert decode_varint(data, 0, 64) == (value, len(data))


@pytest.mark.parametrize("data", [b"\xff" * 5 + b"\x00", b"\xff\xff\xff\xff\x1f", b"\x80" * 11])
def test_a_varint_of_more_bits_than_its_number_is_refused(data):
    with pytest.raises(CorruptBatch, match="more than 32 bits"):
        decode_varint(data, 0)


def test_a_varint_that_is_cut_off_is_refused():
    with pytest.raises(CorruptBatch, match="ends within"):
        decode_varint(b"\x80\x80", 0)


@pytest.mark.parametrize("count", [-1, 2, 2**31 - 1])
def test_a_count_that_the_bytes_cannot_hold_is_refused(count):
    batch = batch_of(encode_records([NewRecord(b"k", b"v", TIME)], TIME), count)
    with pytest.raises(CorruptBatch, match="a batch has"):
        decode_batch(batch)
    with pytest.raises(CorruptBatch, match="a batch has"):
        records_without_key(batch)


BAD_BODIES = {
    "a key longer than its record": b"\x00\x00\x00\x14ab\x01\x00",
    "a key of a negative length": b"\x00\x00\x00\x03\x01\x01\x00",
    "a value longer than its record": b"\x00\x00\x00\x01\x14\x00\x00",
    "headers that are not there": b"\x00\x00\x00\x01\x01\x08\x00",
    "fewer headers than none": b"\x00\x00\x00\x01\x01\x01\x00",
    "a header without a name": b"\x00\x00\x00\x01\x01\x02\x01\x01",
    "bytes behind its headers": b"\x00\x00\x00\x01\x01\x00\x00",
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=BAD_BODIES)
def test_a_record_is_refused_with(body):
    with pytest.raises(CorruptBatch):
        decode_batch(batch_of(section_of(body), 1))


def test_a_header_name_that_is_not_utf_8_is_replaced_as_in_the_java_client():
    (record,) = decode_batch(batch_of(section_of(b"\x00\x00\x00\x01\x01\x02\x02\xff\x01"), 1))
    assert record.headers == (("\N{REPLACEMENT CHARACTER}", None),)


def test_records_that_do_not_count_upwards_are_refused():
    body = b"\x00\x00\x00\x02k\x01\x00"
    with pytest.raises(CorruptBatch, match="offset delta"):
        decode_batch(batch_of(section_of(body, body), 2))


def test_bytes_behind_the_last_record_are_refused():
    batch = batch_of(encode_records([NewRecord(b"k", b"v", TIME)], TIME) + b"\x00", 1)
    with pytest.raises(CorruptBatch, match="follow"):
        decode_batch(batch)
    with pytest.raises(CorruptBatch, match="follow"):
        records_without_key(batch)


@pytest.mark.parametrize("length", [-1, 0, 5, 1000])
def test_a_record_shorter_or_longer_than_possible_is_refused(length):
    batch = batch_of(encode_varint(length) + bytes(20), 1)
    with pytest.raises(CorruptBatch, match="are left"):
        decode_batch(batch)
    with pytest.raises(CorruptBatch, match="are left"):
        records_without_key(batch)


@given(st.binary(max_size=120), st.integers(-1, 20))
def test_arbitrary_bytes_give_records_or_a_corrupt_batch(section, count):
    batch = batch_of(section, count)
    for read in (decode_batch, records_without_key):
        with contextlib.suppress(CorruptBatch):
            read(batch)


@pytest.mark.parametrize("codec", sorted(CODECS))
def test_a_record_without_key_is_found(codec):
    records = [NewRecord(b"k" * n, b"v" * 70, TIME + 100 * n) for n in range(100)]
    assert records_without_key(encode_batch(records, codec=codec)) == []
    records[70:72] = [NewRecord(None, b"v", TIME), NewRecord(None, b"v", TIME)]
    assert records_without_key(encode_batch(records, codec=codec)) == [70]
    assert records_without_key(encode_batch(records, codec=codec), most=9) == [70, 71]


def test_records_that_are_not_numbered_from_0_are_refused_where_keys_are_required():
    with pytest.raises(CorruptBatch, match="offset delta 3"):
        records_without_key(batch_of(section_of(b"\x00\x00\x06\x02k\x01\x00"), 1))


def test_a_key_longer_than_its_record_is_refused_where_keys_are_required():
    with pytest.raises(CorruptBatch, match="key of 10 bytes"):
        records_without_key(batch_of(section_of(BAD_BODIES["a key longer than its record"]), 1))
