"""A worker process of the demo: `python -m headrace.demo.worker keep_stock BROKER`.

It exits when its standard input is closed, and so with the program that started it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final, Self

PIPELINE: Final = Path(__file__).parent / "pipeline.py"


class Worker:
    """A function of the pipeline in its own process, which is restarted when it exits."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start the process."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.demo.worker", self.name, *self._arguments],
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
