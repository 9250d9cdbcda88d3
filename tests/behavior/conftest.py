"""Every behavior with every client on every broker.

A test that takes `client` is generated once for each library that can do what it needs, and for each broker.
`@needs("max timestamp")` leaves out the libraries that cannot (their adapter's `CANNOT` says why);
`@each(codec=["gzip", …])` repeats a test for each value that the library can do.
One broker of each kind serves the whole session: tests use topics and groups of their own.
"""

import uuid
from collections.abc import Iterator

import pytest

from headrace.testing import BrokerProcess
from tests.behavior.clients import ADAPTERS, connect
from tests.behavior.clients.contract import Client, Refused, TopicPartition
from tests.behavior.clients.java import Driver, missing
from tests.behavior.names import NewName, NewTopic
from tests.behavior.reading import wait_until

SECURED = ("test_groups", "test_reading", "test_round_trip", "test_topics", "test_transactions")
"""The behaviors that are also shown on an Apache Kafka with TLS and SCRAM, by librdkafka."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(capability): only with clients that can do this")
    config.addinivalue_line("markers", "each(name=values): once for each value that the client can do")
    config.addinivalue_line("markers", "broker_only(client): shows the broker alone, so one client is enough")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if reason := missing():
        terminalreporter.write_line(
            f"BEHAVIOURS RAN WITHOUT THE JAVA CLIENT: {reason}", yellow=True, bold=True
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "client" not in metafunc.fixturenames:
        return
    libraries = [name for name in ADAPTERS if _is_wanted(name, metafunc)]
    each = metafunc.definition.get_closest_marker("each")
    names: tuple[str, ...] = ("library",)
    rows: list[tuple[str, ...]] = [(name,) for name in libraries]
    if each is not None:
        ((argument, options),) = each.kwargs.items()
        names = ("library", argument)
        rows = [
            (name, option) for name in libraries for option in options if option not in ADAPTERS[name].CANNOT
        ]
    cases = [
        pytest.param(*row, kind, marks=() if kind == "headrace" else pytest.mark.cluster)
        for row in rows
        for kind in _broker_kinds(row[0], metafunc)
    ]
    metafunc.parametrize((*names, "broker_kind"), cases)


def _broker_kinds(library: str, metafunc: pytest.Metafunc) -> list[str]:
    is_secured = library == "confluent" and metafunc.module.__name__.rpartition(".")[2] in SECURED
    return ["headrace", "apache", *(["secured"] if is_secured else [])]


def _is_wanted(library: str, metafunc: pytest.Metafunc) -> bool:
    if library == "java" and missing():
        return False
    only = metafunc.definition.get_closest_marker("broker_only")
    if only is not None and library not in only.args:
        return False
    needed = {name for mark in metafunc.definition.iter_markers("needs") for name in mark.args}
    return needed.isdisjoint(ADAPTERS[library].CANNOT)


@pytest.fixture(scope="session")
def headrace_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Headrace broker, in a process of its own, that serves the whole session."""
    with BrokerProcess(tmp_path_factory.mktemp("headrace")) as broker:
        yield broker.bootstrap


@pytest.fixture(scope="session")
def java_driver() -> Iterator[Driver]:
    """The process that runs the Java client for the whole session."""
    driver = Driver()
    yield driver
    driver.close()


@pytest.fixture
def broker(broker_kind: str, request: pytest.FixtureRequest) -> str:
    """The address of the broker of this test."""
    fixtures = {"headrace": "headrace_process", "apache": "apache_kafka", "secured": "secured_bootstrap"}
    return str(request.getfixturevalue(fixtures[broker_kind]))


@pytest.fixture
def client(library: str, broker: str, request: pytest.FixtureRequest) -> Iterator[Client]:
    """A client of this test's library, with all that was opened through it closed afterwards."""
    driver = request.getfixturevalue("java_driver") if library == "java" else None
    client = connect(library, broker, driver)
    yield client
    client.close()


@pytest.fixture
def new_name() -> NewName:
    """A function that makes names which no other test uses."""
    return lambda prefix: f"{prefix}-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def new_topic(client: Client, new_name: NewName) -> NewTopic:
    """A function that creates a topic, waits until it is known, and returns its name."""

    def create(partitions: int = 1, **configs: str) -> str:
        topic = new_name("topic")
        client.create_topic(
            topic, partitions, {name.replace("_", "."): value for name, value in configs.items()}
        )
        wait_until(lambda: _is_served(client, topic, partitions), f"{topic} to have {partitions} partitions")
        return topic

    return create


def _is_served(client: Client, topic: str, partitions: int) -> bool:
    # Apache Kafka names a new topic some time before its partitions have a leader that answers.
    try:
        return client.partitions(topic) == partitions and all(
            client.offset(TopicPartition(topic, number), "latest") == 0 for number in range(partitions)
        )
    except Refused as refused:
        if refused.error.retriable:
            return False
        raise
