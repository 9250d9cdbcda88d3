"""How long and how often each load runs."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rounds and seconds of a run; each row has a short first round that is thrown away."""

    name: str
    rounds: int
    seconds: float
    warm_up_seconds: float
    starts: int
    latency_rounds: int
    latency_seconds: float
    latency_warm_up_seconds: float
    prime_seconds_ahead: float = 1.2  # memory is made ready for a little more than a round writes

    def prime_megabytes(self, record_bytes: int) -> int:
        """How much memory a round of producing may fill, at the rates that were seen here."""
        megabytes_per_second = 900 if record_bytes >= 1_000 else 400
        return int(self.seconds * self.prime_seconds_ahead * megabytes_per_second)


FULL = Plan(
    name="full",
    rounds=3,
    seconds=2.0,
    warm_up_seconds=1.0,
    starts=3,
    latency_rounds=2,
    latency_seconds=10.0,
    latency_warm_up_seconds=3.0,
)

QUICK = Plan(
    name="quick",
    rounds=1,
    seconds=0.5,
    warm_up_seconds=0.3,
    starts=1,
    latency_rounds=1,
    latency_seconds=2.0,
    latency_warm_up_seconds=1.0,
)
