"""Waiting for what will soon be possible: coordinators that load, transactions that are about to end."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.2


def attempts(within_s: float) -> Iterator[int]:
    """Numbers of attempts, with growing and jittered pauses between them, until `within_s` have passed.

    At least one attempt is made. The caller leaves the loop when it has succeeded.
    """
    deadline = time.monotonic() + within_s
    pause_s = FIRST_PAUSE_S
    number = 1
    while True:
        yield number
        if time.monotonic() >= deadline:
            return
        time.sleep(pause_s * random.uniform(0.5, 1.5))
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
        number += 1
