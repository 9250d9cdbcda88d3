"""The sizes of a benchmark run."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sizes of a run."""

    name: str
    rounds: int
    snapshot: Mapping[str, int]
    """Rows of the table, by system."""
    warm: int
    """Changes before the measurement, as a warm-up."""
    changes: Mapping[str, int]
    rate: int
    """Transactions of one row per second in the latency measurement."""
    seconds: float
    """The duration of the latency measurement."""


FULL = Plan(
    name="full",
    rounds=3,
    snapshot={"headrace": 500_000, "debezium": 150_000},
    warm=30_000,
    changes={"headrace": 400_000, "debezium": 100_000},
    rate=200,
    seconds=10,
)
QUICK = Plan(
    name="quick",
    rounds=1,
    snapshot=dict.fromkeys(FULL.snapshot, 20_000),
    warm=2_000,
    changes=dict.fromkeys(FULL.changes, 20_000),
    rate=100,
    seconds=2,
)
