"""A broker as a child process; `python -m headrace.broker.process` runs one that exits with its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final, Self

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from pathlib import Path

READY: Final = "headrace broker ready on "
STOP_SECONDS: Final = 15
PR_SET_PDEATHSIG: Final = 1


class BrokerDidNotStart(HeadraceError):
    """The broker's process exited before it was ready."""


class BrokerProcess:
    """A broker process with its data in `folder`; restarts keep the port.

    `kill()` sends SIGKILL, and `start()` after it recovers. As a context manager it starts the broker, and
    stops it cleanly at the end. An `attached` broker ignores Ctrl-C in the terminal, and exits when the
    process that started it exits, even by a crash.
    """

    def __init__(self, folder: Path, *arguments: str, port: int = 0, attached: bool = False) -> None:
        self._folder = folder
        self._attached = attached
        self._arguments = arguments
        self._address = f"127.0.0.1:{port}"
        self._process: subprocess.Popen[str] | None = None

    @property
    def bootstrap(self) -> str:
        """The address for `bootstrap.servers` of clients."""
        return self._address

    @property
    def pid(self) -> int:
        """The process id; the broker must be running."""
        assert self._process is not None, "the broker was not started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def command(self) -> list[str]:
        """The command line of the broker."""
        listen = ["--listen", self._address, "--data", str(self._folder)]
        module = "headrace.broker.process" if self._attached else "headrace.broker"
        return [sys.executable, "-m", module, *listen, *self._arguments]

    def launch(self) -> subprocess.Popen[str]:
        """Start the process without waiting until it is ready."""
        self._process = subprocess.Popen(
            self.command(), stdout=subprocess.PIPE, text=True, start_new_session=self._attached
        )
        return self._process

    def start(self) -> Self:
        """Start the broker; returns when it accepts connections."""
        process = self.launch()
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith(READY):
            code = self._end()
            raise BrokerDidNotStart(f"the broker exited with code {code}; its error output has the reason")
        self._address = line.removeprefix(READY).strip()
        return self

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._end()

    def stop(self) -> int:
        """Stop the broker cleanly; returns its exit code. It is killed if it does not stop in time."""
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
        """Kill the broker, and start it again on the same folder and port."""
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


def exit_with_parent() -> None:
    """Stop this process when its parent process exits, so that no orphan keeps the data folder locked.

    The kernel sends the signal when the parent *thread* ends. The process continues as long as the parent
    process exists.
    """
    parent = os.getppid()

    def stop_if_orphaned(_signal: int, _frame: Any) -> None:
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGUSR1, stop_if_orphaned)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
    if os.getppid() != parent:
        sys.exit(0)


if __name__ == "__main__":
    from headrace.broker.__main__ import main

    exit_with_parent()
    sys.exit(main())
