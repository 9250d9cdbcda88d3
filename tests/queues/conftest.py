"""Fixtures of a broker, its topics, and a function that sends messages."""

import uuid
from collections.abc import Callable, Sequence

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.embedded import EmbeddedBroker

Header = tuple[str, bytes]
NewQueue = Callable[..., str]
Send = Callable[..., None]


@pytest.fixture
def address(headrace_broker: EmbeddedBroker) -> str:
    """The address of the broker."""
    return headrace_broker.bootstrap


@pytest.fixture
def new_queue(address: str) -> NewQueue:
    """A function that creates a topic; settings have `_` for `.`."""

    def make(partitions: int = 1, **settings: str) -> str:
        name = f"q{uuid.uuid4().hex[:12]}"
        config = {key.replace("_", "."): value for key, value in settings.items()}
        admin = AdminClient({"bootstrap.servers": address})
        (future,) = admin.create_topics([NewTopic(name, partitions, 1, config=config)]).values()
        future.result(100)
        return name

    return make


@pytest.fixture
def send(address: str) -> Send:
    """A function that sends values to a topic, in one batch."""

    def send(topic: str, *values: bytes, key: bytes | None = None, headers: Sequence[Header] = ()) -> None:
        producer = Producer({"bootstrap.servers": address, "linger.ms": 50})
        for value in values:
            producer.produce(topic, value, key, headers=list(headers))
        assert producer.flush(100) == 0

    return send
