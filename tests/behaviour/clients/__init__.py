"""The Kafka clients that the behaviours are shown with, each behind the same small contract."""

from collections.abc import Mapping

from tests.behaviour.clients.aio import AioClient
from tests.behaviour.clients.confluent import ConfluentClient
from tests.behaviour.clients.contract import Client
from tests.behaviour.clients.java import Driver, JavaClient
from tests.behaviour.clients.pykafka import PykafkaClient

ADAPTERS: Mapping[str, type[Client]] = {
    "confluent": ConfluentClient,
    "aiokafka": AioClient,
    "kafka_python": PykafkaClient,
    "java": JavaClient,
}
"""Each library's name in the test ids, and its adapter; what it cannot do stands in the adapter's `CANNOT`."""


def connect(library: str, bootstrap: str, driver: Driver | None = None) -> Client:
    """A client of that library on the broker at that address; the Java client needs its driver."""
    if library == "java":
        return JavaClient(bootstrap, driver or Driver())
    adapter: type[ConfluentClient | AioClient | PykafkaClient] = ADAPTERS[library]  # type: ignore[assignment]
    return adapter(bootstrap)
