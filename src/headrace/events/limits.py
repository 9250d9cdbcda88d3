"""How much a handler keeps at hand."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.errors import Misuse


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of each partition's handler."""

    aggregates: int = 10_000
    """Aggregates in memory; the others are in a file."""
    remembered: int = 10_000
    """Commands whose answers are remembered, so that they can be repeated."""
    snapshot_events: int = 1_000
    """An event that is older than so many others is in a snapshot: that bounds what a handler replays."""

    def __post_init__(self) -> None:
        for name in ("aggregates", "remembered", "snapshot_events"):
            if getattr(self, name) < 1:
                raise Misuse(f"{name}={getattr(self, name)}: give it 1 or more.")
