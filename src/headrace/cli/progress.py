"""A line on standard error that counts, for work that takes longer than a moment while somebody watches."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from types import TracebackType

PATIENCE_S: Final = 1.0
EVERY_S: Final = 0.1


class Progress:
    """Counts records, and shows the count from the second second on, if standard error is a terminal.

    `total` is how much there is to do, in whatever unit `advance` is told of; without it there is no bar.
    """

    def __init__(self, verb: str, *, total: int | None, wanted: bool = True) -> None:
        self._verb = verb
        self._total = total
        self._watched = wanted and sys.stderr.isatty()
        self._began = time.monotonic()
        self._next = self._began + PATIENCE_S
        self._records = 0
        self._done = 0
        self._display: Any = None

    def advance(self, records: int, amount: int) -> None:
        """Count `records` more, which are `amount` of the total."""
        self._records += records
        self._done += amount
        if self._watched and time.monotonic() >= self._next:
            self._next = time.monotonic() + EVERY_S
            self._show()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._display is not None:
            self._display.stop()

    def _show(self) -> None:
        if self._display is None:
            self._display = self._open()
        self._display.update(0, completed=self._done, description=self._description())

    def _open(self) -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Display

        columns: list[Any] = [TextColumn("{task.description}")]
        if self._total:
            columns += [BarColumn(), TimeRemainingColumn()]
        display = Display(*columns, console=Console(stderr=True), transient=True)
        display.add_task(self._description(), total=self._total)
        display.start()
        return display

    def _description(self) -> str:
        rate = self._records / max(time.monotonic() - self._began, 0.001)
        return f"{self._records:,} records {self._verb}, {rate:,.0f} a second"
