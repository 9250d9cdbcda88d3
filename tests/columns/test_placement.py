"""Where rows go: keys as the Java client places them, and rows without one together."""

import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2 as their_murmur2
from confluent_kafka import Producer
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.cluster import Cluster
from headrace.client.topics import NewTopic, create_topics
from headrace.columns.encoding import Encoder
from headrace.columns.encoding_kernels import STICKY_BYTES, murmur2
from headrace.protocol.kernels import octets

# The first call compiles, which takes longer than any example may.
unhurried = settings(deadline=None)
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
