"""The brokers that tests run on: Headrace, and in the cluster suite Apache Kafka too."""

import os
import signal
import socket
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from xdist.remote import Producer

from headrace.testing.postgres import PostgresServer
from tests.scheduling import LOWER_PRIORITY, SparkTogether, needs_lower_priority, uses_session
from tests.soak.summary import summary_lines
from tests.warm_start import warm_start
from tools.apache_kafka import ApacheKafka

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tools.secured_kafka import SecuredKafka

# The suite tries the same examples each time, so that a red run can be seen again. Others are looked for with
# --hypothesis-profile=random, as `make soak` does. None has to be fast: how long an example takes says more
# about the machine than about the code.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("random", derandomize=False, deadline=None)
settings.load_profile("steady")

SOAK_SECONDS = 3600
"""The time limit of a soak test that declares none."""


def pytest_configure(config: pytest.Config) -> None:
    if not config.getoption("numprocesses") or hasattr(config, "workerinput"):  # workers need Hypothesis
        _hide_hypothesis(config)
        _calm_java()
    # A suite that was started in the background ignores Ctrl-C, and so would every process that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _hide_hypothesis(config: pytest.Config) -> None:
    """Keep it from the processes that tests start: their users would not have it.

    kio loads Hypothesis wherever it is installed, and a process that starts takes twice as long with it.
    """
    folder = tempfile.TemporaryDirectory(prefix="headrace-tests-")
    config.add_cleanup(folder.cleanup)
    Path(folder.name, "hypothesis.py").write_text("raise ImportError")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder.name, os.environ.get("PYTHONPATH")]))
    # A pytest among them would load plugins that need it.
    os.environ["PYTEST_ADDOPTS"] = "-p no:hypothesispytest -p no:schemathesis"


def _calm_java() -> None:
    """Let the JVM of every Spark here compile quickly instead of well, and collect garbage without threads.

    Tests run each query once over a few rows. The second compiler would make it fast for a million more, and
    takes a third of the time of both cores for that.
    """
    options = "spark.driver.defaultJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    os.environ.setdefault("PYSPARK_SUBMIT_ARGS", f"--conf '{options}' pyspark-shell")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let workers with a Spark session have the processor first: their tests take the longest in sequence."""
    if hasattr(item.config, "workerinput") and needs_lower_priority(item.nodeid):
        os.nice(LOWER_PRIORITY)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SparkTogether:
    _calm_java()
    warm_start()  # meanwhile the workers collect the tests
    return SparkTogether(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_storm_seconds, reverse=True)  # a storm that begins last leaves the other worker idle
    for item in items:
        if item.get_closest_marker("soak") and not item.get_closest_marker("timeout"):
            # Under load some take longer than the limit of other tests. An alarm that strikes in a `__del__`
            # is lost: the test fails with "Exception ignored", and may never end.
            item.add_marker(pytest.mark.timeout(SOAK_SECONDS))
    # A test that uses the session without being known to: every worker would start one.
    unknown = [item.nodeid for item in items if "spark" in _fixtures(item) and not uses_session(item.nodeid)]
    if unknown:
        raise pytest.UsageError(f"tests/scheduling.py has to say that these use Spark: {unknown}")


def _storm_seconds(item: pytest.Item) -> float:
    """The timeout that a storm declares; 0 for all other tests."""
    timeout = item.get_closest_marker("timeout")
    is_storm = item.get_closest_marker("soak") is not None
    return float(timeout.args[0]) if is_storm and timeout is not None else 0.0


def _fixtures(item: pytest.Item) -> tuple[str, ...]:
    return tuple(getattr(item, "fixturenames", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for name in ("passed", "failed") for report in terminalreporter.getreports(name)]
    if lines := list(summary_lines(reports)):
        terminalreporter.section("storms")
        for line in lines:
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def apache_kafka() -> Iterator[str]:
    """The address of an Apache Kafka that serves the whole session."""
    with ApacheKafka(heap="512M") as kafka:
        yield kafka.bootstrap


@pytest.fixture(scope="session")
def secured_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SecuredKafka"]:
    """An Apache Kafka with secured listeners that serves the whole session."""
    from tools.secured_kafka import SecuredKafka

    with SecuredKafka(tmp_path_factory.mktemp("secured")) as kafka:
        yield kafka


@pytest.fixture
def secured_bootstrap(secured_kafka: "SecuredKafka", monkeypatch: pytest.MonkeyPatch) -> str:
    """Its address with TLS and SCRAM, whose profile the clients of this test find."""
    monkeypatch.setenv("HEADRACE_PROJECT", str(secured_kafka.folder))
    return secured_kafka.bootstrap_of("scram512")


@pytest.fixture(params=["headrace", pytest.param("apache", marks=pytest.mark.cluster)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of the broker of this test."""
    if request.param == "apache":
        return str(request.getfixturevalue("apache_kafka"))
    return str(request.getfixturevalue("headrace_broker").bootstrap)


@pytest.fixture(
    params=[
        "headrace",
        pytest.param("apache", marks=pytest.mark.cluster),
        pytest.param("secured", marks=pytest.mark.cluster),
    ]
)
def any_bootstrap(request: pytest.FixtureRequest) -> str:
    """The address of the broker of this test, with its security profile: for Headrace's own clients."""
    if request.param == "headrace":
        return str(request.getfixturevalue("headrace_broker").bootstrap)
    return str(
        request.getfixturevalue({"apache": "apache_kafka", "secured": "secured_bootstrap"}[request.param])
    )


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses connections; it is bound, so that no other process can listen on it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL that serves the whole session."""
    # Not in pytest's own folder: another pytest that starts closes that to the user of the server.
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder, PostgresServer(Path(folder)) as server:
        yield server


@pytest.fixture
def database(postgres_server: PostgresServer) -> str:
    """The address of an empty database of this test's own."""
    return postgres_server.create_database(f"test_{uuid.uuid4().hex}")


@pytest.fixture(scope="session")
def spark() -> "SparkSession":
    """The one Spark session of all tests; `format("headrace")` is known to it."""
    from headrace.spark.session import local_session

    # It ends with the process: to stop it in order takes up to a minute on a busy machine, and shows nothing.
    return local_session("tests", cores=2)


@pytest.fixture(autouse=True)
def _active_session(request: pytest.FixtureRequest) -> None:
    """A call to Spark that a test interrupted leaves its thread without a session."""
    if "spark" in request.fixturenames:
        from headrace.spark import activate

        activate(request.getfixturevalue("spark"))
