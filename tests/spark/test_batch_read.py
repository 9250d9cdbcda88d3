"""`spark.read.format("headrace")`: a topic as a table."""

from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from tests.spark.records import create_topic, delete_records, produce, read

# The first of them waits for the JVM.
pytestmark = pytest.mark.timeout(300)

FOREVER = {"retention.ms": "-1"}


def test_a_topic_has_the_columns_of_sparks_kafka_source(spark: SparkSession, bootstrap: str) -> None:
    create_topic(bootstrap, "orders", **FOREVER)
    produce(bootstrap, "orders", ["coffee"], key="k", headers=[("h", b"x")], timestamp=1_700_000_000_123)
    rows = read(spark, bootstrap, "orders", includeHeaders="true")
    assert rows.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,"
        "timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )
    row = rows.selectExpr("*", "unix_millis(timestamp) as ms").first()
    assert row is not None
    assert (bytes(row.key), bytes(row.value), row.topic, row.partition, row.offset) == (
        b"k",
        b"coffee",
        "orders",
        0,
        0,
    )
    assert (row.ms, row.timestampType) == (1_700_000_000_123, 0)
    assert [(header.key, bytes(header.value)) for header in row.headers] == [("h", b"x")]


def test_a_batch_read_can_be_bounded_and_cut(spark: SparkSession, bootstrap: str) -> None:
    create_topic(bootstrap, "numbers", 2)
    for number in range(2):
        produce(bootstrap, "numbers", [f"{n}" for n in range(10)], partition=number)
    bounds = {"startingOffsets": '{"numbers":{"0":4,"1":-2}}', "endingOffsets": '{"numbers":{"0":6,"1":-1}}'}
    rows = read(spark, bootstrap, "numbers", columns="value", minPartitions="4", **bounds)
    assert rows.columns == ["value"]
    assert rows.rdd.getNumPartitions() == 4
    values = [int(row.value) for row in rows.selectExpr("cast(value as string) value").collect()]
    assert sorted(values) == sorted([4, 5, *range(10)])


def test_filters_on_metadata_read_fewer_records(spark: SparkSession, bootstrap: str) -> None:
    create_topic(bootstrap, "numbers", 2, **FOREVER)
    # Partition 0 has lost its beginning: a read that fetched it from 0 would fail.
    for number in range(2):
        produce(
            bootstrap, "numbers", [f"{n}" for n in range(10)], partition=number, timestamp=1_600_000_000_000
        )
    produce(bootstrap, "numbers", ["late"], partition=1, timestamp=1_700_000_000_000)
    delete_records(bootstrap, "numbers", 0, 5)
    rows = read(spark, bootstrap, "numbers", startingOffsets='{"numbers":{"0":0,"1":0}}')
    assert rows.where("partition = 1").count() == 11
    assert rows.where("partition = 0 and offset >= 7").count() == 3
    time = datetime.fromtimestamp(1_650_000_000, UTC)
    late = rows.where(rows.timestamp > time).where("topic = 'numbers' and partition in (1, 7)").collect()
    assert [bytes(row.value) for row in late] == [b"late"]


def test_aborted_records_are_not_read_unless_asked_for(spark: SparkSession, bootstrap: str) -> None:
    create_topic(bootstrap, "orders")
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    producer.init_transactions(100)
    for value, end in [("kept", producer.commit_transaction), ("dropped", producer.abort_transaction)]:
        producer.begin_transaction()
        producer.produce("orders", value)
        producer.flush(100)
        end(10)
    committed = read(spark, bootstrap, "orders", columns="value").collect()
    every = read(spark, bootstrap, "orders", **{"kafka.isolation.level": "read_uncommitted"}).collect()
    assert [bytes(row.value) for row in committed] == [b"kept"]
    assert [bytes(row.value) for row in every] == [b"kept", b"dropped"]


def test_an_unknown_option_is_refused_at_once(spark: SparkSession, bootstrap: str) -> None:
    with pytest.raises(AnalysisException, match="did you mean startingOffsets"):
        read(spark, bootstrap, "orders", startingOffset="earliest")
