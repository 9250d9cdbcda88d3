"""A broker that crashes at a given step: `python -m tests.broker.transactions.crashing_broker`.

The file CRASH_AT contains the number of the step, counted from 0: a write to the transaction log, a marker
or a response. Before that step the process exits, as by SIGKILL.
"""

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from headrace.broker.__main__ import main
from headrace.broker.transactions.coordinator import TransactionCoordinator
from headrace.broker.transactions.partitions import LogTransactionPartitions
from headrace.broker.transactions.state_manager import TransactionStateManager

COMMAND = [sys.executable, "-m", "tests.broker.transactions.crashing_broker"]


def step() -> None:
    """Exit if this is the given step."""
    file = Path(os.environ["CRASH_AT"])
    if not file.exists():
        return
    left = int(file.read_text())
    if left == 0:
        file.unlink()
        os._exit(137)
    file.write_text(str(left - 1))


def before(act: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, with a step before it."""

    @wraps(act)
    def stepped(*arguments: Any, **named: Any) -> Any:
        step()
        return act(*arguments, **named)

    return stepped


def after(act: Callable[..., Any]) -> Callable[..., Any]:
    """The same coroutine function, with a step between its result and the response."""

    @wraps(act)
    async def stepped(*arguments: Any, **named: Any) -> Any:
        result = await act(*arguments, **named)
        step()
        return result

    return stepped


if __name__ == "__main__":
    for owner, name, stepping in (
        (TransactionStateManager, "_append", before),
        (LogTransactionPartitions, "write_marker", before),
        (TransactionCoordinator, "initialize", after),
        (TransactionCoordinator, "end", after),
    ):
        setattr(owner, name, stepping(getattr(owner, name)))
    sys.exit(main(sys.argv[1:]))
