"""Running an application from its own file or from the command line, with the settings that count."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Final

from headrace.settings import Settings
from headrace.streams.display import Board, JsonLines, Lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.streams.app import App
    from headrace.streams.display import Display

SPARKS_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""PySpark repeats every error there as JSON on standard error; the supervisor has said it better."""


def run_app(
    app: App,
    *,
    jobs: Sequence[str] = (),
    once: bool = False,
    broker: str | None = None,
    master: str | None = None,
    state: str | None = None,
    seconds: float | None = None,
    as_json: bool = False,
) -> int:
    """The exit code of a run of the application: 0 if it was stopped or done, 1 if a job failed."""
    from headrace.streams.runner import Order, Runner

    settings = Settings.read()
    address = settings.broker(broker)
    order = Order(
        app=app,
        jobs=tuple(jobs),
        once=once,
        broker=None if address is None else str(address),
        master=settings.master(master),
        state=settings.state(state),
        checkpoints=settings.checkpoints(),
        spark=settings.spark(),
        seconds=seconds,
    )
    for name in SPARKS_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return Runner(order, display(as_json=as_json)).run()


def display(*, as_json: bool) -> Display:
    """A live table in a terminal, lines elsewhere, JSON for programs."""
    if as_json:
        return JsonLines()
    if not sys.stdout.isatty():
        return Lines()
    from rich.console import Console

    return Board(Console())
