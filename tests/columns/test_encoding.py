"""Encoding rows into batches: the records that a plain encoder would write, where the Java client would.

Every codec is accepted by a broker, and any client reads the batches.
"""

import doctest
import itertools
import uuid
from collections import defaultdict

import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2 as their_murmur2
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.cluster import Cluster
from headrace.client.partition import TopicPartition
from headrace.client.produce import BatchProducer
from headrace.client.topics import NewTopic, create_topics
from headrace.columns import encoding
from headrace.columns.buffers import InvalidRows
from headrace.columns.encoding import STICKY_BYTES, Encoded, Encoder, murmur2, stamp
from headrace.columns.record_decoder import COLUMNS, RecordDecoder
from headrace.protocol.batch import TRANSACTIONAL, check_batch, read_header
from headrace.protocol.compression import CODECS
from headrace.protocol.kernels import octets
from headrace.protocol.records import NewRecord, Record, decode_batch, encode_batch
from tests.columns.batches import TIME, blobs, headers, plain_rows

# The first call compiles, which takes longer than any example may.
unhurried = settings(deadline=None)
BINARY = pa.binary()
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TOPICS = {"orders": 3, "payments": 1, "users": 7}

Row = tuple[str, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int | None]
rows = st.lists(
    st.sampled_from(sorted(TOPICS)).flatmap(
        lambda topic: st.tuples(
            st.just(topic), blobs, blobs, headers, st.none() | st.integers(0, TOPICS[topic] - 1)
        )
    ),
    max_size=80,
)
blob_types = st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()])
PARTITIONS = 3
DEADLINE_SECONDS = 100


def table_of(rows: list[Row], kind: pa.DataType = BINARY) -> pa.RecordBatch:
    """The rows as Arrow; a row without headers has null for them, or an empty list."""
    lists = [
        [{"key": name, "value": value} for name, value in row[3]] or (None if index % 2 else [])
        for index, row in enumerate(rows)
    ]
    return pa.record_batch(
        {
            "topic": pa.array([row[0] for row in rows], pa.string()),
            "key": pa.array([row[1] for row in rows], pa.binary()).cast(kind),
            "value": pa.array([row[2] for row in rows], pa.binary()).cast(kind),
            "headers": pa.array(lists, HEADERS),
            "partition": pa.array([row[4] for row in rows], pa.int32()),
        }
    )


def records_of(encoded: list[Encoded]) -> dict[tuple[str, int], list[Record]]:
    """The records of each partition, in the order of its batches; every batch is whole."""
    found = defaultdict(list)
    for each in encoded:
        check_batch(memoryview(each.batch), read_header(each.batch))
        records = decode_batch(each.batch)
        assert len(records) == each.records
        assert [record.offset for record in records] == list(range(each.records))
        found[each.topic, each.partition] += records
    return dict(found)


def plain(record: Record) -> tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]:
    return record.key, record.value, record.headers


def encode(table: pa.RecordBatch, counts: dict[str, int] | None = None, **options: object) -> list[Encoded]:
    encoder = Encoder(counts or TOPICS, **options)  # type: ignore[arg-type]
    return encoder.encode(table, now_ms=TIME) + encoder.flush(now_ms=TIME)


@given(rows, blob_types, st.sampled_from(sorted(CODECS.values())), st.integers(100, 3000))
@unhurried
def test_every_row_becomes_one_record_in_the_order_of_its_partition(rows, kind, compression, limit):
    encoded = encode(table_of(rows, kind), compression=compression, max_batch_bytes=limit)
    found = records_of(encoded)
    for each in encoded:
        assert len(each.batch) <= limit or each.records == 1
        assert read_header(each.batch).base_timestamp == read_header(each.batch).max_timestamp == TIME
    assert sum(map(len, found.values())) == len(rows)
    for (topic, partition), records in found.items():
        candidates = [row for row in rows if row[0] == topic and row[4] in {partition, None}]
        remaining = iter(candidates)
        for record in records:  # a subsequence of the rows that may be here
            assert any((row[1], row[2], row[3]) == plain(record) for row in remaining)
    for topic, key, value, its_headers, partition in rows:
        if partition is not None:
            assert (key, value, its_headers) in map(plain, found[topic, partition])


@given(rows)
@unhurried
def test_a_batch_is_the_bytes_that_the_plain_encoder_writes(rows):
    for each in encode(table_of(rows)):
        records = [
            NewRecord(record.key, record.value, TIME, record.headers) for record in decode_batch(each.batch)
        ]
        assert each.batch == encode_batch(records)


@given(rows, st.data())
@unhurried
def test_a_slice_of_a_table_is_encoded_as_if_it_stood_alone(rows, data):
    first = data.draw(st.integers(0, len(rows)))
    size = data.draw(st.integers(0, len(rows) - first))
    placed = [(*row[:4], 0) for row in rows]  # rows without a key begin at any partition
    sliced = table_of(placed).slice(first, size)
    assert encode(sliced) == encode(table_of(placed[first : first + size]))


@given(rows, st.sampled_from(sorted(CODECS.values())))
@unhurried
def test_what_was_encoded_is_cut_into_the_same_rows(rows, compression):
    placed = [(*row[:4], 0) for row in rows if row[0] == "orders"]
    encoded = encode(table_of(placed), compression=compression)
    data = b"".join(each.batch for each in encoded)
    cut = RecordDecoder(("orders", 0), 0, len(placed) + 1, columns=COLUMNS).decode(data)
    assert [(row["key"], row["value"], row["headers"]) for row in plain_rows(cut)] == [
        (row[1], row[2], [{"key": name, "value": value} for name, value in row[3]] or None) for row in placed
    ]


@given(rows, st.lists(st.integers(0, 80)))
@unhurried
def test_rows_that_come_in_many_pieces_make_the_same_records(rows, cuts):
    table = table_of([(*row[:4], 0) for row in rows])
    edges = sorted({0, len(rows), *(cut for cut in cuts if cut <= len(rows))})
    encoder = Encoder(TOPICS)
    encoded = []
    for first, end in itertools.pairwise(edges):
        encoded += encoder.encode(table.slice(first, end - first), now_ms=TIME)
    encoded += encoder.flush(now_ms=TIME)
    assert encoded == encode(table)


def test_small_pieces_are_held_until_they_are_worth_a_batch():
    encoder = Encoder({"orders": 1}, topic="orders", hold_bytes=1000)
    piece = pa.record_batch({"value": [b"x" * 100] * 4})
    counts = [[each.records for each in encoder.encode(piece)] for _ in range(5)]
    assert counts == [[], [], [12], [], []]
    assert [each.records for each in encoder.flush()] == [8]
    assert encoder.flush() == []


def test_a_large_piece_does_not_wait_and_follows_what_was_held():
    encoder = Encoder({"orders": 1}, topic="orders", hold_bytes=1000)
    assert encoder.encode(pa.record_batch({"value": [b"first"]})) == []
    encoded = encoder.encode(pa.record_batch({"value": [b"x" * 600, b"y" * 600]}))
    assert [record.value[:1] for each in encoded for record in decode_batch(each.batch)] == [b"f", b"x", b"y"]


def test_the_example_in_the_documentation_is_true():
    assert doctest.testmod(encoding).attempted > 0
    assert doctest.testmod(encoding).failed == 0


def test_text_is_encoded_as_utf8():
    for kind in (pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())):
        table = pa.record_batch({"value": pa.array(["é", None, "日本"], pa.string()).cast(kind)})
        (only,) = encode(table, {"orders": 1}, topic="orders")
        assert [record.value for record in decode_batch(only.batch)] == ["é".encode(), None, "日本".encode()]


def test_headers_may_be_a_large_list_with_binary_names():
    kind = pa.large_list(pa.struct([("key", pa.binary()), ("value", pa.string())]))
    table = pa.record_batch({"value": ["v"], "headers": pa.array([[{"key": b"k", "value": "1"}]], kind)})
    (only,) = encode(table, {"orders": 1}, topic="orders")
    assert decode_batch(only.batch)[0].headers == (("k", b"1"),)


def test_headers_of_rows_that_are_null_but_hold_something_are_left_out():
    lists = pa.ListArray.from_arrays(
        pa.array([0, 1, 2], pa.int32()),
        pa.array([{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}], HEADERS.value_type),
        mask=pa.array([True, False]),
    )
    (only,) = encode(pa.record_batch({"value": ["x", "y"], "headers": lists}), {"orders": 1}, topic="orders")
    assert [record.headers for record in decode_batch(only.batch)] == [(), (("b", b"2"),)]


def test_a_record_larger_than_a_batch_may_be_gets_one_of_its_own():
    values = [b"a", b"b" * 5000, b"c"]
    encoded = encode(pa.record_batch({"value": values}), {"orders": 1}, topic="orders", max_batch_bytes=1000)
    assert [decode_batch(each.batch)[0].value for each in encoded] == values


def test_what_compression_would_make_larger_is_not_compressed():
    table = pa.record_batch({"value": [b"x"]})
    (only,) = encode(table, {"orders": 1}, topic="orders", compression="gzip")
    assert read_header(only.batch).codec == 0


def test_a_named_topic_is_taken_whatever_the_column_says():
    table = table_of([("nowhere", b"k", b"v", (), None)])
    assert {each.topic for each in encode(table, topic="payments")} == {"payments"}


def test_no_rows_make_no_batches():
    assert encode(table_of([])) == encode(table_of([]), hold_bytes=0) == []


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"value": ["v"]}, "no column topic and no topic was named"),
        (
            {"topic": ["nowhere"], "value": ["v"]},
            "the topic nowhere, which is not one of the output topics orders, payments, users",
        ),
        ({"topic": [None, "orders"], "value": ["v", "v"]}, "the topic of a row is null"),
        ({"topic": ["orders"], "value": ["v"], "partition": [3]}, "partition 3 of topic orders, .* 0 to 2"),
        ({"topic": ["users"], "value": ["v"], "partition": [-1]}, "partition -1 of topic users, .* 0 to 6"),
        ({"topic": ["users"], "value": ["v"], "partition": ["1"]}, "column partition is of type string"),
        ({"topic": ["users"], "value": [1]}, "column value is of type int64"),
        ({"topic": ["users"], "key": ["k"]}, "no column value"),
        ({"topic": ["users"], "value": ["v"], "headers": ["h"]}, "column headers is of type string"),
        (
            {
                "topic": ["users"],
                "value": ["v"],
                "headers": pa.array([[{"key": None, "value": b"1"}]], HEADERS),
            },
            "a header without a name",
        ),
    ],
)
def test_rows_that_no_topic_can_take_are_refused_with_the_reason(table, reason):
    with pytest.raises(InvalidRows, match=reason):
        encode(pa.record_batch(table))


def test_a_topic_or_compression_that_there_is_not_is_refused_at_once():
    with pytest.raises(InvalidRows, match="nowhere"):
        Encoder(TOPICS, topic="nowhere")
    with pytest.raises(InvalidRows, match="none, gzip, snappy, lz4, zstd"):
        Encoder(TOPICS, compression="brotli")


@given(st.integers(0, 2**62), st.integers(0, 2**15 - 1), st.integers(0, 2**31 - 1), st.booleans())
def test_a_stamped_batch_is_the_one_that_its_producer_would_have_built(
    producer_id, epoch, sequence, transactional
):
    records = [NewRecord(b"k", b"v", TIME), NewRecord(None, None, TIME + 1)]
    batch = bytes(encode_batch(records, codec=4))
    stamped = stamp(
        batch, producer_id=producer_id, epoch=epoch, base_sequence=sequence, transactional=transactional
    )
    assert stamped == encode_batch(
        records,
        codec=4,
        attributes=TRANSACTIONAL if transactional else 0,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    assert batch == encode_batch(records, codec=4)


JAVA_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def counts(rows: pa.RecordBatch, encoder: Encoder) -> dict[int, int]:
    """How many records each partition gets."""
    found: dict[int, int] = {}
    for each in encoder.encode(rows) + encoder.flush():
        found[each.partition] = found.get(each.partition, 0) + each.records
    return found


@pytest.mark.parametrize("key", sorted(JAVA_HASHES))
def test_the_hash_is_that_of_the_java_client(key):
    assert murmur2(octets(key), 0, len(key)) == JAVA_HASHES[key] % 2**32


@given(st.binary(max_size=60), st.integers(0, 5))
@unhurried
def test_the_hash_is_that_of_aiokafka_wherever_the_key_lies(key, start):
    assert murmur2(octets(bytes(start) + key + b"rest"), start, len(key)) == their_murmur2(key)


def test_keys_go_where_librdkafka_sends_them_when_it_does_as_java(headrace_broker):
    keys = [b"key-%d" % number for number in range(200)]
    sent: dict[bytes, int] = {}
    settings = {"bootstrap.servers": headrace_broker.bootstrap, "partitioner": "murmur2_random"}
    with Cluster.of(headrace_broker.bootstrap) as cluster:
        create_topics(cluster, [NewTopic(name="orders", partitions=7)])
    producer = Producer(settings)
    for key in keys:
        producer.produce(
            "orders",
            b"v",
            key,
            on_delivery=lambda _, message: sent.update({message.key(): message.partition()}),
        )
    producer.flush(100)
    ours = {
        key: each.partition
        for key in keys
        for each in _encode_one(pa.record_batch({"key": [key], "value": [b"v"]}))
    }
    assert ours == sent


def _encode_one(rows):
    encoder = Encoder({"orders": 7}, topic="orders")
    return encoder.encode(rows) + encoder.flush()


def test_an_empty_key_is_a_key():
    empty = pa.record_batch({"key": [b""] * 3, "value": [b"v"] * 3})
    expected = (their_murmur2(b"") & 0x7FFFFFFF) % 7
    assert all(counts(empty, Encoder({"orders": 7}, topic="orders")) == {expected: 3} for _ in range(9))


def test_a_few_rows_without_a_key_stay_together():
    rows = pa.record_batch({"value": [b"x" * 100] * 50})
    assert list(counts(rows, Encoder({"orders": 5}, topic="orders")).values()) == [50]


def test_many_rows_without_a_key_are_spread_evenly():
    per_partition = STICKY_BYTES // 1000
    rows = pa.record_batch({"value": [b"x" * 1000] * (per_partition * 50)})
    found = counts(rows, Encoder({"orders": 5}, topic="orders"))
    assert sorted(found) == [0, 1, 2, 3, 4]
    assert max(found.values()) - min(found.values()) <= 2 * per_partition


def test_encoders_begin_at_different_partitions():
    rows = pa.record_batch({"value": [b"v"]})
    begun = {next(iter(counts(rows, Encoder({"orders": 8}, topic="orders")))) for _ in range(200)}
    assert begun == set(range(8))


def test_a_null_partition_leaves_the_choice_to_the_key():
    rows = pa.record_batch(
        {"key": [b"abc"] * 2, "value": [b"v"] * 2, "partition": pa.array([None, 6], pa.int32())}
    )
    assert counts(rows, Encoder({"orders": 7}, topic="orders")) == {JAVA_HASHES[b"abc"] % 2**31 % 7: 1, 6: 1}


def consumed(bootstrap: str, topic: str, count: int) -> list[tuple[object, ...]]:
    """`count` messages of all partitions, as tuples."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "check.crcs": True})
    consumer.assign([Place(topic, number, 0) for number in range(PARTITIONS)])
    messages = [consumer.poll(DEADLINE_SECONDS) for _ in range(count)]
    consumer.close()
    return [(each.key(), each.value(), each.headers()) for each in messages]


@pytest.mark.parametrize("compression", CODECS.values())
def test_a_consumer_reads_what_was_encoded(bootstrap, compression):
    topic = f"encoded-{uuid.uuid4()}"
    rows = [(b"key-%d" % n, b"value " * 40, [("n", b"%d" % n), ("none", None)]) for n in range(300)]
    rows += [(None, b"no key", None), (b"tombstone", None, None), (b"", b"", None)]
    lists = [[{"key": name, "value": value} for name, value in row[2] or ()] for row in rows]
    keys, values = (pa.array([row[index] for row in rows], pa.binary()) for index in (0, 1))
    encoder = Encoder({topic: PARTITIONS}, topic=topic, compression=compression, max_batch_bytes=9000)
    encoder.encode(pa.record_batch({"key": keys, "value": values, "headers": pa.array(lists, HEADERS)}))
    with Cluster.of(bootstrap) as cluster:
        create_topics(cluster, [NewTopic(name=topic, partitions=PARTITIONS)])
        producer = BatchProducer(cluster)
        for encoded in encoder.flush():
            producer.send(TopicPartition(encoded.topic, encoded.partition), encoded.batch)
        producer.flush()
    assert sorted(consumed(bootstrap, topic, len(rows)), key=repr) == sorted(rows, key=repr)
