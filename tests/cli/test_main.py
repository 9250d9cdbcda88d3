"""The command as the shell starts it: what it imports, what it says, and how it ends."""

import os
import re
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cli.terminal import DEADLINE_S

HEAVY = ("typer", "rich", "confluent_kafka", "kio", "numba", "headrace.broker")


def headrace(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, **environment},
        timeout=DEADLINE_S,
        check=False,
    )


def imported_by(script: str) -> set[str]:
    code = f"{script}\nimport sys; print(*(name for name in {HEAVY!r} if name in sys.modules))"
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    return set(out.stdout.splitlines()[-1].split() if out.stdout.strip() else ())


def test_the_broker_starts_past_what_only_people_need() -> None:
    help_of_the_broker = (
        "import sys; sys.argv[1:] = ['broker', '--help']\nfrom headrace.cli.main import main\n"
    )
    loaded = imported_by(help_of_the_broker + "try: main()\nexcept SystemExit: pass")
    assert loaded.isdisjoint({"typer", "rich", "confluent_kafka"})
    assert "headrace.broker" in loaded


def test_the_commands_import_nothing_heavy_before_they_run() -> None:
    assert imported_by("import headrace.cli.app") == {"typer"}


def test_the_broker_is_listed_among_the_commands_and_explains_itself(tmp_path: Path) -> None:
    listed = headrace("--help", folder=tmp_path)
    assert listed.returncode == 0
    assert re.search(r"\bbroker\b.*Run a broker", listed.stdout)
    own = headrace("broker", "--help", folder=tmp_path)
    assert own.returncode == 0
    assert "--listen" in own.stdout


def test_the_version_is_that_of_the_package(tmp_path: Path) -> None:
    assert headrace("--version", folder=tmp_path).stdout == f"headrace {version('headrace')}\n"


@pytest.mark.parametrize(
    "command",
    [
        ["topic", "list"],
        ["topic", "create", "t"],
        ["produce", "t"],
        ["consume", "t"],
        ["group", "list"],
        ["group", "describe", "g"],
        ["txn", "list"],
    ],
)
def test_an_unreachable_broker_is_explained(tmp_path: Path, closed_port: int, command: list[str]) -> None:
    (tmp_path / "headrace.toml").write_text(f'[broker]\naddress = "127.0.0.1:{closed_port}"\n')
    outcome = headrace(*command, folder=tmp_path, HEADRACE_BROKER="")
    assert outcome.returncode == 1
    assert f"127.0.0.1:{closed_port} (from {tmp_path / 'headrace.toml'}) is not reachable" in outcome.stderr
    assert "connection refused" in outcome.stderr
    assert "headrace broker" in outcome.stderr


def test_a_host_that_does_not_exist_is_explained(tmp_path: Path) -> None:
    outcome = headrace("topic", "list", "--broker", "no-such-host.invalid:9092", folder=tmp_path)
    assert outcome.returncode == 1
    assert "no-such-host.invalid:9092 (from --broker) is not reachable" in outcome.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["topic"],
        ["topics"],
        ["topic", "create"],
        ["topic", "list", "--broker", "nonsense:port"],
        ["consume", "t", "-n", "0"],
    ],
)
def test_a_misuse_ends_with_two(tmp_path: Path, command: list[str]) -> None:
    assert headrace(*command, folder=tmp_path).returncode == 2


def test_something_else_than_a_broker_is_explained(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        command = [sys.executable, "-m", "headrace.cli", "txn", "list", "--broker", f"127.0.0.1:{port}"]
        asking = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        stranger.accept()[0].close()  # the probe
        connection, _ = stranger.accept()
        with connection:
            connection.recv(100)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            _, err = asking.communicate(timeout=DEADLINE_S)
    assert asking.returncode == 1
    assert "does not seem to speak Kafka" in err
