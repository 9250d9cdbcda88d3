"""Ranges of a real topic as versions of rows: deletions, bad records, lost records, several partitions."""

import json
import time
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.client.cluster import Cluster
from headrace.protocol.batch import build_batch
from headrace.tables.changes import ChangeReader, Changes
from headrace.tables.definition import Definition
from headrace.testing import EmbeddedBroker
from tests.broker.wire_client import WireClient

CITIES = Definition(
    topic="cities",
    row_type=pa.struct([("id", pa.int64()), ("city", pa.string())]),
    key=("id",),
    keep_us=0,
)


def write(broker: EmbeddedBroker, records: list[tuple[int, Any, Any]]) -> None:
    """Partition, key and value of each record; its time is 1000, 1001, … ms."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic("cities", 2, config={"retention.ms": "-1"})])["cities"].result(100)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for time_ms, (partition, key, value) in enumerate(records, 1000):
        text = json.dumps(value) if isinstance(value, dict) else value
        producer.produce("cities", text, key, partition=partition, timestamp=time_ms)
    assert producer.flush(100) == 0


def seen(changes: Changes) -> list[tuple[int, int, int, int, str | None]]:
    """Partition, offset, time, whether deleted, and city of each version, in the order of the topic."""
    names = ("partition", "offset", "valid_from", "deleted", "c0")
    return sorted(tuple(row[name] for name in names) for row in changes.versions.to_pylist())


def test_records_become_versions_and_those_that_name_no_row_are_told(
    headrace_broker: EmbeddedBroker,
) -> None:
    write(
        headrace_broker,
        [
            (0, "1", {"id": 1, "city": "Rome"}),
            (1, "2", {"id": 2, "city": "Oslo"}),
            (0, "1", None),
            (0, "x", None),
            (0, None, None),
            (0, "3", "garbled"),
            (0, "3", {"city": "nowhere"}),
        ],
    )
    with Cluster.of(headrace_broker.bootstrap) as cluster:
        changes = ChangeReader(cluster, CITIES).read({}, {0: 6, 1: 1})
    assert seen(changes) == [
        (0, 0, 1_000_000, 0, "Rome"),
        (0, 1, 1_002_000, 1, None),
        (1, 0, 1_001_000, 0, "Oslo"),
    ]
    assert changes.newest_us == 1_002_000
    told = [(row["offset"], row["key"], row["reason"][:24]) for row in changes.unread.to_pylist()]
    assert told == [
        (2, b"x", "the record's key names n"),
        (3, None, "the record's key names n"),
        (4, b"3", "not JSON: expected a val"),
        (5, b"3", "the key (id) is null"),
    ]


def test_what_retention_removed_is_no_longer_part_of_the_table(headrace_broker: EmbeddedBroker) -> None:
    write(headrace_broker, [(0, str(number), {"id": number, "city": "Rome"}) for number in range(6)])
    admin = AdminClient({"bootstrap.servers": headrace_broker.bootstrap})
    (deletion,) = admin.delete_records([TopicPartition("cities", 0, 4)]).values()
    deletion.result(100)
    with Cluster.of(headrace_broker.bootstrap) as cluster:
        reader = ChangeReader(cluster, CITIES)
        assert [row[1] for row in seen(reader.read({0: 2}, {0: 6}))] == [4, 5]
        assert [row[1] for row in seen(reader.read({}, {0: 5}))] == [4]
        # A re-created topic ends before the offset that was read of the old one.
        assert [row[1] for row in seen(reader.read({0: 99}, {0: 6}))] == [4, 5]
        assert seen(reader.read({0: 6}, {0: 6})) == []


def test_a_batch_that_cannot_be_read_is_told_and_its_neighbors_are_versions(
    headrace_broker: EmbeddedBroker,
) -> None:
    write(headrace_broker, [(0, "1", {"id": 1, "city": "Rome"})])
    now_ms = int(time.time() * 1000)
    bad = build_batch(b"no records at all here", 2, base_timestamp=now_ms, max_timestamp=now_ms)
    with WireClient(headrace_broker.bootstrap) as client:
        client.produce("cities", bytes(bad))
    with Cluster.of(headrace_broker.bootstrap) as cluster:
        changes = ChangeReader(cluster, CITIES).read({}, {0: 3})
    assert [version[-1] for version in seen(changes)] == ["Rome"]
    ((offset, reason),) = [(row["offset"], row["reason"]) for row in changes.unread.to_pylist()]
    assert offset == 1
    assert reason.startswith("the record batch with the offsets 1 to 2 cannot be read")
