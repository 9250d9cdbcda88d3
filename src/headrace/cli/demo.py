"""The command `headrace demo`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from headrace.cli.output import print_line


class Act(StrEnum):
    """What is shown."""

    JOBS = "jobs"
    LOG = "log"


def demo(
    seconds: Annotated[float, typer.Option(help="How long the shop is open.")] = 20,
    act: Annotated[Act, typer.Option(help="Jobs on Spark, or the log alone.")] = Act.JOBS,
    pipeline: Annotated[
        bool, typer.Option("--pipeline", help="Print the file with the jobs of the demo, and leave.")
    ] = False,
) -> None:
    """Show what there is: events, jobs on Spark, a crash, and a check that each effect is there once.

    The act `log` needs no Spark: two groups of consumers, a crash, and a check that nothing is lost.

    Example: headrace demo --seconds 10
    """
    if pipeline:
        from importlib.resources import files

        print_line(files("headrace.demo").joinpath("pipeline.py").read_text(encoding="utf-8").rstrip())
        return
    from rich.console import Console

    if act is Act.LOG:
        from headrace.demo.show import Show

        held = Show(Console(), seconds).run()
    else:
        from headrace.demo.jobs_show import JobsShow

        held = JobsShow(Console(), seconds).run()
    if not held:
        raise typer.Exit(1)
