"""Jobs on an Apache Kafka with TLS and SASL: exactly once, and their secrets are nowhere to be found."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster import pipeline
from tests.cluster.identity import token_endpoint
from tests.cluster.shop import closing_orders, create_topic, expected, found, order, read_committed, write
from tests.leaks import CommandLines, files_with, is_in
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
{profile}

[spark.settings]
"spark.sql.shuffle.partitions" = 2
"spark.eventLog.enabled" = true
"spark.eventLog.dir" = "file://{logs}"
"spark.eventLog.compress" = false
"spark.sql.ui.explainMode" = "extended"
"spark.log.level" = "INFO"
"""


SCRAM = """
security.protocol = "SASL_SSL"
sasl.mechanism = "SCRAM-SHA-512"
sasl.username = "jobs"
ssl.ca.location = "{folder}/ca.pem"
"""
MUTUAL = """
security.protocol = "SSL"
ssl.ca.location = "{folder}/ca.pem"
ssl.certificate.location = "{folder}/client.pem"
ssl.key.location = "{folder}/client.key"
ssl.key.password = "{password}"
"""
TOKENS = """
security.protocol = "SASL_SSL"
sasl.mechanism = "OAUTHBEARER"
sasl.oauthbearer.client.id = "client"
ssl.ca.location = "{folder}/ca.pem"
"""


class Project:
    """A project whose broker is secured, run in processes of their own."""

    def __init__(
        self, folder: Path, kafka: SecuredKafka, text: str, profile: str = SCRAM, **environment: str
    ) -> None:
        self.folder = folder / "project"
        self.logs = folder / "events"
        for made in (self.folder, self.logs, folder / "local"):
            made.mkdir()
        address = kafka.listeners["MUTUAL" if profile == MUTUAL else "SASL_SSL"]
        written = profile.format(folder=kafka.folder, password=kafka.password)
        settings = SETTINGS.format(address=address, profile=written, logs=self.logs)
        (self.folder / "headrace.toml").write_text(settings)
        (self.folder / "pipeline.py").write_text(text.replace("ADDRESS", address))
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
    text = Path(pipeline.__file__).read_text() + EXPLAINED
    project = Project(tmp_path, kafka, text, HEADRACE_SASL_PASSWORD=kafka.password)
    with CommandLines() as lines:
        kill_after(project.start("--master", "local[2]"), kafka, 100)
        assert project.run("--master", "local[2]") == 0, project.printed.read_text(errors="replace")
    assert found(kafka.bootstrap) == expected(map(order, range(ORDERS)))
    check_traces(project, lines, kafka.password)
    assert not files_with(tmp_path, kafka.password)


def check_traces(project: Project, lines: CommandLines, secret: str) -> None:
    """Pass if plans and events were written, and no process had the secret among its arguments."""
    printed = project.printed.read_text(errors="replace")
    assert "== Physical Plan ==" in printed
    assert "production://" in printed
    assert files_with(project.logs, "SparkListenerSQLExecutionStart")
    assert len(lines.seen) > 10
    assert not [line for line in lines.seen if is_in(line, secret)]


def test_the_password_of_a_key_is_nowhere_but_in_its_profile(kafka: SecuredKafka, tmp_path: Path) -> None:
    text = (COPIED + EXPLAINED).replace("copi", "mutual").replace("explained", "mutually_explained")
    project = Project(tmp_path, kafka, text, MUTUAL)
    with CommandLines() as lines:
        assert project.run("--master", "local[2]") == 0, project.printed.read_text(errors="replace")
    check_traces(project, lines, kafka.password)
    assert files_with(tmp_path, kafka.password) == [project.folder / "headrace.toml"]


def test_the_client_secret_of_tokens_is_nowhere(kafka: SecuredKafka, tmp_path: Path) -> None:
    text = (COPIED + EXPLAINED).replace("copi", "tokens").replace("explained", "tokens_explained")
    secret = secrets.token_urlsafe(18)
    with token_endpoint(kafka.folder, secret) as endpoint, CommandLines() as lines:
        environment = {
            "HEADRACE_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL": endpoint.url,
            "HEADRACE_SASL_OAUTHBEARER_CLIENT_SECRET": secret,
            "HEADRACE_HTTPS_CA_LOCATION": str(endpoint.ca),
        }
        project = Project(tmp_path, kafka, text, TOKENS, **environment)
        assert project.run("--master", "local[2]") == 0, project.printed.read_text(errors="replace")
    assert endpoint.asked
    check_traces(project, lines, secret)
    assert not files_with(tmp_path, secret)


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
