"""Spark's own Kafka connector and Headrace's source, side by side on one topic: the rows are the same."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing import BrokerProcess
from tests.cluster import rows as program
from tests.cluster.rows import Reading, read_rows
from tools.spark_connector import SparkConnector

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

PARTITIONS = 3
RECORDS = 200
FIRST_MS = 1_700_000_000_000
STEP_MS = 1_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPICS = ("peer.mixed", "peer.more")


@pytest.fixture(scope="module")
def connector() -> SparkConnector:
    """Spark's own connector, in an environment of its own."""
    return SparkConnector.fetch()


@pytest.fixture(scope="module", params=["headrace", "apache"])
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker that holds the topics."""
    if request.param == "apache":
        bootstrap = str(request.getfixturevalue("apache_kafka"))
        create_topics(bootstrap)
        yield bootstrap
        return
    with BrokerProcess(tmp_path_factory.mktemp("broker")) as broker:
        create_topics(broker.bootstrap)
        yield broker.bootstrap


def create_topics(bootstrap: str) -> None:
    """Topics with keys, headers, times, tombstones, every codec, and in one of them transactions."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    forever = {"retention.ms": "-1"}  # the records are of 2023
    topics = [NewTopic(name, PARTITIONS, config=forever) for name in TOPICS]
    for created in admin.create_topics(topics).values():
        created.result(30)
    for number, codec in enumerate(CODECS):
        for topic in TOPICS:
            write(bootstrap, topic, number * RECORDS, **{"compression.type": codec})
    write(bootstrap, TOPICS[0], len(CODECS) * RECORDS, **{"transactional.id": "peer-whole"})
    write(
        bootstrap, TOPICS[0], (len(CODECS) + 1) * RECORDS, commit=False, **{"transactional.id": "peer-torn"}
    )


def write(bootstrap: str, topic: str, first: int, *, commit: bool = True, **settings: str) -> None:
    """Add records to a topic, numbered from `first`, perhaps in a transaction."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, **settings})
    if "transactional.id" in settings:
        producer.init_transactions(30)
        producer.begin_transaction()
    for number in range(first, first + RECORDS):
        producer.produce(topic, timestamp=FIRST_MS + STEP_MS * number, **record(number))
    assert producer.flush(30) == 0
    if "transactional.id" in settings:
        (producer.commit_transaction if commit else producer.abort_transaction)(30)


def record(number: int) -> dict[str, Any]:
    """A record that differs from its neighbors in what it has, and what it lacks."""
    key = None if number % 7 == 0 else b"key %d" % (number % 13)
    value = None if number % 11 == 0 else b"" if number % 17 == 0 else b"line %d\nnext" % number
    headers = [("a", b"1"), ("none", None), ("a", b"")] if number % 5 == 0 else None
    return {"key": key, "value": value, "headers": headers, "partition": number % PARTITIONS}


def readings(bootstrap: str, folder: Path) -> dict[str, Reading]:
    """The same readings for both, each with a checkpoint folder of its own where it streams."""
    common = {"kafka.bootstrap.servers": bootstrap, "kafka.isolation.level": "read_committed"}
    one = {**common, "subscribe": TOPICS[0], "startingOffsets": "earliest"}
    bounds = {str(partition): 20 + partition for partition in range(PARTITIONS)}
    ends = {str(partition): 150 + partition for partition in range(PARTITIONS)}
    times = {str(partition): FIRST_MS + 300 * STEP_MS for partition in range(PARTITIONS)}
    return {
        "everything": {"options": one},
        "with headers": {"options": {**one, "includeHeaders": "true"}},
        "what was never committed too": {"options": {**one, "kafka.isolation.level": "read_uncommitted"}},
        "a pattern of topics": {"options": {**common, "subscribePattern": "peer[.].*"}},
        "assigned partitions": {"options": {**common, "assign": json.dumps({TOPICS[1]: [0, 2]})}},
        "between offsets": {
            "options": {
                **common,
                "subscribe": TOPICS[1],
                "startingOffsets": json.dumps({TOPICS[1]: bounds}),
                "endingOffsets": json.dumps({TOPICS[1]: ends}),
            }
        },
        "from a time on": {
            "options": {
                **common,
                "subscribe": TOPICS[1],
                "startingOffsetsByTimestamp": json.dumps({TOPICS[1]: times}),
            }
        },
        "many tasks": {"options": {**one, "minPartitions": "8"}},
        "a stream": {"options": {**one, "includeHeaders": "true"}, "checkpoint": str(folder / "stream")},
        "a stream in small steps": {
            "options": {**one, "maxOffsetsPerTrigger": "400"},
            "checkpoint": str(folder / "steps"),
        },
    }


def read_through_connector(connector: SparkConnector, wanted: Mapping[str, Reading]) -> dict[str, list[str]]:
    """The rows of each reading, through `format("kafka")`."""
    done = subprocess.run(
        [connector.python, str(program.__file__)],
        env=connector.environment(),
        input=json.dumps(wanted),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    rows: dict[str, list[str]] = json.loads(done.stdout)
    return rows


def test_both_give_the_same_rows(
    connector: SparkConnector, kafka: str, spark: SparkSession, tmp_path: Path
) -> None:
    theirs = read_through_connector(connector, readings(kafka, tmp_path / "theirs"))
    for name, reading in readings(kafka, tmp_path / "ours").items():
        ours = read_rows(spark, "headrace", reading)
        assert len(theirs[name]) > RECORDS / 2, name
        assert ours == theirs[name], name


def test_a_stream_of_the_connector_is_continued_by_headrace(
    connector: SparkConnector, kafka: str, spark: SparkSession, tmp_path: Path
) -> None:
    options = {"kafka.bootstrap.servers": kafka, "subscribe": TOPICS[1], "startingOffsets": "earliest"}
    reading: Reading = {"options": options, "checkpoint": str(tmp_path / "checkpoint")}
    already = len(CODECS) * RECORDS
    assert len(read_through_connector(connector, {"first": reading})["first"]) > already
    write(kafka, TOPICS[1], already)
    assert len(read_rows(spark, "headrace", reading)) == 1 + RECORDS
    write(kafka, TOPICS[1], already + RECORDS)
    assert len(read_rows(spark, "headrace", reading)) == 1 + RECORDS
