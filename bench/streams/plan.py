"""How much each system is given, and how long it may take."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sizes of a run."""

    name: str
    rate: int
    """Events in each second of event time."""
    first: Mapping[str, int]
    """Events that a system warms up with, by its name."""
    then: Mapping[str, int]
    """Events that are measured."""
    thin: int
    """How many times fewer keys, and events in a second, slower systems have in hopping windows.

    So each key has as many events, and each event as many rows; and few events still last for many windows.
    """
    shares: Mapping[str, float]
    """Of the events, for slower systems in hopping windows."""
    table_share: float
    """Of the rows that tables have in the full run."""
    view_rounds: int
    """How often a thousand changes go into a view; the first time does not count."""
    max_records: int
    """Of a micro-batch."""
    deadline_s: float
    """For each part of a trial."""
    rest_s: float
    """How long a program may take to come to rest before it is measured: it may be loading a table."""
    stall_s: float
    """After so long without a result, the rows that are missing are taken for lost."""


# Each gets what it does in about ten seconds, and where a JVM compiles on the way as much before that to warm
# up: rates do not change with more.
FULL = Plan(
    name="full",
    rate=5_000,
    first={"headrace": 6_000_000, "flink": 1_000_000, "pathway": 200_000, "bytewax": 100_000, "quix": 30_000},
    then={"headrace": 6_000_000, "flink": 2_000_000, "pathway": 900_000, "bytewax": 600_000, "quix": 100_000},
    thin=10,
    shares={"pathway": 0.2, "bytewax": 0.2, "quix": 0.2},
    table_share=1.0,
    view_rounds=5,
    max_records=1_000_000,
    deadline_s=180,
    rest_s=60,
    stall_s=20,
)

_SMALL = 20_000
QUICK = Plan(
    name="quick",
    rate=500,
    first=dict.fromkeys(FULL.first, _SMALL),
    then=dict.fromkeys(FULL.then, 2 * _SMALL),
    thin=10,
    shares=dict.fromkeys(FULL.shares, 0.2),
    table_share=0.01,
    view_rounds=2,
    max_records=20_000,
    deadline_s=300,
    rest_s=20,
    stall_s=60,
)
