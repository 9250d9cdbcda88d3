"""Records for tests of Spark: topics that are made, filled and read by an ordinary client."""

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.sql import DataFrame, SparkSession

from tests.broker.processes import wait_until


def create_topic(bootstrap: str, name: str, partitions: int = 1, **config: str) -> None:
    """Make a topic without records; one of that name that another test left on a shared broker goes first."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    if name in admin.list_topics(timeout=100).topics:
        delete_topic(bootstrap, name)

    def is_created() -> bool:
        try:
            admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(100)
        except KafkaException as refusal:
            if refusal.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    wait_until(is_created, f"the old {name} to be gone")
    await_partitions(admin, name, partitions)


def await_partitions(admin: AdminClient, name: str, count: int) -> None:
    """Return when the metadata has this many partitions; brokers of Apache Kafka learn of them later."""

    def is_known() -> bool:
        topic = admin.list_topics(timeout=100).topics.get(name)
        return topic is not None and len(topic.partitions) == count

    wait_until(is_known, f"{count} partitions of {name}")


def delete_topic(bootstrap: str, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(100)


def add_partitions(bootstrap: str, name: str, total: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(name, total)])[name].result(100)
    await_partitions(admin, name, total)


def delete_records(bootstrap: str, name: str, partition: int, before: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    wanted = TopicPartition(name, partition, before)
    admin.delete_records([wanted])[wanted].result(100)


def committed(bootstrap: str, group: str) -> dict[int, int]:
    """The positions of a group, by partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(100)
    return {each.partition: each.offset for each in found.topic_partitions or []}


def produce(bootstrap: str, topic: str, values: Iterable[str | bytes | None], **fields: Any) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1})
    refused: list[KafkaError] = []
    for value in values:
        producer.produce(
            topic, value, on_delivery=lambda error, _: refused.append(error) if error else None, **fields
        )
    assert (producer.flush(100), refused) == (0, [])


def consume(bootstrap: str, topic: str, partitions: int = 1) -> list[Message]:
    """All records of a topic, partition by partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "test", "enable.partition.eof": False})
    found: list[Message] = []
    for number in range(partitions):
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=100)
        consumer.assign([TopicPartition(topic, number, 0)])
        while end and (not found or found[-1].partition() != number or found[-1].offset() < end - 1):
            found.extend(consumer.consume(1000, timeout=0.2))
    consumer.close()
    return found


def read(spark: SparkSession, bootstrap: str, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format("headrace").options(subscribe=topic, **options)
    return reader.option("kafka.bootstrap.servers", bootstrap).load()


def read_stream(spark: SparkSession, bootstrap: str, options: Mapping[str, str]) -> DataFrame:
    reader = spark.readStream.format("headrace").options(**options)
    return reader.option("kafka.bootstrap.servers", bootstrap).load()
