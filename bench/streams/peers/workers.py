"""As many processes of a program as there are cores: Python computes on one core in each."""

import signal
import subprocess
import sys
from types import FrameType


def start_workers(module: str, count: int, *more: str) -> None:
    """Run a module `count` times, with the task, a number and further arguments, until this process stops."""
    command = [sys.executable, "-m", module, sys.argv[1]]
    workers = [subprocess.Popen([*command, str(number), *more]) for number in range(count)]

    def end(_number: int, _frame: FrameType | None) -> None:
        for worker in workers:
            worker.kill()

    signal.signal(signal.SIGTERM, end)
    sys.exit(max(abs(worker.wait()) for worker in workers))
