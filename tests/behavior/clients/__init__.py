"""The Kafka clients that the behaviors are shown with, each behind the same small contract."""

from collections.abc import Mapping

from tests.behavior.clients.aio import AioClient
from tests.behavior.clients.confluent import ConfluentClient
from tests.behavior.clients.contract import Client
from tests.behavior.clients.java import Driver, JavaClient
from tests.behavior.clients.pykafka import PykafkaClient

ADAPTERS: Mapping[str, type[Client]] = {
    "confluent": ConfluentClient,
    "aiokafka": AioClient,
    "kafka_python": PykafkaClient,
    "java": JavaClient,
}
"""Each library by its name in the test ids; what it cannot do stands in its adapter's `CANNOT`."""


def connect(library: str, bootstrap: str, driver: Driver | None = None) -> Client:
    """A client of that library on the broker at that address; the Java client needs its driver."""
    if library == "java":
        return JavaClient(bootstrap, driver or Driver())
    return ADAPTERS[library](bootstrap)
