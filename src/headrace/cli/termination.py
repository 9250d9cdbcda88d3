"""How a command ends: exit codes, error messages on standard error, and signals."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperGroup

from headrace.errors import HeadraceError, Misuse
from headrace.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

FAILED: Final = 1
MISUSED: Final = 2
INTERRUPTED: Final = 130
"""What shells say of a program that Ctrl-C ended: 128 and the number of the signal."""


class RequestFailed(HeadraceError):
    """The broker rejected a request."""

    def __init__(self, message: str, *, code: int = 0) -> None:
        super().__init__(message)
        self.code = code
        """Kafka's error code, or 0 where the broker gave none."""


class CommandGroup(TyperGroup):
    """The commands of `headrace`: expected errors end in a message, never in a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named on the command line."""
        with errors_explained():
            return super().invoke(ctx)


@contextlib.contextmanager
def errors_explained() -> Iterator[None]:
    """Turn expected errors into a message and an exit code."""
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
    """Discard what standard output still buffers.

    The reader of the pipe has left (`| head`), or the disk is full. Python would flush once more when it
    ends, and complain; this gives it somewhere else to flush to.
    """
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def terminated_like_interrupt() -> Iterator[None]:
    """Let SIGTERM end the command as Ctrl-C does: with its offsets committed, and what it started ended."""

    def stop(_signal: int, _frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
