"""A broker that ends with the program that started it: `python -m headrace.broker.attached`.

The kernel sends SIGTERM when the parent is gone, so that a killed program leaves no broker behind that would
hold the data folder against the next one.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

from headrace.broker.__main__ import main

PR_SET_PDEATHSIG: Final = 1


def end_with_parent() -> None:
    """Have the kernel stop this process when its parent ends; stop at once if that has happened already."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(0)


if __name__ == "__main__":
    end_with_parent()
    sys.exit(main())
