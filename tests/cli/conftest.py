"""Every command that talks to a broker is tried on Headrace, and in the cluster suite on Apache Kafka too."""

import uuid
from collections.abc import Callable, Iterator

import pytest

from tests.cli.terminal import Terminal
from tools.apache_kafka import ApacheKafka


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


@pytest.fixture
def terminal(bootstrap: str) -> Iterator[Terminal]:
    """A terminal whose commands go to the broker of this test."""
    terminal = Terminal(bootstrap)
    yield terminal
    terminal.close()


@pytest.fixture
def new_name() -> Callable[[], str]:
    """A function that makes names which no other test uses."""
    return lambda: f"n{uuid.uuid4().hex[:12]}"


@pytest.fixture
def topic(terminal: Terminal, new_name: Callable[[], str]) -> str:
    """A topic of one partition, empty."""
    name = new_name()
    terminal.do("topic", "create", name, "--partitions", "1")
    return name


@pytest.fixture
def wide_topic(terminal: Terminal, new_name: Callable[[], str]) -> str:
    """A topic of three partitions, empty."""
    name = new_name()
    terminal.do("topic", "create", name, "--partitions", "3")
    return name
