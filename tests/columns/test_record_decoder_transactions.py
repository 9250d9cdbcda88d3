"""Transactions: rows are exactly what a consumer that reads committed records sees."""

import random
import uuid

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as Place
from crc32c import crc32c

from headrace.client.cluster import Cluster
from headrace.client.fetch import PartitionReader
from headrace.client.offsets import LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.client.topics import NewTopic, create_topics
from headrace.columns.record_decoder import RecordDecoder
from headrace.protocol.batch import CONTROL, TRANSACTIONAL
from headrace.protocol.records import NewRecord, encode_batch
from tests.broker.processes import wait_until

PARTITION = TopicPartition("orders", 0)
DEADLINE_SECONDS = 100
ABORT, COMMIT = b"\0\0\0\0", b"\0\0\0\1"


def write_transactions(bootstrap: str, topic: str, seed: int) -> None:
    """Three producers whose transactions overlap, end either way, and stand beside plain records."""
    chance = random.Random(seed)
    settings = {"bootstrap.servers": bootstrap, "linger.ms": 0}
    producers = [Producer({**settings, "transactional.id": f"{topic}-{number}"}) for number in range(3)]
    plain = Producer({**settings, "compression.type": "lz4"})
    for producer in producers:
        producer.init_transactions(DEADLINE_SECONDS)
    is_open = dict.fromkeys(producers, False)
    for step in range(60):
        producer = chance.choice([*producers, plain])
        if producer in is_open and not is_open[producer]:
            producer.begin_transaction()
            is_open[producer] = True
        for part in range(chance.randrange(4)):
            producer.produce(topic, key=b"%d" % step, value=b"%d.%d" % (step, part), partition=0)
        producer.flush(DEADLINE_SECONDS)
        if producer in is_open and chance.random() < 0.5:
            end = chance.choice([producer.commit_transaction, producer.abort_transaction])
            end(DEADLINE_SECONDS)
            is_open[producer] = False
    for producer in producers:
        if is_open[producer]:
            producer.abort_transaction(DEADLINE_SECONDS)


def consumed(bootstrap: str, topic: str, isolation: str) -> list[tuple[int, bytes | None, bytes | None]]:
    """What a consumer of librdkafka sees."""
    settings = {"group.id": "g", "isolation.level": isolation, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.assign([Place(topic, 0, 0)])
    rows = []
    while (message := consumer.poll(DEADLINE_SECONDS)) is not None and not message.error():
        rows.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return rows


def decided_end(cluster: Cluster, partition: TopicPartition) -> int:
    """Where the partition ends, once every transaction in it is decided: markers come after the answers."""

    def ends() -> list[int]:
        wanted = {partition: LATEST}
        return [list_offsets(cluster, wanted, read_committed=only)[partition] for only in (True, False)]

    wait_until(lambda: len(set(ends())) == 1, "the last marker")
    return ends()[0]


@pytest.mark.parametrize("fetch_bytes", [300, 1 << 20])
def test_rows_are_what_a_consumer_sees(bootstrap, fetch_bytes):
    partition = TopicPartition(f"orders-{uuid.uuid4()}", 0)
    with Cluster.of(bootstrap) as cluster:
        create_topics(cluster, [NewTopic(name=partition.topic, partitions=1)])
        write_transactions(bootstrap, partition.topic, seed=fetch_bytes)
        end = decided_end(cluster, partition)
        for committed, isolation in ((True, "read_committed"), (False, "read_uncommitted")):
            decoder = RecordDecoder(
                partition, 0, end, columns=["offset", "key", "value"], read_committed=committed
            )
            reader = PartitionReader(
                cluster, partition, 0, end, read_committed=committed, fetch_bytes=fetch_bytes
            )
            rows = [
                row for piece in reader for row in decoder.decode(piece.batches, piece.aborted).to_pylist()
            ]
            expected = consumed(bootstrap, partition.topic, isolation)
            assert [tuple(row.values()) for row in rows] == expected


def batch(offset: int, producer: int, value: bytes) -> bytes:
    record = NewRecord(None, value, 0)
    return bytes(encode_batch([record], base_offset=offset, producer_id=producer, attributes=TRANSACTIONAL))


def marker(offset: int, producer: int, kind: bytes) -> bytes:
    record = NewRecord(kind, b"\0" * 6, 0)
    attributes = TRANSACTIONAL | CONTROL
    return bytes(encode_batch([record], base_offset=offset, producer_id=producer, attributes=attributes))


def values(batches: list[bytes], aborted: list[tuple[int, int]], *, first: int = 0) -> list[bytes]:
    decoder = RecordDecoder(PARTITION, first, 100, columns=["value"])
    result: list[bytes] = decoder.decode(b"".join(batches), aborted).column("value").to_pylist()
    return result


def test_a_producer_is_heard_again_after_its_abort_marker():
    log = [batch(0, 7, b"no"), marker(1, 7, ABORT), batch(2, 7, b"yes"), marker(3, 7, COMMIT)]
    assert values(log, [(7, 0)]) == [b"yes"]


def test_two_aborted_transactions_of_one_producer_are_both_dropped():
    log = [batch(0, 7, b"no"), marker(1, 7, ABORT), batch(2, 7, b"yes"), marker(3, 7, COMMIT)]
    log += [batch(4, 7, b"no"), marker(5, 7, ABORT), batch(6, 7, b"yes")]
    assert values(log, [(7, 4), (7, 0)]) == [b"yes", b"yes"]


def test_the_abort_of_one_producer_leaves_the_others_alone():
    log = [batch(0, 7, b"no"), batch(1, 8, b"yes"), marker(2, 7, ABORT), marker(3, 8, COMMIT)]
    assert values(log, [(7, 0)]) == [b"yes"]


def test_a_transaction_that_began_before_the_fetch_is_dropped():
    assert values([batch(5, 7, b"no"), marker(6, 7, ABORT)], [(7, 2)], first=5) == []


def test_a_marker_before_the_wanted_offsets_still_ends_its_transaction():
    log = [batch(0, 7, b"no"), marker(1, 7, ABORT), batch(2, 7, b"yes")]
    assert values(log, [(7, 0)], first=2) == [b"yes"]


def test_a_marker_that_compaction_emptied_ends_nothing():
    emptied = bytearray(marker(1, 7, ABORT)[:61])
    emptied[8:12] = (61 - 12).to_bytes(4)
    emptied[57:61] = bytes(4)
    emptied[17:21] = crc32c(bytes(emptied[21:])).to_bytes(4)
    assert values([batch(0, 7, b"no"), bytes(emptied), batch(2, 7, b"no")], [(7, 0)]) == []


def test_a_plain_batch_with_the_producer_id_of_an_aborted_transaction_stays():
    plain = bytes(encode_batch([NewRecord(None, b"yes", 0)], base_offset=1, producer_id=7))
    assert values([batch(0, 7, b"no"), plain], [(7, 0)]) == [b"yes"]
