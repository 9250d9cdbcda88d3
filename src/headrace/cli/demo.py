"""The command `headrace demo`."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.output import print_line, terminated_like_interrupt
from headrace.demo import Scenario, run_scenario


def demo(
    seconds: Annotated[
        float, typer.Option(help="How long orders arrive after the first results (seconds).")
    ] = 30,
    scenario: Annotated[
        Scenario, typer.Option(help="shop: everything, on Spark; log: the broker alone, without Spark.")
    ] = Scenario.SHOP,
    chaos: Annotated[
        bool, typer.Option("--chaos", help="Kill the broker, databases and workers at random.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port of the web page on 127.0.0.1; 0 takes a free one.")] = 0,
    pipeline: Annotated[
        bool, typer.Option("--pipeline", help="Print the source file of the demo's jobs and exit.")
    ] = False,
) -> None:
    """Run a small shop: change data capture, six jobs, a queue, event sourcing, and a live web page.

    The demo starts PostgreSQL, Redis and a mail server, and removes them at the end. A check continuously
    compares the inputs with the results. With --chaos, the broker, the databases and the workers are killed
    while orders arrive. The scenario `log` shows two consumer groups, a crash of the broker, and that no
    record is lost.

    Example: headrace demo --seconds 20 --chaos
    """
    if pipeline:
        from importlib.resources import files

        print_line(files("headrace.demo").joinpath("pipeline.py").read_text(encoding="utf-8").rstrip())
        return
    from rich.console import Console

    with terminated_like_interrupt():
        held = run_scenario(scenario, Console(), seconds, chaos=chaos, port=port)
    if not held:
        raise typer.Exit(1)
