"""Retries with exponential backoff."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, TypeVar

from headrace.client.errors import BrokerUnreachable, RequestRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from headrace.errors import HeadraceError

FIRST_BACKOFF_S = 0.005
MAX_BACKOFF_S = 0.2

Result = TypeVar("Result")


def attempts(timeout_s: float, *, max_backoff_s: float = MAX_BACKOFF_S) -> Iterator[int]:
    """Yield the numbers of attempts, with an exponential and jittered backoff, until `timeout_s` have passed.

    At least one attempt is made. The caller leaves the loop when an attempt succeeds.
    """
    deadline = time.monotonic() + timeout_s
    backoff_s = FIRST_BACKOFF_S
    number = 1
    while True:
        yield number
        if time.monotonic() >= deadline:
            return
        time.sleep(backoff_s * random.uniform(0.5, 1.5))
        backoff_s = min(backoff_s * 2, max_backoff_s)
        number += 1


def retry(
    call: Callable[[], Result],
    *,
    timeout_s: float,
    retriable: Collection[int],
    on_error: Callable[[HeadraceError], None] | None = None,
    max_backoff_s: float = MAX_BACKOFF_S,
) -> Result:
    """Return the result of `call`, which is repeated after lost connections and `retriable` error codes.

    `on_error` gets each error before the next attempt. The last error is raised after `timeout_s`.
    """
    error: BrokerUnreachable | RequestRefused
    for _ in attempts(timeout_s, max_backoff_s=max_backoff_s):
        try:
            return call()
        except BrokerUnreachable as lost:
            error = lost
        except RequestRefused as refusal:
            if refusal.code not in retriable:
                raise
            error = refusal
        if on_error is not None:
            on_error(error)
    raise error
