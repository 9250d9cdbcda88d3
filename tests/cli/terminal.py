"""Runs commands as a user at a terminal does: to their end, or in the background."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from headrace.cli.app import app

DEADLINE_S = 100.0
TURN_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


class Terminal:
    """Commands of `headrace`, for the broker at one address."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._started: list[subprocess.Popen[bytes]] = []

    def run(self, *arguments: str, stdin: str | bytes = b"") -> Outcome:
        """Run a command to its end in this process."""
        result = CliRunner().invoke(
            app, list(arguments), input=stdin, env={"HEADRACE_BROKER": self.bootstrap}
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Outcome(code=result.exit_code, out=result.stdout, err=result.stderr)

    def do(self, *arguments: str, stdin: str | bytes = b"") -> Outcome:
        """Run a command that must succeed."""
        outcome = self.run(*arguments, stdin=stdin)
        assert outcome.code == 0, outcome.err
        return outcome

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a command in a process of its own."""
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.cli", *arguments],
            env={**os.environ, "HEADRACE_BROKER": self.bootstrap},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        """End what is still running."""
        for process in self._started:
            with process:  # which closes its pipes and waits
                if process.poll() is None:
                    process.kill()


def interrupt(process: subprocess.Popen[bytes], number: int = signal.SIGINT) -> tuple[int, bytes, bytes]:
    """Send a signal, and wait for the end: exit code, output and errors."""
    process.send_signal(number)
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, err


def wait_until(condition: Callable[[], object], what: str, *, deadline_s: float = DEADLINE_S) -> None:
    """Return when the condition holds; `what` names it for the failure."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(TURN_S)
