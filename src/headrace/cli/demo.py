"""The command `headrace demo`."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    seconds: Annotated[float, typer.Option(help="How long the shop is open.")] = 20,
) -> None:
    """Show what there is: a broker, two groups of consumers, a crash, and a check that nothing is lost.

    Example: headrace demo --seconds 10
    """
    from rich.console import Console

    from headrace.demo.show import Show

    if not Show(Console(), seconds).run():
        raise typer.Exit(1)
