"""Spark's own Kafka connector, and `from_json`."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know
from pyspark.sql.streaming.query import StreamingQuery

from bench.spark.program.dialect import Output
from bench.spark.program.records import SCHEMA

FORMAT = "kafka"
# What pays on both sides is set on both sides; the names of some classes moved between 4.0 and 4.3.
SETTINGS = {
    "spark.driver.memory": "4g",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


class Connector:
    """`format("kafka")`: at least once is all that it can write."""

    def open_session(self, cores: int) -> SparkSession:
        """A session with the same settings as ours, where it has them."""
        builder = SparkSession.builder.master(f"local[{cores}]").appName("bench")
        for name, value in {**SETTINGS, "spark.sql.shuffle.partitions": str(cores)}.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()

    def raw(self, spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
        """All of a topic."""
        return _source(spark.read, bootstrap, topic)

    def typed(self, spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
        """All of a topic, parsed by `from_json`."""
        return _parsed(_source(spark.read, bootstrap, topic))

    def stream(self, spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataFrame:
        """A topic as a stream, parsed by `from_json`."""
        return _parsed(_source(spark.readStream, bootstrap, topic, **options))

    def write(self, rows: DataFrame, bootstrap: str, topic: str) -> None:
        """Write a batch."""
        sink = rows.write.format(FORMAT).option("kafka.bootstrap.servers", bootstrap)
        sink.option("topic", topic).mode("append").save()

    def start(self, rows: DataFrame, output: Output) -> StreamingQuery:
        """Write a stream."""
        if output.name != "plain":
            raise ValueError(f"Spark's connector has no sink that is {output.name}")
        sink = rows.writeStream.format(FORMAT).option("kafka.bootstrap.servers", output.bootstrap)
        sink = sink.option("topic", output.topic).option("checkpointLocation", output.checkpoint)
        return sink.outputMode(output.mode).trigger(**output.trigger).start()


def _source(reader: Any, bootstrap: str, topic: str, **options: str) -> DataFrame:
    own = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    rows: DataFrame = reader.format(FORMAT).options(**own, **options).load()
    return rows


def _parsed(rows: DataFrame) -> DataFrame:
    value = F.from_json(F.col("value").cast("string"), SCHEMA)
    return rows.select(value.alias("value")).select("value.*")
