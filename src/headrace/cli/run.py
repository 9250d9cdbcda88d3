"""`headrace run`: run the jobs of a file."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads annotations when it runs
from typing import Annotated

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.logs import configure_logging
from headrace.settings import Settings


def run(
    *,
    pipeline: Annotated[
        Path, typer.Argument(metavar="PIPELINE", help="Python file that defines the application.")
    ],
    job: Annotated[
        list[str] | None, typer.Option("--job", metavar="NAME", help="Run only this job; repeatable.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Process the available records, upstream jobs first, and exit.")
    ] = False,
    broker: Annotated[
        str | None,
        typer.Option(
            "--broker",
            metavar="HOST:PORT",
            help="Address of the broker (default: HEADRACE_BROKER, the nearest headrace.toml, "
            "or a broker that runs as long as the jobs).",
        ),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option("--master", help="Spark master, such as local[2] or spark://HOST:7077."),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="DIR",
            help="Directory of checkpoints, and of the data of a broker started here.",
        ),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option("--seconds", help="Stop after this long (seconds).")
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http", metavar="[HOST:]PORT", help="Also run an HTTP gateway here, as long as the jobs."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print events as JSON, one document per line.")
    ] = False,
    metrics: options.Metrics = None,
    metrics_allow_remote: options.MetricsAllowRemote = False,
    log_level: options.LogLevel = None,
    log_format: options.LogFormat = None,
) -> None:
    """Run the jobs of a file until Ctrl-C.

    Settings come from the headrace.toml next to the file, or in a directory above it, where the state
    directory is too. A job that fails is restarted with exponential backoff, and the reason is printed. A
    failure that a restart cannot fix (an error in the code, a missing topic, an incompatible change, lost
    records) ends the job. Ctrl-C finishes the current batches. The exit code is 1 if a job has failed.

    Example: headrace run pipeline.py --once
    """
    from headrace.streams.command import run_app
    from headrace.streams.pipeline import load_app

    configure_logging(*Settings.read(project=pipeline.parent.absolute()).log(log_level, log_format))
    code = run_app(
        load_app(pipeline),
        jobs=job or (),
        once=once,
        broker=broker,
        master=master,
        state=state,
        seconds=seconds,
        as_json=as_json,
        metrics=metrics,
        metrics_allow_remote=metrics_allow_remote,
        project=pipeline.parent,
        http=http,
    )
    if code:
        raise typer.Exit(code)
