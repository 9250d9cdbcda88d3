"""A worker of the demo's shop in a process of its own: `python -m headrace.demo.worker keep_stock BROKER`.

It ends when its standard input does, and so with the program that started it, however that ended.
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
    """One of the functions of the pipeline that run for ever; started again when it ends."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        """Start the process."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headrace.demo.worker", self.name, *self._arguments],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the broker is killed on purpose, and they would tell of it
            start_new_session=True,
        )
        return self

    def look_after(self) -> None:
        """Start it again if it has ended: what it had in hand comes back to it."""
        if self._process is not None and self._process.poll() is not None:
            self._close()
            self.start()

    def kill(self) -> None:
        """End it at once, with SIGKILL."""
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
    """Run the function that is named."""
    from headrace.streams.pipeline import load_module

    threading.Thread(target=_end_with_input, daemon=True).start()
    name, *arguments = sys.argv[1:]
    getattr(load_module(PIPELINE), name)(*arguments)


if __name__ == "__main__":
    main()
