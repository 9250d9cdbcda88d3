"""Record batches as the log holds them: headers, checksums, and what an append may change."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.records.readers import read_batch

from headrace.protocol.batch import (
    CONTROL,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    SEQUENCE_LIMIT,
    TRANSACTIONAL,
    BatchHeader,
    build_batch,
    check_batch,
    place_batch,
    read_header,
    split_batches,
    stamp_append_time,
)
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import NewRecord, decode_batch, encode_batch

int16 = st.integers(-(2**15), 2**15 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)

headers = st.builds(
    BatchHeader,
    base_offset=int64,
    length=int32,
    leader_epoch=int32,
    magic=st.integers(-128, 127),
    crc=st.integers(0, 2**32 - 1),
    attributes=int16,
    last_offset_delta=int32,
    base_timestamp=int64,
    max_timestamp=int64,
    producer_id=int64,
    producer_epoch=int16,
    base_sequence=int32,
    count=int32,
)

batches = st.builds(
    build_batch,
    st.binary(max_size=100),
    st.integers(1, 100),
    base_timestamp=int64,
    max_timestamp=int64,
    base_offset=st.integers(0, 2**62),
    attributes=st.sampled_from([0, TRANSACTIONAL, TRANSACTIONAL | CONTROL, LOG_APPEND_TIME]),
    producer_id=st.integers(-1, 2**62),
    producer_epoch=st.integers(-1, 2**15 - 1),
    base_sequence=st.integers(-1, 2**31 - 1),
)


@given(headers, st.integers(0, 20))
def test_a_header_comes_back_from_its_bytes(header, position):
    packed = bytes(position) + HEADER.pack(*header)
    assert read_header(packed, position) == header


@given(batches)
def test_what_is_built_is_whole_and_has_a_good_checksum(batch):
    header = read_header(batch)
    assert header.size == len(batch)
    check_batch(memoryview(batch), header)


@given(batches, st.integers(0, 2**62), st.integers(0, 2**31 - 1))
def test_placing_a_batch_changes_its_offset_and_nothing_that_the_checksum_covers(batch, offset, epoch):
    before = read_header(batch)
    place_batch(batch, offset, epoch)
    after = read_header(batch)
    assert after == before._replace(base_offset=offset, leader_epoch=epoch)
    check_batch(memoryview(batch), after)


@given(batches, st.integers(0, 2**62))
def test_a_stamped_batch_has_the_brokers_time_and_a_good_checksum(batch, now_ms):
    before = read_header(batch)
    stamp_append_time(batch, before, now_ms)
    after = read_header(batch)
    check_batch(memoryview(batch), after)
    assert after.attributes == before.attributes | LOG_APPEND_TIME
    assert after.max_timestamp == now_ms
    assert after.base_timestamp == before.base_timestamp


@given(batches, st.data())
def test_any_change_that_the_checksum_covers_is_noticed(batch, data):
    position = data.draw(st.integers(8, len(batch) - 1).filter(lambda p: not 12 <= p < 16))
    batch[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptBatch):
        check_batch(memoryview(batch), read_header(batch))


@given(st.lists(batches, max_size=4), st.binary(max_size=HEADER_BYTES))
def test_whole_batches_are_cut_out_and_a_torn_one_is_left(whole, rest):
    joined = memoryview(b"".join([*whole, rest]))
    assert [bytes(batch) for batch in split_batches(joined)] == [bytes(batch) for batch in whole]


@given(batches, st.data())
def test_a_batch_that_is_not_all_there_is_not_cut_out(batch, data):
    size = data.draw(st.integers(0, len(batch) - 1))
    assert list(split_batches(memoryview(batch)[:size])) == []


@given(st.integers(0, SEQUENCE_LIMIT - 1), st.integers(0, 1000))
def test_sequences_wrap_as_those_of_producers_do(first, delta):
    header = read_header(
        build_batch(b"", 0, base_timestamp=0, max_timestamp=0, base_sequence=first, last_offset_delta=delta)
    )
    assert header.last_sequence == (first + delta) % 2**31
    assert header._replace(base_sequence=-1).last_sequence == -1


texts = st.none() | st.binary(max_size=20)
records = st.lists(st.builds(NewRecord, texts, texts, st.integers(0, 2**40)), min_size=1, max_size=5)


@given(records, st.integers(0, 2**40))
def test_kio_reads_the_same_batch(records, base_offset):
    batch = encode_batch(records, base_offset=base_offset, producer_id=7, producer_epoch=1, base_sequence=3)
    header = read_header(batch)
    theirs, _ = read_batch(bytes(batch), 0)
    assert (theirs.base_offset, theirs.producer_id, theirs.producer_epoch) == (base_offset, 7, 1)
    assert theirs.base_sequence == header.base_sequence == 3
    assert theirs.last_offset_delta == header.last_offset_delta
    ours = decode_batch(batch)
    assert [(record.key, record.value) for record in theirs.records] == [(r.key, r.value) for r in ours]


def test_properties_of_a_header_say_what_its_attributes_mean():
    batch = build_batch(
        b"", 0, base_timestamp=0, max_timestamp=0, base_offset=10, last_offset_delta=4, attributes=0x33
    )
    header = read_header(batch)
    assert (header.last_offset, header.next_offset, header.codec) == (14, 15, 3)
    assert header.is_transactional
    assert header.is_control
