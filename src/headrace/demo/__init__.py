"""The demo: scenarios on a real broker, with crashes, and checks of the results."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console


class Scenario(StrEnum):
    """A scenario of the demo."""

    SHOP = "shop"
    LOG = "log"
    OBSERVABILITY = "observability"


def run_scenario(
    scenario: Scenario, console: Console, seconds: float, *, chaos: bool = False, port: int = 0
) -> bool:
    """Run a scenario. Returns whether all checks passed."""
    if scenario is Scenario.LOG:
        from headrace.demo.log_demo import LogDemo

        return LogDemo(console, seconds).run()
    if scenario is Scenario.OBSERVABILITY:
        from headrace.demo.observability_demo import ObservabilityDemo

        return ObservabilityDemo(console, seconds).run()
    from headrace.demo.shop import ShopDemo

    return ShopDemo(console, seconds, chaos=chaos, port=port).run()


def print_results(console: Console, results: Mapping[str, bool]) -> bool:
    """Print the result of each check. Returns whether all passed."""
    from rich.text import Text

    console.print()
    for claim, holds in results.items():
        console.print(Text(f"{'✓' if holds else '✗'} {claim}", style="green" if holds else "bold red"))
    return all(results.values())
