"""A broker that ends with the program that started it: `python -m headrace.broker.attached`.

The kernel tells it when its parent is gone, so that a killed program leaves no broker behind that would hold
the data folder against the next one. It tells so at the end of the very *thread* that started the broker too,
which is no reason to stop: the process that it belonged to may live on.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Any, Final

from headrace.broker.__main__ import main

PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> None:
    """Stop this process when its parent ends; at once if that has happened already."""
    parent = os.getppid()

    def end_if_alone(_signal: int, _frame: Any) -> None:
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGUSR1, end_if_alone)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
    if os.getppid() != parent:
        sys.exit(0)


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main())
