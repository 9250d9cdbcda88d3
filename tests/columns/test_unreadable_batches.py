"""Record batches that cannot be read: each is named by its offsets, and its neighbors are read."""

import pytest

from headrace.columns.record_decoder import RecordDecoder, UnreadableBatch
from headrace.protocol.batch import build_batch
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import NewRecord, encode_batch, encode_records

PARTITION = ("orders", 0)


def batch(base: int, *values: bytes) -> bytes:
    return bytes(encode_batch([NewRecord(None, value, 1_000) for value in values], base_offset=base))


def nonsense(base: int, count: int = 2, section: bytes = b"\xff" * 40, codec: int = 0) -> bytes:
    return bytes(
        build_batch(
            section, count, base_timestamp=1_000, max_timestamp=1_000, attributes=codec, base_offset=base
        )
    )


def damaged(base: int, *values: bytes) -> bytes:
    sound = bytearray(batch(base, *values))
    sound[-1] ^= 1
    return bytes(sound)


def read(data: bytes, start: int = 0, end: int = 100) -> tuple[list[bytes], list[UnreadableBatch]]:
    parts = list(RecordDecoder(PARTITION, start, end, columns=["value"]).readable_parts(data))
    rows = [
        value
        for part in parts
        if not isinstance(part, UnreadableBatch)
        for value in part["value"].to_pylist()
    ]
    return rows, [part for part in parts if isinstance(part, UnreadableBatch)]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (nonsense(2), "the records of a batch cannot be read: a varint is too long or incomplete"),
        (nonsense(2, count=2, section=b"ab"), "batch counts 2 records in 2 bytes"),
        (nonsense(2, codec=4), "zstd"),
        (damaged(2, b"c", b"d"), "the record batch fails its checksum"),
    ],
)
def test_a_batch_that_cannot_be_read_costs_its_neighbors_nothing(bad: bytes, reason: str) -> None:
    rows, unreadable = read(batch(0, b"a", b"b") + bad + batch(4, b"e"))
    assert rows == [b"a", b"b", b"e"]
    ((first, last, said),) = unreadable
    assert (first, last) == (2, 3)
    assert reason in said


def test_a_batch_that_claims_two_billion_records_is_named_once() -> None:
    rows, ((first, last, reason),) = read(nonsense(0, count=2**31 - 1, section=b"x"))
    assert (rows, first, last) == ([], 0, 99)
    assert "2147483647 records in 1 bytes" in reason


def test_a_reader_names_as_much_of_a_batch_as_it_was_to_read() -> None:
    assert read(nonsense(10, count=6), start=12, end=14)[1][0][:2] == (12, 13)
    assert read(nonsense(10, count=6), start=0, end=10) == ([], [])


def test_compressed_neighbors_of_a_bad_batch_are_read_once() -> None:
    records = [NewRecord(None, value, 1_000) for value in (b"a", b"b")]
    sound = [bytes(encode_batch(records, base_offset=base, codec=4)) for base in (0, 4)]
    rows, unreadable = read(sound[0] + nonsense(2, section=encode_records(records, 0)[:-3]) + sound[1])
    assert rows == [b"a", b"b"] * 2
    assert [each[:2] for each in unreadable] == [(2, 3)]


def test_a_strict_reader_still_refuses_it() -> None:
    with pytest.raises(CorruptBatch, match="checksum"):
        RecordDecoder(PARTITION, 0, 10).decode(batch(0, b"a") + damaged(1, b"b"))
