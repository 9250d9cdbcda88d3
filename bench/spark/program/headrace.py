"""Headrace: `format("headrace")` with typed reading, and its two sinks."""

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.spark.program.dialect import Output
from bench.spark.program.records import SCHEMA
from headrace.spark.session import local_session
from headrace.spark.transactional_sink import TransactionalSink

FORMAT = "headrace"
TYPED = {"valueFormat": "json", "valueSchema": SCHEMA, "columns": "value"}
MORE = {"spark.driver.memory": "4g", "spark.sql.streaming.numRecentProgressUpdates": "1000"}


class Headrace:
    """`format("headrace")`, and one transaction for each micro-batch where exactly once is asked for."""

    def open_session(self, cores: int) -> SparkSession:
        """A session as every user of Headrace has it."""
        return local_session("bench", cores=cores, more=MORE)

    def raw(self, spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
        """All of a topic."""
        return _source(spark.read, bootstrap, topic)

    def typed(self, spark: SparkSession, bootstrap: str, topic: str) -> DataFrame:
        """All of a topic, parsed where it is read."""
        return _source(spark.read, bootstrap, topic, **TYPED).select("value.*")

    def stream(self, spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataFrame:
        """A topic as a stream, parsed where it is read."""
        return _source(spark.readStream, bootstrap, topic, **TYPED, **options).select("value.*")

    def write(self, rows: DataFrame, bootstrap: str, topic: str) -> None:
        """Write a batch, at least once."""
        sink = rows.write.format(FORMAT).option("kafka.bootstrap.servers", bootstrap)
        sink.option("topic", topic).mode("append").save()

    def start(self, rows: DataFrame, output: Output) -> StreamingQuery:
        """Write a stream, at least once or exactly once."""
        if output.name == "transactional":
            return _start_transactional(rows, output)
        sink = rows.writeStream.format(FORMAT).option("kafka.bootstrap.servers", output.bootstrap)
        sink = sink.option("topic", output.topic).option("checkpointLocation", output.checkpoint)
        return sink.outputMode(output.mode).trigger(**output.trigger).start()


def _start_transactional(rows: DataFrame, output: Output) -> StreamingQuery:
    job = output.topic
    sink = TransactionalSink(rows.sparkSession, output.bootstrap, job=job, group=job, topics=[output.topic])
    return sink.start(rows, checkpoint=output.checkpoint, trigger=output.trigger, output_mode=output.mode)


def _source(reader: Any, bootstrap: str, topic: str, **options: str) -> DataFrame:
    own = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    rows: DataFrame = reader.format(FORMAT).options(**own, **options).load()
    return rows
