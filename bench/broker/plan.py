"""How long and how often each load runs."""

from dataclasses import dataclass, replace
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rounds and seconds of a run; all systems are warmed up first, and so is each row, by a short round."""

    name: str
    rounds: int
    seconds: float
    stage_warm_up_seconds: float
    warm_up_seconds: float
    starts: int
    latency_rounds: int
    latency_seconds: float
    latency_warm_up_seconds: float

    def prime_megabytes(self, seconds: float, record_bytes: int) -> int:
        """How much memory a round of producing may fill, at somewhat more than the rates that were seen."""
        return int(seconds * (1_000 if record_bytes >= 1_000 else 400))

    def shortened(self) -> Self:
        """A plan with fewer rounds, for the second stage."""
        return replace(self, rounds=max(1, self.rounds - 1), latency_rounds=1)


FULL = Plan(
    name="full",
    rounds=3,
    seconds=2.0,
    stage_warm_up_seconds=4.0,
    warm_up_seconds=0.5,
    starts=3,
    latency_rounds=2,
    latency_seconds=8.0,
    latency_warm_up_seconds=2.0,
)

QUICK = Plan(
    name="quick",
    rounds=1,
    seconds=0.5,
    stage_warm_up_seconds=0.5,
    warm_up_seconds=0.2,
    starts=1,
    latency_rounds=1,
    latency_seconds=2.0,
    latency_warm_up_seconds=1.0,
)
