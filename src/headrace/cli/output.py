"""Output of commands (lines, tables, JSON, confirmations, progress), exit codes, errors and signals."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import time
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self

import typer
from typer.core import TyperGroup

from headrace.errors import HeadraceError, Misuse
from headrace.printable import json_text, printable, printable_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import TracebackType

    from rich.console import Console


UNITS: Final = ("KiB", "MiB", "GiB", "TiB")
UNBOUNDED: Final = 100_000
"""The width of a table that is written to a pipe: names are not truncated there."""

FAILED: Final = 1
MISUSED: Final = 2
INTERRUPTED: Final = 130
"""The exit code after Ctrl-C, as in shells: 128 and the number of the signal."""


def print_json(value: Any, *, default: Callable[[Any], Any] | None = None) -> None:
    """Print `value` as a JSON document; data classes are supported.

    `default` converts values of other types.
    """
    typer.echo(json_text(value, default=default or _plain, indent=2))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under headings; columns of numbers are right-aligned, and missing values shown as `-`."""
    from rich.table import Table

    cells = [list(row) for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for position, heading in enumerate(headings):
        is_number = all(isinstance(row[position], int | float | None) for row in cells)
        table.add_column(printable_line(heading), justify="right" if is_number else "left", no_wrap=True)
    for row in cells:
        table.add_row(*(cell_text(value) for value in row))
    _print(table)


def print_line(text: str) -> None:
    """Print one line of a result."""
    typer.echo(printable(text))


def note(text: str) -> None:
    """Print a message on standard error, so that it does not mix with the result."""
    typer.echo(printable(text), err=True)


def confirm(question: str, *, yes: bool) -> None:
    """Ask the user to confirm, unless `--yes` was given; without a confirmation the command ends."""
    if yes:
        return
    if not sys.stdin.isatty():
        from headrace.errors import Misuse

        raise Misuse(
            f"standard input is not a terminal, so this cannot be confirmed: {question}\n"
            "To confirm, repeat the command with --yes."
        )
    # Not typer.confirm: it writes a space to standard output, which is for results only.
    typer.echo(printable(f"{question} [y/N]: "), nl=False, err=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise typer.Abort


def size_text(size_bytes: int | None) -> str | None:
    """A size in bytes in a readable unit.

    >>> size_text(1536)
    '1.5 KiB'
    """
    if size_bytes is None or size_bytes < 1024:
        return None if size_bytes is None else f"{size_bytes} B"
    power = min((size_bytes.bit_length() - 1) // 10, len(UNITS))
    return f"{size_bytes / 1024**power:.1f} {UNITS[power - 1]}"


def cell_text(value: object) -> str:
    r"""A value as a table shows it: a dash for nothing, and control characters escaped.

    >>> cell_text(None), cell_text(["orders/0", "orders/1"]), cell_text("a\x1b[2J")
    ('-', 'orders/0,orders/1', 'a\\x1b[2J')
    """
    if value is None or value in ((), []):
        return "-"
    if isinstance(value, tuple | list):
        return printable_line(",".join(map(str, value)))
    return printable_line(str(value))


def _print(table: Any) -> None:
    console = _console()
    if console.is_terminal:
        console.print(table)
        return
    # Rich fills the last column up with spaces, which are noise in a pipe or a file.
    with console.capture() as captured:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def _console() -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() else UNBOUNDED
    # rich must not interpret markup in names.
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


PATIENCE_S: Final = 1.0
EVERY_S: Final = 0.1


class Progress:
    """Counts records, and shows the count after one second if standard error is a terminal.

    `total` is the amount of work in the unit of `advance`; without it there is no bar.
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
        """Add `records` to the count, and `amount` to the progress."""
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


class RequestFailed(HeadraceError):
    """The broker rejected a request."""

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code
        """Kafka's error code, or 0 if there is none."""


class CommandGroup(TyperGroup):
    """The command tree; expected errors are printed as messages, without a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with errors_explained():
            return super().invoke(ctx)


@contextlib.contextmanager
def errors_explained() -> Iterator[None]:
    """Print expected errors as messages, and exit with their code."""
    try:
        yield
    except HeadraceError as error:
        typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
        typer.echo(printable(str(error)), err=True)
        raise typer.Exit(MISUSED if isinstance(error, Misuse) else FAILED) from None
    except BrokenPipeError:
        discard_standard_output()
        raise typer.Exit(0) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def discard_standard_output() -> None:
    """Discard the buffer of standard output.

    The reader of the pipe has exited (`| head`), or the disk is full. Python would flush the buffer again at
    exit, and print an error.
    """
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def terminated_like_interrupt() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C: offsets are committed and child processes stopped."""

    def stop(_signal: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
