"""Running an application from its own file or from the command line, with the settings that count."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from headrace.client.bootstrap import PLAINTEXT
from headrace.errors import Misuse
from headrace.settings import Settings, project_folder
from headrace.streams.display import Board, JsonLines, Lines
from headrace.streams.explanation import silence_spark

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headrace.engine.explain import ExplainedPlan
    from headrace.streams.app import App
    from headrace.streams.display import Display

NO_BROKER: Final = "127.0.0.1:9092"
"""An address for plans that read nothing."""


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
    metrics: str | None = None,
    metrics_allow_remote: bool = False,
    project: Path | None = None,
    http: str | None = None,
) -> int:
    """The exit code of a run of the application: 0 if it was stopped or done, 1 if a job failed.

    Settings are those of `project`, or of the folder of the file that defines the application.
    """
    from headrace.streams.runner import Runner, RunOptions

    folder = (project or app.folder).absolute()
    settings = Settings.read(project=folder)
    address = settings.broker(broker)
    if address is None and settings.security_profile() != PLAINTEXT:
        raise Misuse(
            f"the security profile {settings.security_profile()!r} is chosen, and no broker is named: set "
            "HEADRACE_BROKER or address under [broker] in headrace.toml. A broker that `headrace run` starts "
            f"itself uses no security: HEADRACE_SECURITY_PROFILE={PLAINTEXT}."
        )
    order = RunOptions(
        app=app,
        jobs=tuple(jobs),
        once=once,
        broker=None if address is None else str(address),
        master=settings.master(master),
        state=settings.state(state),
        checkpoints=settings.checkpoints(),
        spark=settings.spark(),
        seconds=seconds,
        http=http,
        metrics=settings.metrics("run", metrics, allow_remote=metrics_allow_remote),
        tracing=settings.tracing(),
    )
    silence_spark()
    with project_folder(folder):
        return Runner(order, display(as_json=as_json)).run()


def explain_job(
    app: App, job: str, *, broker: str | None = None, project: Path | None = None
) -> ExplainedPlan:
    """The plan of one job of the application."""
    from headrace.engine.explain import explained
    from headrace.engine.planner import Planner
    from headrace.streams.explanation import is_permanent, sentence_of
    from headrace.streams.runner import RunOptions, spark_session

    folder = (project or app.folder).absolute()
    settings = Settings.read(project=folder)
    address = settings.broker(broker)
    order = RunOptions(app=app, jobs=(job,), master="local[1]", spark=settings.spark())
    (chosen,) = order.chosen()
    silence_spark()
    with project_folder(folder), spark_session(order) as spark:
        try:
            plan, rows = chosen.build(spark, NO_BROKER if address is None else str(address))
        except Exception as error:
            if isinstance(error, Misuse) or is_permanent(error):
                raise Misuse(sentence_of(error, otherwise=chosen.place)) from error
            raise
        return explained(Planner(plan, rows.frame))


def display(*, as_json: bool) -> Display:
    """A live table in a terminal, lines elsewhere, JSON for programs."""
    if as_json:
        return JsonLines()
    if not sys.stdout.isatty():
        return Lines()
    from rich.console import Console

    return Board(Console())
