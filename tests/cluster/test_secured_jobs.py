"""Jobs on an Apache Kafka with TLS and SCRAM: exactly once, and their secret is nowhere to be found."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest

from tests.cluster import pipeline
from tests.cluster.shop import closing_orders, create_topic, expected, found, order, read_committed, write
from tools.secured_kafka import SecuredKafka
from tools.spark_cluster import SparkCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

ORDERS = 4_000
PATIENCE_S = 400.0
EXPLAINED = '''

@app.job(into=app.topic("explained", key="number"))
def explained():
    """A job that prints all plans of its rows, and of the same topic as a source of Spark's."""
    orders.df.explain(True)
    reader = orders.df.sparkSession.readStream.format("headrace").option("subscribe", "orders")
    reader.option("kafka.bootstrap.servers", "production://ADDRESS").load().explain(True)
    return orders.df.filter("amount < 0")
'''
COPIED = '''
from headrace import App

app = App("copying")
orders = app.stream("orders", "number long, amount long")


@app.job(into=app.topic("copied", key="number"))
def copied():
    """Orders of 500 and more."""
    return orders.df.filter("amount >= 500")
'''
SETTINGS = """
[broker]
address = "{address}"
security = "production"

[security.production]
security.protocol = "SASL_SSL"
sasl.mechanism = "SCRAM-SHA-512"
sasl.username = "jobs"
ssl.ca.location = "{folder}/ca.pem"

[spark.settings]
"spark.sql.shuffle.partitions" = 2
"spark.eventLog.enabled" = true
"spark.eventLog.dir" = "file://{logs}"
"spark.eventLog.compress" = false
"spark.sql.ui.explainMode" = "extended"
"spark.log.level" = "INFO"
"""


class CommandLines(threading.Thread):
    """Collects the command lines of all processes of this machine while the block lasts."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: set[bytes] = set()
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.05):
            for process in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    self.seen.add(process.read_bytes())
                except OSError:
                    continue  # it has ended

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


class Project:
    """A project whose broker is secured, run in processes of their own."""

    def __init__(self, folder: Path, kafka: SecuredKafka, text: str, **environment: str) -> None:
        self.folder = folder / "project"
        self.logs = folder / "events"
        for made in (self.folder, self.logs, folder / "local"):
            made.mkdir()
        settings = SETTINGS.format(address=kafka.listeners["SASL_SSL"], folder=kafka.folder, logs=self.logs)
        (self.folder / "headrace.toml").write_text(settings)
        (self.folder / "pipeline.py").write_text(text)
        self.printed = self.folder / "printed"
        local = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(folder / "local")}
        self._environment = os.environ | local | environment

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start `headrace run`."""
        command = [sys.executable, "-m", "headrace.cli", "run", "pipeline.py", *arguments]
        with self.printed.open("ab") as printed:
            return subprocess.Popen(
                command, cwd=self.folder, env=self._environment, stdout=printed, stderr=subprocess.STDOUT
            )

    def run(self, *arguments: str) -> int:
        """Run it to its end; the exit code."""
        return self.start("--once", *arguments).wait(PATIENCE_S)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """A broker of these tests alone: the jobs of all of them have the same names."""
    with SecuredKafka(tmp_path_factory.mktemp("jobs")) as kafka:
        create_topic(kafka.bootstrap)
        write(kafka.bootstrap, map(order, range(ORDERS)))
        write(kafka.bootstrap, closing_orders())
        yield kafka


def forms(secret: str) -> list[bytes]:
    """The secret as it could appear: as it is, in base64, and in UTF-16."""
    plain = f"jobs\0{secret}".encode()
    return [
        secret.encode(),
        base64.b64encode(secret.encode()),
        base64.b64encode(b"\0" + plain),
        secret.encode("utf-16-le"),
    ]


def files_with(folder: Path, secret: str) -> list[Path]:
    return [
        file
        for file in folder.rglob("*")
        if file.is_file() and any(form in file.read_bytes() for form in forms(secret))
    ]


def kill_after(process: subprocess.Popen[bytes], kafka: SecuredKafka, results: int) -> None:
    """Kill a run as soon as it has written this many results."""
    deadline = time.monotonic() + PATIENCE_S
    while sum(map(len, found(kafka.bootstrap).values())) < results:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.5)
    process.kill()
    process.wait()


def test_a_killed_run_is_exact_and_its_secret_is_nowhere(kafka: SecuredKafka, tmp_path: Path) -> None:
    text = Path(pipeline.__file__).read_text() + EXPLAINED.replace("ADDRESS", kafka.listeners["SASL_SSL"])
    project = Project(tmp_path, kafka, text, HEADRACE_SASL_PASSWORD=kafka.password)
    with CommandLines() as lines:
        kill_after(project.start("--master", "local[2]"), kafka, 100)
        assert project.run("--master", "local[2]") == 0, project.printed.read_text(errors="replace")
    assert found(kafka.bootstrap) == expected(map(order, range(ORDERS)))
    printed = project.printed.read_text(errors="replace")
    assert "== Physical Plan ==" in printed
    assert "production://" in printed
    assert files_with(project.logs, "SparkListenerSQLExecutionStart")
    assert len(lines.seen) > 10
    assert not files_with(tmp_path, kafka.password)
    assert not [line for line in lines.seen for form in forms(kafka.password) if form in line]


def test_workers_of_a_cluster_resolve_the_profile_from_their_own_environment(
    kafka: SecuredKafka, tmp_path: Path
) -> None:
    workers = {
        "HEADRACE_SECURITY_PROTOCOL": "SASL_SSL",
        "HEADRACE_SASL_MECHANISM": "SCRAM-SHA-256",
        "HEADRACE_SASL_USERNAME": "jobs",
        "HEADRACE_SASL_PASSWORD_FILE": str(kafka.folder / "password"),
        "HEADRACE_SSL_CA_LOCATION": str(kafka.folder / "ca.pem"),
    }
    with pytest.MonkeyPatch.context() as started:
        for name, value in workers.items():
            started.setenv(name, value)
        cluster = SparkCluster(1)
        cluster.start()
    try:
        project = Project(tmp_path, kafka, COPIED, HEADRACE_SASL_PASSWORD=kafka.password)
        assert project.run("--master", cluster.master) == 0, project.printed.read_text(errors="replace")
    finally:
        cluster.close()
    numbers = [row["number"] for row in read_committed(kafka.bootstrap, "copied")]
    assert sorted(numbers) == [number for number in range(ORDERS) if order(number)["amount"] >= 500]
    assert not files_with(tmp_path, kafka.password)


def test_a_wrong_password_is_told_without_the_password(kafka: SecuredKafka, tmp_path: Path) -> None:
    project = Project(tmp_path, kafka, COPIED, HEADRACE_SASL_PASSWORD="a-wrong-password")
    assert project.run() == 1
    printed = project.printed.read_text()
    assert "refused the authentication as 'jobs' by SCRAM-SHA-512" in printed
    assert "a-wrong-password" not in printed
