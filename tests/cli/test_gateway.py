"""`headrace gateway`, `headrace broker --http`: the gateway as a process."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.cli.terminal import Terminal, interrupt


def test_a_gateway_serves_until_ctrl_c(terminal: Terminal) -> None:
    process = terminal.start("gateway", "--listen", "0")
    assert process.stdout is not None
    line = process.stdout.readline().decode().strip()
    assert line.startswith("headrace gateway ready on http://127.0.0.1:")
    assert httpx.post(f"{line.split()[-1]}/topics/over-http", json={"a": 1}).status_code == 200
    assert terminal.do("consume", "over-http", "--from", "start", "--count", "1").lines == ['{"a":1}']
    code, _, errors = interrupt(process)
    assert (code, errors) == (0, b"")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "x"], "is not [HOST:]PORT"),
        (["--listen", "0.0.0.0:0"], "add --authentication, --tls-certificate"),
        (["--listen", "0", "--authentication"], "does not use SASL"),
        (["--listen", "0", "--tls-certificate", "/dev/null"], "cannot be loaded"),
    ],
)
def test_what_stands_in_the_way_is_said(terminal: Terminal, arguments: list[str], message: str) -> None:
    outcome = terminal.run("gateway", *arguments)
    assert outcome.code == 2
    assert message in outcome.err


def test_a_broker_starts_a_gateway_that_ends_with_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace.broker", "--listen", "127.0.0.1:0", "--data", str(tmp_path)]
    with subprocess.Popen([*command, "--http", "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("headrace broker ready on ")
        url = process.stdout.readline().removeprefix("headrace gateway ready on ").strip()
        assert httpx.post(f"{url}/topics/orders", json=1, timeout=30).status_code == 200
        process.kill()
        # The gateway notices that its parent is gone, and closes its end of the pipe.
        assert process.stdout.read() == ""
