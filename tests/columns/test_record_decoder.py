"""Decoding batches into columns, as the plain decoder does. Unreadable batches are named by their offsets."""

import contextlib
import itertools

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.columns import buffers, record_decoder
from headrace.columns.record_decoder import COLUMNS, SCHEMA, RecordDecoder, UnreadableBatch
from headrace.protocol.batch import CONTROL, build_batch
from headrace.protocol.compression import CODECS
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import NewRecord, encode_batch, encode_records
from tests.columns.batches import LAST_OFFSET, TIME, encode_plans, expected_rows, plain_rows, plans

PARTITION = ("orders", 3)
# The first call compiles, which takes longer than any example may.
unhurried = settings(deadline=None)
UNREADABLE_PARTITION = ("orders", 0)


def decode(
    data: bytes, first: int = 0, end: int = LAST_OFFSET, columns: tuple[str, ...] = COLUMNS
) -> pa.RecordBatch:
    rows = RecordDecoder(PARTITION, first, end, columns=columns).decode(data)
    rows.validate(full=True)
    return rows


@given(plans, st.integers(0, 2**60))
@unhurried
def test_rows_are_what_the_plain_decoder_reads(plans, first):
    batches = encode_plans(plans, first)
    rows = decode(b"".join(batches))
    assert rows.schema == SCHEMA
    assert plain_rows(rows) == expected_rows(batches)


@given(plans, st.integers(0, 100), st.integers(0, 150))
@unhurried
def test_only_the_wanted_offsets_become_rows(plans, first, end):
    batches = encode_plans(plans)
    assert plain_rows(decode(b"".join(batches), first, end)) == expected_rows(batches, first, end)


@given(plans, st.lists(st.sampled_from(COLUMNS), unique=True, min_size=1))
@unhurried
def test_columns_come_in_the_order_they_were_asked_for(plans, columns):
    batches = encode_plans(plans)
    rows = decode(b"".join(batches), columns=tuple(columns))
    assert rows.schema.names == columns
    assert rows.num_rows == len(expected_rows(batches))
    assert plain_rows(rows) == [{name: row[name] for name in columns} for row in expected_rows(batches)]


@given(plans, st.data())
@unhurried
def test_damaged_batches_are_refused(plans, data):
    batches = bytearray(b"".join(encode_plans(plans)))
    if not batches:
        return
    position = data.draw(st.integers(0, len(batches) - 1))
    batches[position] ^= data.draw(st.integers(1, 255))
    try:
        decode(bytes(batches))
    except CorruptBatch:
        return
    # Offset and leader epoch are not covered by the checksum: the broker writes them.
    starts = itertools.accumulate((len(batch) for batch in encode_plans(plans)), initial=0)
    assert position - max(start for start in starts if start <= position) in {*range(8), *range(12, 16)}


@given(st.binary(max_size=400), st.integers(-10, 2**31 - 1), st.sampled_from([*CODECS, 7]))
@settings(deadline=None, max_examples=40)  # refusing what looks compressed takes a large buffer each time
def test_arbitrary_records_under_a_good_checksum_give_rows_or_a_refusal(section, count, codec):
    batch = build_batch(section, count, base_timestamp=TIME, max_timestamp=TIME, attributes=codec)
    with contextlib.suppress(CorruptBatch):
        decode(bytes(batch))


@given(plans, st.data())
@unhurried
def test_damaged_records_under_a_good_checksum_give_rows_or_a_refusal(plans, data):
    for plan in plans:
        section = bytearray(encode_records(plan.records, TIME))
        section[data.draw(st.integers(0, len(section) - 1))] = data.draw(st.integers(0, 255))
        batch = build_batch(bytes(section), len(plan.records), base_timestamp=TIME, max_timestamp=TIME)
        try:
            expected = expected_rows([bytes(batch)])
        except CorruptBatch:
            expected = None
        try:
            rows = plain_rows(decode(bytes(batch)))
        except CorruptBatch:
            assert expected is None
        else:
            assert expected is None or [row["offset"] for row in rows] == [row["offset"] for row in expected]


@pytest.mark.parametrize("end", [1, 11, 60, 61, 70])
def test_a_batch_that_is_cut_off_is_refused(end):
    batch = bytes(encode_batch([NewRecord(b"k", b"v" * 20, TIME)]))
    with pytest.raises(CorruptBatch, match="no whole record batch begins at byte 0"):
        decode(batch[:end])


def test_no_bytes_give_no_rows():
    assert decode(b"").num_rows == 0
    assert decode(b"").schema == SCHEMA


def test_batches_outside_the_offsets_are_not_even_opened():
    unreadable = build_batch(b"no records", 1, base_timestamp=TIME, max_timestamp=TIME)
    good = encode_batch([NewRecord(b"k", b"good", TIME)], base_offset=1)
    assert decode(bytes(unreadable + good), 1).column("value").to_pylist() == [b"good"]


def test_damage_that_makes_records_look_like_a_marker_is_refused():
    batch = bytearray(encode_batch([NewRecord(b"k", b"v", TIME)]))
    batch[22] ^= CONTROL
    with pytest.raises(CorruptBatch, match="fails its checksum"):
        decode(bytes(batch))


def test_markers_are_no_rows():
    marker = encode_batch([NewRecord(b"\0\0\0\1", b"\0" * 6, TIME)], attributes=CONTROL)
    assert decode(bytes(marker)).num_rows == 0


def test_an_old_message_format_is_refused_by_name():
    batch = bytearray(encode_batch([NewRecord(b"k", b"v", TIME)]))
    batch[16] = 1
    with pytest.raises(CorruptBatch, match="format 1"):
        decode(bytes(batch))


def test_a_time_that_microseconds_cannot_express_is_null():
    times = [TIME, 2**62, -(2**62), -1]
    rows = decode(
        b"".join(encode_batch([NewRecord(None, b"", time)], base_offset=i) for i, time in enumerate(times))
    )
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == [TIME * 1000, None, None, -1000]


def test_a_header_name_that_is_no_text_is_replaced_as_the_java_client_does():
    body = bytes([0, 0, 0, 1, 1, 2, 6]) + b"a\xff\xe2" + bytes([1])
    section = bytes([len(body) << 1]) + body
    rows = decode(bytes(build_batch(section, 1, base_timestamp=TIME, max_timestamp=TIME)))
    assert rows.column("headers").to_pylist() == [[{"key": "a\ufffd\ufffd", "value": None}]]


def test_what_compression_made_small_comes_in_parts(monkeypatch):
    monkeypatch.setattr(record_decoder, "PART_BYTES", 1000)
    record = NewRecord(None, b"x" * 600, TIME)
    batches = b"".join(encode_batch([record], codec=4, base_offset=offset) for offset in range(5))
    decoder = RecordDecoder(PARTITION, 0, 5, columns=["offset", "value"])
    parts = [part.column("offset").to_pylist() for part in decoder.parts(batches)]
    assert parts == [[0, 1], [2, 3], [4]]
    assert decoder.decode(batches).column("offset").to_pylist() == [0, 1, 2, 3, 4]


def test_more_than_a_column_can_hold_is_refused_and_not_cut_short(monkeypatch):
    monkeypatch.setattr(buffers, "MAX_COLUMN_BYTES", 1000)
    with pytest.raises(CorruptBatch, match=r"1001 bytes .* fetch less at a time"):
        decode(bytes(encode_batch([NewRecord(None, b"x" * 1001, TIME)])))


def test_a_column_that_there_is_not_is_refused():
    with pytest.raises(KeyError, match="colour"):
        RecordDecoder(PARTITION, 0, 1, columns=["colour"])


def test_the_types_are_those_that_spark_has_for_its_kafka_columns():
    from pyspark.sql import types as spark
    from pyspark.sql.pandas.types import to_arrow_schema

    header = spark.StructType().add("key", "string").add("value", "binary")
    kafka = spark.StructType().add("key", "binary").add("value", "binary").add("topic", "string")
    kafka = kafka.add("partition", "integer").add("offset", "long").add("timestamp", "timestamp")
    kafka = kafka.add("timestampType", "integer").add("headers", spark.ArrayType(header))
    assert to_arrow_schema(kafka, timezone="UTC") == SCHEMA


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
    parts = list(RecordDecoder(UNREADABLE_PARTITION, start, end, columns=["value"]).readable_parts(data))
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
        RecordDecoder(UNREADABLE_PARTITION, 0, 10).decode(batch(0, b"a") + damaged(1, b"b"))
