"""A running program of one system."""

import json
import subprocess
import tempfile
from types import TracebackType
from typing import Any, Self

from bench.spark.systems import System

OUTCOME = "outcome: "
STOP_SECONDS = 30


class ProgramFailed(Exception):
    """A program ended, or an act of it failed; the message holds what it wrote."""


class SparkProgram:
    """A Spark session of one system in a process of its own, which stays warm from one act to the next."""

    def __init__(self, system: System, cores: int) -> None:
        self.system = system
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  it lives as long as the process
        self._process = subprocess.Popen(
            system.command(cores),
            env=dict(system.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def await_ready(self) -> None:
        """Return when the session is open."""
        self._hear()

    def ask(self, act: str, **details: object) -> dict[str, Any]:
        """The outcome of one action."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"act": act, **details}) + "\n")
        self._process.stdin.flush()
        outcome = self._hear()
        if "failure" in outcome:
            raise ProgramFailed(f"{act} of {self.system.title} failed:\n{outcome['failure'][-6_000:]}")
        return outcome

    def close(self) -> None:
        """End the program; one that does not end is killed."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(OUTCOME):
                outcome: dict[str, Any] = json.loads(line.removeprefix(OUTCOME))
                return outcome
        raise ProgramFailed(f"The program of {self.system.title} ended; it wrote:\n{self._complaints()}")

    def _complaints(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-6_000:]

    def __enter__(self) -> Self:
        self.await_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
