"""`write` and `writeStream` with `format("headrace")`: rows as records, at least once."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from headrace.spark import activate
from headrace.spark.errors import BadColumns
from headrace.spark.sink import check_columns
from tests.spark.records import consume, create_topic, produce, read_stream

# The first of them waits for the JVM.
pytestmark = pytest.mark.timeout(300)


def write(rows: DataFrame, bootstrap: str, **options: str) -> None:
    writer = rows.write.format("headrace").option("kafka.bootstrap.servers", bootstrap).options(**options)
    writer.mode("append").save()


def test_rows_become_records_with_key_headers_and_the_partition_of_the_java_client(
    spark: SparkSession, bootstrap: str
) -> None:
    create_topic(bootstrap, "out", 3)
    create_topic(bootstrap, "reference", 3)
    rows = spark.range(20).select(
        F.col("id").cast("string").alias("key"),
        F.concat(F.lit("v"), "id").alias("value"),
        F.array(F.struct(F.lit("h").alias("key"), F.lit(b"x").alias("value"))).alias("headers"),
    )
    write(rows, bootstrap, topic="out", compression="lz4")
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for number in range(20):
        producer.produce("reference", f"v{number}", f"{number}")
    producer.flush(100)
    found, expected = consume(bootstrap, "out", 3), consume(bootstrap, "reference", 3)
    placed = sorted((record.partition(), record.key(), record.value()) for record in found)
    assert placed == sorted((record.partition(), record.key(), record.value()) for record in expected)
    assert all(record.headers() == [("h", b"x")] for record in found)


def test_each_row_can_name_its_topic(spark: SparkSession, bootstrap: str) -> None:
    create_topic(bootstrap, "a")
    create_topic(bootstrap, "b", 2)
    rows = spark.createDataFrame([("a", 0, "x"), ("b", 1, None)], "topic string, partition int, value string")
    write(rows, bootstrap)
    assert [record.value() for record in consume(bootstrap, "a")] == [b"x"]
    assert [(record.partition(), record.value()) for record in consume(bootstrap, "b", 2)] == [(1, None)]


def test_a_stream_is_written_to_a_topic(spark: SparkSession, bootstrap: str, tmp_path: Path) -> None:
    create_topic(bootstrap, "in")
    create_topic(bootstrap, "out")
    produce(bootstrap, "in", ["1", "2"])
    rows = read_stream(spark, bootstrap, {"subscribe": "in", "startingOffsets": "earliest"}).select("value")
    writer = (
        rows.writeStream.format("headrace")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("topic", "out")
    )
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination()
    assert [record.value() for record in consume(bootstrap, "out")] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("schema", "topic", "hint"),
    [
        ("key string", "out", "no column value"),
        ("value string", None, "set the option topic"),
        ("value int", "out", "the column value is int: make it string or binary"),
        ("value string, headers array<string>", "out", "array<struct<key string, value binary>>"),
        ("value string, partition string", "out", "make it int"),
        ("value string, keys string", "out", "did you mean key?"),
    ],
)
def test_columns_that_make_no_record_are_refused(
    spark: SparkSession, schema: str, topic: str | None, hint: str
) -> None:
    with pytest.raises(BadColumns) as refusal:
        check_columns(StructType.fromDDL(schema), topic=topic)
    assert hint in str(refusal.value)


def test_a_topic_that_does_not_exist_is_not_written(spark: SparkSession, bootstrap: str) -> None:
    with pytest.raises(PySparkException, match="headrace topic create nowhere"):
        write(spark.range(1).selectExpr("cast(id as string) value"), bootstrap, topic="nowhere")


def test_a_topic_is_never_overwritten(spark: SparkSession, bootstrap: str) -> None:
    rows = spark.range(1).selectExpr("cast(id as string) value")
    writer = rows.write.format("headrace").option("kafka.bootstrap.servers", bootstrap).option("topic", "a")
    with pytest.raises(PySparkException, match="cannot be overwritten"):
        writer.mode("overwrite").save()


def test_a_thread_that_did_not_make_the_session_writes_once_it_is_active(
    spark: SparkSession, bootstrap: str
) -> None:
    create_topic(bootstrap, "a")
    rows = spark.range(1).selectExpr("cast(id as string) value")

    def write_here() -> None:
        activate(spark)
        write(rows, bootstrap, topic="a")

    with ThreadPoolExecutor(1) as other:
        other.submit(write_here).result()
    assert [record.value() for record in consume(bootstrap, "a")] == [b"0"]
