"""The program of one system: a process that gets a task and writes to a topic."""

import json
import os
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import psutil

from bench.processes import cpu_seconds
from bench.streams.systems import System

STOP_SECONDS = 20
COMPLAINTS = 8
STEPS = ("\tat ", "        at ", "    ", "  File ")
"""What lines of a stack begin with."""
REST_SECONDS = 1.0
AT_REST = 0.6
"""Cores: those that wait for records take some too."""
BATCH = '{"batch": '


class Running:
    """A program that runs until it is stopped; its output is stored."""

    def __init__(self, system: System, task: dict[str, Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="headrace-bench-", ignore_cleanup_errors=True)
        self._output = tempfile.TemporaryFile(mode="w+")  # noqa: SIM115  it lives as long as the process
        self._began_s = time.time()
        # In a session of its own, so that all of its processes can be ended.
        self._process = subprocess.Popen(
            [*system.command, json.dumps(task)],
            env={**system.environment, "TMPDIR": self._folder.name},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def began_s(self) -> float:
        """When it was started."""
        return self._began_s

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def wait_until_idle(self, deadline_s: float) -> None:
        """Return when it uses no more CPU, or when the time is up: a table may still be loading."""
        deadline = time.monotonic() + deadline_s
        before = self._cpu_seconds()
        while time.monotonic() < deadline:
            time.sleep(REST_SECONDS)
            now = self._cpu_seconds()
            if now - before < AT_REST * REST_SECONDS:
                return
            before = now

    def _cpu_seconds(self) -> float:
        try:
            return cpu_seconds(self._process.pid)
        except psutil.NoSuchProcess:
            return 0.0

    def stop(self) -> None:
        """Ask it to stop, and then kill all its processes."""
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._folder.cleanup()

    def batches(self) -> list[dict[str, Any]]:
        """The micro-batches that it printed: `batch`, `rows`, `ms` and `at_s`."""
        return [json.loads(line) for line in self._lines() if line.startswith(BATCH)]

    def complaints(self) -> str:
        """The last lines of its output, without stack traces."""
        printed = [line for line in self._lines() if not line.startswith((BATCH, *STEPS))]
        return "\n".join(printed[-COMPLAINTS:])

    def _lines(self) -> list[str]:
        self._output.seek(0)
        return self._output.read().splitlines()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._output.close()
