"""`headrace explain`: show the plan of a job before it runs."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003  typer reads annotations when it runs
from typing import Annotated

import typer

from headrace.cli import options  # noqa: TC001  typer reads annotations when it runs
from headrace.cli.output import print_json, print_line


def explain(
    *,
    pipeline: Annotated[
        Path, typer.Argument(metavar="PIPELINE", help="Python file that defines the application.")
    ],
    job: Annotated[str, typer.Argument(metavar="JOB", help="Name of the job.")],
    broker: Annotated[
        str | None,
        typer.Option(
            "--broker",
            metavar="HOST:PORT",
            help="Address of the broker; needed only to read views of other applications.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Show the operators of a job, their state, and which steps are Spark's own.

    The function of the job is called. Nothing is read from topics, and no state is opened.

    Example: headrace explain pipeline.py revenue
    """
    from headrace.streams.command import explain_job
    from headrace.streams.pipeline import load_app

    plan = explain_job(load_app(pipeline), job, broker=broker, project=pipeline.parent)
    if as_json:
        print_json(plan.to_json())
        return
    for line in plan.lines():
        print_line(line)
