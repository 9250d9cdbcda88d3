"""Termination of commands: exit codes, error messages on standard error, and signals."""

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
