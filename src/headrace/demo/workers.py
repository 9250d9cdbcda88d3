"""The worker processes of the demo, and its chaos, which kills servers, workers and captures with SIGKILL.

A worker is started with `python -m headrace.demo.workers keep_stock BROKER`. It exits when its standard input
is closed, and therefore with the program that started it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.demo.shop import DemoServers
    from headrace.streams.runner import Runner
    from headrace.testing.redis import RedisServer


PIPELINE: Final = Path(__file__).parent / "pipeline.py"
SPARK_WORKER: Final = b"-m\0headrace.spark.daemon\0"
EVERY_S: Final = 3.0
"""Seconds between two kills."""


class Worker:
    """A function of the pipeline in its own process, which is restarted when it exits."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start the process."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.demo.workers", self.name, *self._arguments],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # with --chaos the broker is killed, which clients log
            start_new_session=True,
        )
        return self

    def restart_if_ended(self) -> None:
        """Restart the process if it has ended; messages in flight are delivered again."""
        if self._process is not None and self._process.poll() is not None:
            self._close()
            self.start()

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        if self._process is not None:
            self._process.kill()

    def _close(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            with process:
                process.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self._close()


def _end_with_input() -> None:
    while sys.stdin.buffer.read(1):
        pass
    os._exit(0)


def main() -> None:
    """Run a function of the pipeline."""
    from headrace.streams.pipeline import load_module

    threading.Thread(target=_end_with_input, daemon=True).start()
    name, *arguments = sys.argv[1:]
    getattr(load_module(PIPELINE), name)(*arguments)


if __name__ == "__main__":
    main()


class Chaos:
    """Kills one part every few seconds; each part once before any is killed again.

    A killed server restarts at once, and its clients reconnect. The demo restarts a killed worker, and the
    messages that it had acquired are delivered again.
    """

    def __init__(
        self,
        servers: DemoServers,
        workers: Sequence[Worker],
        *,
        every_s: float = EVERY_S,
        seed: int | None = None,
    ) -> None:
        self._parts: dict[str, Callable[[], None]] = {
            "the broker": servers.broker.restart,
            "PostgreSQL": servers.database.restart,
            "Redis": partial(_restart, servers.cache),
            "every Python process of Spark": kill_python_workers,
            **{f"the worker {worker.name}": worker.kill for worker in workers},
        }
        self._random = random.Random(seed)
        self._every_s = every_s
        self._next_s = 0.0
        self._left: list[str] = []
        self._killed: set[str] = set()

    def add(self, part: str, kill: Callable[[], None]) -> None:
        """Add a part, with a function that kills it and makes sure that it restarts."""
        self._parts[part] = kill

    @property
    def is_through(self) -> bool:
        """Whether each part was killed at least once."""
        return self._killed == self._parts.keys()

    def kill_next(self) -> str | None:
        """Kill the next part if it is due; returns a message about it."""
        now_s = time.monotonic()
        self._next_s = self._next_s or now_s + self._every_s / 2
        if now_s < self._next_s:
            return None
        self._left = self._left or self._random.sample(sorted(self._parts), len(self._parts))
        part = self._left.pop()
        self._parts[part]()
        self._killed.add(part)
        self._next_s = time.monotonic() + self._every_s
        return f"Chaos: {part} was killed (kill -9)."


def _restart(cache: RedisServer) -> None:
    cache.kill()
    cache.start()


def kill_captures(runner: Runner) -> None:
    """Kill the capture processes; the supervisor restarts them."""
    for capture in runner.captures:
        with suppress(ProcessLookupError):
            os.kill(capture.pid, signal.SIGKILL)


def kill_python_workers() -> None:
    """Kill the Python workers of this program's Spark; a job with a task in one of them retries its batch."""
    for process in descendants(os.getpid()):
        with suppress(OSError):
            if SPARK_WORKER in Path("/proc", str(process), "cmdline").read_bytes():
                os.kill(process, signal.SIGKILL)


def descendants(ancestor: int) -> list[int]:
    """The child processes of a process, and theirs."""
    parents = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            # Behind the name, which may have blanks in it: state, parent, and more.
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
    found, latest = list[int](), {ancestor}
    while latest:
        latest = {process for process, parent in parents.items() if parent in latest}
        found += latest
    return found
