"""Apache Kafka with its own defaults, in KRaft mode, one node."""

from pathlib import Path

from bench.broker.systems.kafka_ping import ping_kafka
from bench.broker.systems.system import Flush, Node, System, write_certificate
from tools.apache_kafka import VERSION, ApacheKafka

FLUSH: dict[Flush, dict[str, str]] = {
    Flush.OS: {},
    Flush.TLS: {},
    Flush.ALWAYS: {"log.flush.interval.messages": "1"},
}


TLS = "TLS"
"""The name of the listener with TLS."""


class KafkaNode:
    """A node of Apache Kafka with its data in a temporary folder."""

    def __init__(self, properties: dict[str, str], ca: str = "") -> None:
        self.ca = ca
        self._kafka = ApacheKafka(properties=properties, listeners={TLS: "SSL"} if ca else None)

    @property
    def address(self) -> str:
        """Host and port that clients connect to."""
        return self._kafka.listeners[TLS] if self.ca else self._kafka.bootstrap

    @property
    def pid(self) -> int:
        """The process id of the Java virtual machine."""
        return self._kafka.pid

    def start(self) -> None:
        """Start it, and return when it answers."""
        self._kafka.start()

    def stop(self) -> None:
        """Stop it."""
        self._kafka.stop()

    def close(self) -> None:
        """Stop it if it runs, and remove its folder."""
        self._kafka.close()


def _set_up(folder: Path, flush: Flush) -> Node:
    if flush is not Flush.TLS:
        return KafkaNode(FLUSH[flush])
    certificate = str(write_certificate(folder))
    stores = {"ssl.keystore.type": "PEM", "ssl.keystore.location": certificate}
    return KafkaNode(FLUSH[flush] | stores, certificate)


KAFKA = System(
    name="kafka",
    title="Apache Kafka",
    client="librdkafka",
    set_up=_set_up,
    ping=ping_kafka,
    version=lambda: VERSION,
    has_partitions=True,
)
