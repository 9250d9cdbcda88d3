"""The topic and the group of a load, for systems with the Kafka protocol."""

from collections.abc import Iterator

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from bench.queue.job import Job

GROUP = "crew"
PATIENCE_S = 30


def prepare(job: Job) -> None:
    """Create the topic with one partition, and set the group's start to the beginning."""
    admin = AdminClient({"bootstrap.servers": job.address})
    for future in admin.create_topics([NewTopic(job.topic, 1, 1)]).values():
        future.result(PATIENCE_S)
    reset = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    group = ConfigResource(ConfigResource.Type.GROUP, group_of(job), incremental_configs=[reset])
    for future in admin.incremental_alter_configs([group]).values():
        future.result(PATIENCE_S)


def group_of(job: Job) -> str:
    """A share group for each load."""
    return f"{GROUP}-{job.topic}"


def send_all(job: Job, payloads: Iterator[bytes]) -> None:
    """Send the messages: in batches to fill a queue, one by one to follow them."""
    linger_ms = 5 if job.act == "drain" else 0
    producer = Producer({"bootstrap.servers": job.address, "linger.ms": linger_ms, "acks": "all"})
    for payload in payloads:
        producer.produce(job.topic, payload)
        producer.poll(0)
    producer.flush()
