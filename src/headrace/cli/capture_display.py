"""The output of a capture in a terminal, and its stop by signals."""

from __future__ import annotations

import signal
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from headrace.cli.output import print_line
from headrace.cli.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class CaptureDisplay:
    """A progress bar for the snapshot of each table, and lines for messages."""

    def __init__(self) -> None:
        self._table = ""
        self._rows = 0
        self._bar: Progress | None = None

    def tell(self, text: str) -> None:
        """Print a line."""
        self._close()
        print_line(text)
        sys.stdout.flush()

    def report(self, table: str, rows: int, total: int) -> None:
        """Show how many rows of a table were read; prints a line when the snapshot is complete."""
        if table != self._table:
            self._close()
            self._table, self._rows = table, 0
            self._bar = Progress(f"of {table} read", total=total or None)
        if self._bar is not None:
            self._bar.advance(rows - self._rows, rows - self._rows)
        self._rows = rows
        if rows == total:
            self.tell(f"snapshot of {table}: {rows:,} rows")

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
            self._bar = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


@contextmanager
def stopping_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Within this block, Ctrl-C and SIGTERM request a clean stop; a second signal stops at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _: object) -> None:
        stop()
        signal.signal(number, signal.default_int_handler)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
