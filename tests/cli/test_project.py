"""`headrace init` and `headrace run`."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from headrace.streams.pipeline import load_app
from tests.cli.terminal import DEADLINE_S, interrupt

PIPELINE = """
from headrace import App

app = App("shop")
orders = app.stream("orders", "product string, amount double", partitions=2)

@app.job(into=app.topic("large", key="product"))
def large():
    return orders.df.filter("amount > 100")
"""


def init(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace.cli", "init", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)


def test_a_project_has_the_name_that_was_given(tmp_path: Path) -> None:
    done = init(tmp_path, "bakery")
    assert done.returncode == 0, done.stderr
    assert "cd bakery && headrace run pipeline.py" in done.stdout
    app = load_app(tmp_path / "bakery" / "pipeline.py")
    assert app.name == "bakery"
    assert [job.name for job in app.jobs] == ["order_status", "revenue", "alerts"]
    assert not any("NAME" in file.read_text() for file in (tmp_path / "bakery").glob("*.*"))


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "pipeline.py").write_text("mine")
    done = init(tmp_path, "bakery", "--into", ".")
    assert done.returncode == 2
    assert "pipeline.py exists already" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["pipeline.py"]


@pytest.mark.demo
@pytest.mark.timeout(240)
def test_the_tests_of_a_new_project_pass(tmp_path: Path) -> None:
    init(tmp_path, "bakery")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly"]
    done = subprocess.run(command, cwd=tmp_path / "bakery", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a pipeline in it."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "pipeline.py").write_text(PIPELINE)
    return folder


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "headrace.cli", *arguments]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}


def headrace(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def documents(process: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True


@pytest.mark.timeout(240)
def test_jobs_run_on_a_broker_of_their_own_next_to_their_file_until_ctrl_c(project: Path) -> None:
    with subprocess.Popen(
        command("run", "shop/pipeline.py", "--json"),
        cwd=project.parent,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        lines = documents(process)
        found = re.search(r"up on (127\.0\.0\.1:\d+)", next(lines)["text"])
        assert found is not None
        producer = Producer({"bootstrap.servers": found[1], "log_level": 0})
        producer.produce("orders", b'{"product": "kettle", "amount": 120}')
        producer.produce("orders", b"garbled")
        assert producer.flush(DEADLINE_S) == 0
        reports = (line["jobs"][0] for line in lines if line["event"] == "reports")
        report = next(report for report in reports if report["rows"] == 2)
        assert (report["dead"], report["lag"], report["state"]) == (1, 0, "running")
        code, _, errors = interrupt(process)
    assert code == 0
    assert b"\tat " not in errors  # no stack of the JVM's
    assert not answers(found[1])
    listed = headrace(project, "job", "list", "--json")
    assert json.loads(listed.stdout)[0]["job"] == "large"
    assert (project / ".headrace" / "broker").is_dir()
    assert not (project.parent / ".headrace").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nothing.py"], 2, "nothing.py is not there"),
        (["pipeline.py", "--broker", "127.0.0.1:1", "--job", "smal"], 2, "has no job named 'smal'"),
        (["pipeline.py", "--broker", "127.0.0.1:1"], 1, "127.0.0.1:1"),
    ],
)
def test_what_stands_in_the_way_is_said_before_spark_starts(
    project: Path, arguments: list[str], code: int, message: str
) -> None:
    outcome = headrace(project, "run", *arguments)
    assert outcome.returncode == code
    assert outcome.stderr.startswith("error: ")
    assert message in outcome.stderr


def test_a_security_profile_without_a_broker_is_refused(project: Path) -> None:
    (project / "headrace.toml").write_text('[broker]\nsecurity = "production"\n')
    outcome = headrace(project, "run", "pipeline.py")
    assert outcome.returncode == 2
    assert "the security profile 'production' is chosen, and no broker is named" in outcome.stderr
