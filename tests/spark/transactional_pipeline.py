"""A small job for the tests of the transactional sink: the values of one topic, in capitals, into another."""

import json
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know
from pyspark.sql.streaming.query import StreamingQuery

from headrace.client.cluster import Cluster
from headrace.spark.progress import ProgressMarker, read_marker
from headrace.spark.transactional_sink import TransactionalSink

PARTITIONS = 3
ONCE = {"availableNow": True}


class Stopped(Exception):
    """What a step raises in a test to end its query there."""


class Pipeline:
    """An input topic, an output topic, and the job between them; names are its own, brokers may be shared."""

    def __init__(self, spark: SparkSession, bootstrap: str, folder: Path) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.checkpoint = folder / "checkpoint"
        unique = uuid.uuid4().hex[:8]
        self.source, self.target, self.job = f"in-{unique}", f"out-{unique}", f"job-{unique}"
        self.group = f"group-{unique}"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        topics = [NewTopic(self.source, 2, 1), NewTopic(self.target, PARTITIONS, 1)]
        for created in admin.create_topics(topics).values():
            created.result(100)
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})

    def fill(self, values: Iterable[str]) -> None:
        """Write records whose key is the value's first letter."""
        for value in values:
            self._producer.produce(self.source, value.encode(), key=value[:1].encode())
        assert self._producer.flush(100) == 0

    def rows(self, value: Column | None = None, **options: str) -> DataFrame:
        source = self.spark.readStream.format("headrace").option("kafka.bootstrap.servers", self.bootstrap)
        source = source.option("subscribe", self.source).option("startingOffsets", "earliest")
        text = F.upper(F.col("value").cast("string")) if value is None else value
        return source.options(**options).load().select("key", text.cast("binary").alias("value"))

    def sink(self, **settings: Any) -> TransactionalSink:
        given = {"job": self.job, "group": self.group, "topics": [self.target], **settings}
        return TransactionalSink(self.spark, self.bootstrap, **given)

    def run(self, rows: DataFrame | None = None, *, output_mode: str = "append", **settings: Any) -> None:
        """Process all that is there; what ends the query is raised."""
        given = self.rows() if rows is None else rows
        with self.sink(**settings) as sink:
            query = self.start(sink, given, trigger=ONCE, output_mode=output_mode)
            assert query.awaitTermination(100), "the query did not end"

    def start(self, sink: TransactionalSink, rows: DataFrame, **settings: Any) -> StreamingQuery:
        return sink.start(rows, checkpoint=str(self.checkpoint), **settings)

    def output(self) -> list[list[str]]:
        """The values in each partition of the output, as readers of committed records see them now."""
        return read_committed(self.bootstrap, self.target, PARTITIONS)

    def sorted_output(self) -> list[str]:
        return sorted(value for partition in self.output() for value in partition)

    def positions(self) -> list[int]:
        """What lag tools take for the job's positions in its input."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.group, "log_level": 0})
        try:
            asked = [TopicPartition(self.source, number) for number in range(2)]
            return [each.offset for each in consumer.committed(asked, 30)]
        finally:
            consumer.close()

    def mark(self) -> ProgressMarker | None:
        with Cluster.of(self.bootstrap) as cluster:
            return read_marker(cluster, self.job)

    def query_id(self) -> str:
        return str(json.loads((self.checkpoint / "metadata").read_text())["id"])


def stop_at(step: str, batch: int) -> Callable[[str, int], None]:
    """Steps that end the query when one of them is reached."""

    def steps(reached: str, number: int) -> None:
        if (reached, number) == (step, batch):
            raise Stopped(f"stopped at {step}")

    return steps


def read_committed(bootstrap: str, topic: str, partitions: int) -> list[list[str]]:
    """The values that are committed in each partition, up to where readers can go now."""
    values: list[list[str]] = [[] for _ in range(partitions)]
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        ended: set[int] = set()
        while len(ended) < partitions:
            for message in consumer.consume(1000, 1.0):
                if message.error() is None:
                    values[message.partition()].append(message.value().decode())
                else:
                    ended.add(message.partition())
    finally:
        consumer.close()
    return values
