"""Encoded batches on a broker: every codec is accepted, and any client reads what was written."""

import uuid

import pyarrow as pa
import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Place

from headrace.client.cluster import Cluster
from headrace.client.partition import TopicPartition
from headrace.client.produce import BatchProducer
from headrace.client.topics import NewTopic, create_topics
from headrace.columns.encoding import Encoder
from headrace.protocol.compression import CODECS

PARTITIONS = 3
DEADLINE_SECONDS = 100
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


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
