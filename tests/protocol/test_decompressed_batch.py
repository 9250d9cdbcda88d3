import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.protocol.batch import build_batch, check_batch, read_header
from headrace.protocol.compression import GZIP, NONE, ZSTD, compress
from headrace.protocol.decompressed_batch import DecompressedBatch
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import NewRecord, decode_batch, encode_batch, encode_records, encode_varint

ALL = 10_000


def found(batch: bytes) -> DecompressedBatch:
    """A batch whose records have all been found, as far as they can be."""
    opened = DecompressedBatch(batch)
    opened.find(ALL)
    return opened


def batch_of(section: bytes, count: int, attributes: int = 0) -> bytes:
    return bytes(build_batch(section, count, base_timestamp=0, max_timestamp=0, attributes=attributes))


@pytest.mark.parametrize("codec", [NONE, GZIP])
def test_records_are_cut_out_with_their_offsets_times_and_headers(codec: int) -> None:
    records = [NewRecord(b"k%d" % n, b"v" * n, 1000 + n, (("h", b"%d" % n),)) for n in range(300)]
    whole = bytes(encode_batch(records, codec=codec, base_offset=1000))
    wanted = [1001, 1150, 1299]
    opened = found(whole)
    part = opened.select([*wanted, 5000])
    check_batch(memoryview(part), read_header(part))
    assert decode_batch(part) == [record for record in decode_batch(whole) if record.offset in wanted]
    assert read_header(part).last_offset == 1299
    assert opened.is_whole
    assert opened.record(150) == decode_batch(whole)[150]


def test_what_was_cut_can_be_cut_again() -> None:
    records = [NewRecord(None, b"%d" % n, 1000 + n) for n in range(10)]
    whole = bytes(encode_batch(records, base_offset=50))
    part = found(whole).select([52, 55, 57])
    again = found(part)
    assert [(r.offset, r.value) for r in decode_batch(again.select([52, 57]))] == [(52, b"2"), (57, b"7")]
    assert (again.index_of(53), again.index_of(55), again.first_from(53)) == (None, 1, 1)


def test_records_are_found_only_as_far_as_they_are_wanted() -> None:
    opened = DecompressedBatch(bytes(encode_batch([NewRecord(None, b"v", 0)] * 10, base_offset=7)))
    assert (opened.find(4), opened.found, opened.next_offset, opened.is_whole) == (4, 4, 11, False)
    assert (opened.find(ALL), opened.next_offset, opened.is_whole) == (6, 17, True)


def test_records_before_the_nonsense_can_be_had() -> None:
    good = encode_records([NewRecord(b"k", b"v", 0)] * 3, 0)
    opened = found(batch_of(good + b"this is no record", 5))
    assert (opened.found, opened.next_offset, opened.is_whole) == (3, 3, False)
    assert opened.fault is not None
    assert [record.offset for record in decode_batch(opened.select([0, 2, 4]))] == [0, 2]


def test_a_negative_length_does_not_lead_back_into_the_batch() -> None:
    """Each step back would give the same bytes once more: a kilobyte became hundreds of megabytes."""
    filler = encode_varint(50_000) + bytes(50_000)
    section = filler + encode_varint(-50_000)
    opened = found(batch_of(compress(ZSTD, section), 500, ZSTD))
    assert opened.fault is not None
    assert len(opened.select(range(500))) < 100


@given(st.binary(max_size=200), st.integers(-1, 20))
@example(encode_records([NewRecord(b"k", b"v", 0)] * 2, 0), 2)
def test_a_batch_is_whole_exactly_when_all_its_records_can_be_read(section: bytes, count: int) -> None:
    batch = batch_of(section, count)
    try:
        decode_batch(batch)
    except CorruptBatch:
        is_readable = False
    else:
        is_readable = True
    try:
        opened = found(batch)
    except CorruptBatch:
        assert not is_readable
    else:
        # A count of none leaves bytes over that no step finds, and the broker never stores such a batch.
        assert opened.is_whole == (is_readable or count == 0)
