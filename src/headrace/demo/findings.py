"""The check at the end of an act: what was claimed, and whether it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console


def print_findings(console: Console, findings: Mapping[str, bool]) -> bool:
    """Print each claim with what was found; whether all of them hold."""
    console.print()
    for claim, holds in findings.items():
        console.print(Text(f"{'✓' if holds else '✗'} {claim}", style="green" if holds else "bold red"))
    return all(findings.values())
