"""A broker that dies at a chosen step of a transaction: `python -m tests.broker.crashing_broker`.

The file that CRASH_AT names holds the number of the step, counted from 0: a write to the transaction log, a
marker, or an answer that is about to be sent. Before that step the process ends, as by SIGKILL.
"""

import os
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from headrace.broker.__main__ import main
from headrace.broker.transactions.coordinator import Transactions
from headrace.broker.transactions.log_participants import LogParticipants
from headrace.broker.transactions.table import TransactionTable

COMMAND = [sys.executable, "-m", "tests.broker.crashing_broker"]


def step() -> None:
    """Die if this is the chosen step."""
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
    """The same coroutine function, with a step between its result and the answer to the client."""

    @wraps(act)
    async def stepped(*arguments: Any, **named: Any) -> Any:
        result = await act(*arguments, **named)
        step()
        return result

    return stepped


if __name__ == "__main__":
    for owner, name, stepping in (
        (TransactionTable, "_append", before),
        (LogParticipants, "write_marker", before),
        (Transactions, "initialize", after),
        (Transactions, "end", after),
    ):
        setattr(owner, name, stepping(getattr(owner, name)))
    sys.exit(main(sys.argv[1:]))
