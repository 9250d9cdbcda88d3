"""`headrace run`: the jobs of a file, with all that they need."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads annotations when it runs
from typing import Annotated

import typer


def run(
    *,
    pipeline: Annotated[
        Path, typer.Argument(metavar="PIPELINE", help="The Python file that defines the application.")
    ],
    job: Annotated[
        list[str] | None, typer.Option("--job", metavar="NAME", help="Only this job; may be repeated.")
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Process what is there, stage after stage, and leave.")
    ] = False,
    broker: Annotated[
        str | None,
        typer.Option(
            "--broker",
            metavar="HOST:PORT",
            help="Address of the broker. Otherwise HEADRACE_BROKER or the nearest headrace.toml; "
            "if they name none, one is started for as long as the jobs run.",
        ),
    ] = None,
    master: Annotated[
        str | None,
        typer.Option("--master", help="Where Spark runs, such as local[2] or spark://HOST:7077."),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="DIR", help="Checkpoints, and the data of a broker started here."),
    ] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", help="Stop after this time.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON document in each line.")] = False,
) -> None:
    """Run the jobs of a file until Ctrl-C.

    Settings are those of the headrace.toml next to the file, or in a folder above it; the state folder is
    there too. A job that fails is started again after a growing wait, and the reason is printed. One that
    would fail again (a mistake in its code, a topic that does not exist, a changed job, lost records) is not.
    Ctrl-C lets the current batches finish. The exit code is 1 if a job failed for good.

    Example: headrace run pipeline.py --once
    """
    from headrace.streams.command import run_app
    from headrace.streams.pipeline import load_app

    code = run_app(
        load_app(pipeline),
        jobs=job or (),
        once=once,
        broker=broker,
        master=master,
        state=state,
        seconds=seconds,
        as_json=as_json,
        project=pipeline.parent,
    )
    if code:
        raise typer.Exit(code)
