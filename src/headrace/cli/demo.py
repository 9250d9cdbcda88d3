"""The command `headrace demo`."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.output import print_line
from headrace.cli.termination import terminated_like_interrupt
from headrace.demo.acts import Act, play


def demo(
    seconds: Annotated[float, typer.Option(help="How long the shop is open once results come.")] = 30,
    act: Annotated[
        Act, typer.Option(help="The whole shop, or the log alone, which needs no Spark.")
    ] = Act.SHOP,
    chaos: Annotated[
        bool, typer.Option("--chaos", help="Kill parts of the shop at random meanwhile.")
    ] = False,
    port: Annotated[int, typer.Option(help="The page's port on this machine; 0 for any that is free.")] = 0,
    pipeline: Annotated[
        bool, typer.Option("--pipeline", help="Print the file with the jobs of the demo, and leave.")
    ] = False,
) -> None:
    """Show all there is on a small shop: capture, six jobs, a queue, event sourcing, and a live page.

    A PostgreSQL, a Redis and a mail server are started for it and are gone afterwards. A check compares all
    the time what happened with what came out. With --chaos broker, databases and workers are killed while
    the shop is open. The act `log` shows two groups of consumers, a crash, and that nothing is lost.

    Example: headrace demo --seconds 20 --chaos
    """
    if pipeline:
        from importlib.resources import files

        print_line(files("headrace.demo").joinpath("pipeline.py").read_text(encoding="utf-8").rstrip())
        return
    from rich.console import Console

    with terminated_like_interrupt():
        held = play(act, Console(), seconds, chaos=chaos, port=port)
    if not held:
        raise typer.Exit(1)
