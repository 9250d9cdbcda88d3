"""The command `headrace demo`."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.output import print_line
from headrace.demo.acts import Act, play


def demo(
    seconds: Annotated[float, typer.Option(help="How long the shop is open.")] = 20,
    act: Annotated[
        Act, typer.Option(help="Jobs on Spark, systems derived from a database, or the log alone.")
    ] = Act.ALL,
    pipeline: Annotated[
        bool, typer.Option("--pipeline", help="Print the file with the jobs of the demo, and leave.")
    ] = False,
) -> None:
    """Show what there is: events, jobs on Spark, crashes, and checks that each effect is there once.

    The act `jobs` joins streams and sums them up while the broker is killed. In the act `derived` a table of
    a PostgreSQL changes, and a search index, a Redis and a view follow. The act `log` needs no Spark: two
    groups of consumers, a crash, and a check that nothing is lost.

    Example: headrace demo --seconds 10
    """
    if pipeline:
        from importlib.resources import files

        print_line(files("headrace.demo").joinpath("pipeline.py").read_text(encoding="utf-8").rstrip())
        return
    from rich.console import Console

    if not play(act, Console(), seconds):
        raise typer.Exit(1)
