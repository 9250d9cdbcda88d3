"""The brokers that tests run on: Headrace, and in the cluster suite Apache Kafka too."""

import signal
from collections.abc import Iterator

import pytest

from tools.apache_kafka import ApacheKafka


def pytest_configure() -> None:
    # A suite that was started in the background ignores Ctrl-C, and so would every process that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def apache_kafka() -> Iterator[str]:
    """The address of an Apache Kafka that serves the whole session."""
    with ApacheKafka(heap="512M") as kafka:
        yield kafka.bootstrap


@pytest.fixture(params=["headrace", pytest.param("apache", marks=pytest.mark.cluster)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of the broker of this test."""
    if request.param == "apache":
        return str(request.getfixturevalue("apache_kafka"))
    return str(request.getfixturevalue("headrace_broker").bootstrap)
