"""How a command ends that runs until somebody stops it."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Let SIGTERM end the command as Ctrl-C does: with its offsets committed, and what it started ended."""

    def stop(_signal: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
