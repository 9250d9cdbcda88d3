"""The broker that holds the topics of a run."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from headrace.testing import BrokerProcess
from tools.apache_kafka import VERSION, ApacheKafka

BROKERS = ("headrace", "kafka")


def broker_version(name: str) -> dict[str, str]:
    """What the report says of the broker."""
    return {name: version("headrace") if name == "headrace" else VERSION}


@contextmanager
def started_broker(name: str, folder: Path) -> Iterator[str]:
    """The address of a broker in a process of its own, stopped when the block ends."""
    if name == "kafka":
        with ApacheKafka() as kafka:
            yield kafka.bootstrap
    else:
        with BrokerProcess(folder) as broker:
            yield broker.bootstrap
