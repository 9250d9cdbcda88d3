"""A broker in a process of its own: one that can be killed, to see what survives, or serves a program."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final, Self

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from pathlib import Path

READY: Final = "headrace broker ready on "
STOP_SECONDS: Final = 15


class BrokerDidNotStart(HeadraceError):
    """The broker's process ended before it was ready."""


class BrokerProcess:
    """A broker that keeps its data in `folder` and its port over restarts.

    `kill()` is SIGKILL: what a power cut of the process looks like. `start()` after it recovers. As a context
    manager it is started, and stopped cleanly at the end. An `attached` one does not hear the Ctrl-C of the
    terminal, and ends when the program that started it ends, however that happens.
    """

    def __init__(self, folder: Path, *arguments: str, port: int = 0, attached: bool = False) -> None:
        self._folder = folder
        self._attached = attached
        self._arguments = arguments
        self._address = f"127.0.0.1:{port}"
        self._process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        """The address to give to clients as `bootstrap.servers`."""
        return self._address

    @property
    def pid(self) -> int:
        """The process id of the broker, which must be running."""
        assert self._process is not None, "the broker was not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.poll() is None

    def command(self) -> list[str]:
        """The command that starts the broker."""
        listen = ["--listen", self._address, "--data", str(self._folder)]
        module = "headrace.broker.attached" if self._attached else "headrace.broker"
        return [sys.executable, "-m", module, *listen, *self._arguments]

    def launch(self) -> subprocess.Popen[str]:
        """Start the process, and do not wait for it."""
        self._process = subprocess.Popen(
            self.command(), stdout=subprocess.PIPE, text=True, start_new_session=self._attached
        )
        return self._process

    def start(self) -> Self:
        """Start the broker and return when it accepts connections."""
        process = self.launch()
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith(READY):
            code = self._end()
            raise BrokerDidNotStart(f"the broker ended with {code} before it was ready; its errors say why")
        self._address = line.removeprefix(READY).strip()
        return self

    def kill(self) -> None:
        """End the process at once, with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._end()

    def stop(self) -> int:
        """Let the broker stop cleanly, and give its exit code; one that does not stop is killed."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        return self._end()

    def restart(self) -> None:
        """Kill the broker and start it again, on the same folder and port."""
        self.kill()
        self.start()

    def _end(self) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        with process:
            return process.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
