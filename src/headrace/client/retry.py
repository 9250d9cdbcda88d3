"""Waiting for what will soon be possible: coordinators load, leaders move, transactions end."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

from headrace.client.errors import BrokerUnreachable, RequestRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from kio.schema.errors import ErrorCode

    from headrace.errors import HeadraceError

FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.2

Result = TypeVar("Result")


def attempts(within_s: float, *, longest_pause_s: float = LONGEST_PAUSE_S) -> Iterator[int]:
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
        pause_s = min(pause_s * 2, longest_pause_s)
        number += 1


def persist(
    act: Callable[[], Result],
    *,
    within_s: float,
    passing: Collection[ErrorCode],
    between: Callable[[HeadraceError], None] | None = None,
    longest_pause_s: float = LONGEST_PAUSE_S,
) -> Result:
    """What `act` returns once it succeeds; lost connections and refusals in `passing` are waited out.

    `between` is given each fault before the next attempt. After `within_s` the last fault is raised.
    """
    fault: BrokerUnreachable | RequestRefused
    for _ in attempts(within_s, longest_pause_s=longest_pause_s):
        try:
            return act()
        except BrokerUnreachable as lost:
            fault = lost
        except RequestRefused as refusal:
            if refusal.code not in passing:
                raise
            fault = refusal
        if between is not None:
            between(fault)
    raise fault
