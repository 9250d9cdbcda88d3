"""Topics with a bound, as tests see them: made, filled, read, and looked at."""

import json
from typing import Any

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from tests.broker.processes import wait_until


def create(bootstrap: str, topic: str, **settings: str) -> None:
    """Make a topic; a setting's dots are written as underscores."""
    config = {name.replace("_", "."): value for name, value in settings.items()}
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(100)


def alter(bootstrap: str, topic: str, **settings: str | None) -> None:
    """Change settings of a topic; None returns one to its default."""
    changes = [
        ConfigEntry(
            name.replace("_", "."),
            value,
            incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
        )
        for name, value in settings.items()
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=changes)
    next(iter(admin.incremental_alter_configs([resource]).values())).result(100)


def configs(bootstrap: str, topic: str) -> dict[str, str]:
    """The settings of a topic, how full it is among them."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)])
    return {name: entry.value for name, entry in next(iter(found.values())).result(100).items()}


def status(bootstrap: str, topic: str) -> dict[str, Any]:
    """The backlog and the counts of partition 0."""
    return dict(json.loads(configs(bootstrap, topic)["headrace.overflow.status"])[0])


def wait_for_status(bootstrap: str, topic: str, name: str, value: object) -> None:
    """Return when the broker says so."""
    wait_until(lambda: status(bootstrap, topic)[name] == value, f"{name} to be {value}")


class Sender:
    """A producer that stores the result of each record, in the order of the responses."""

    def __init__(self, bootstrap: str, topic: str, **settings: Any) -> None:
        fast = {
            "bootstrap.servers": bootstrap,
            "linger.ms": 0,
            "batch.num.messages": 1,
            "retry.backoff.ms": 20,
        }
        self.producer = Producer(fast | {name.replace("_", "."): value for name, value in settings.items()})
        self.topic = topic
        self.stored: list[str] = []
        self.failed: dict[str, str] = {}

    def send(self, *values: str) -> None:
        """Hand records over, each in a batch of its own."""
        for value in values:
            self.producer.produce(self.topic, value, on_delivery=self._heard)
            self.producer.poll(0)

    def _heard(self, error: Any, message: Any) -> None:
        value = message.value().decode()
        if error is None:
            self.stored.append(value)
        else:
            self.failed[value] = error.name()

    def write(self, *values: str) -> None:
        """Send records one by one, and return when each was answered."""
        for value in values:
            self.send(value)
            self.finish()

    def finish(self) -> None:
        """Return when every record was answered."""
        assert self.producer.flush(100) == 0

    def wait_for(self, count: int) -> None:
        """Return when this many records have a result."""
        wait_until(lambda: self._poll() >= count, f"{count} answers, and there are {self._poll()}")

    def _poll(self) -> int:
        self.producer.poll(0.01)
        return len(self.stored) + len(self.failed)


def commit(bootstrap: str, topic: str, group: str, offset: int) -> None:
    """Let a group stand at an offset."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


def read_all(bootstrap: str, topic: str, **settings: Any) -> list[str]:
    """Everything that is in the topic's one partition."""
    fixed = {
        "bootstrap.servers": bootstrap,
        "group.id": "reader",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer = Consumer(fixed | {name.replace("_", "."): value for name, value in settings.items()})
    low, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=100)
    consumer.assign([TopicPartition(topic, 0, low)])
    values: list[str] = []
    while True:
        message = consumer.poll(100)
        assert message is not None, f"{len(values)} records came, and then nothing"
        if message.error() is not None:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            break
        values.append(message.value().decode())
    consumer.close()
    return values
