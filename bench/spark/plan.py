"""How much each measure does, and how often."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sizes of a run; round 0 of every row is a warm-up that is thrown away."""

    name: str
    rounds: int
    small_records: int
    """How many records of 100 bytes are read."""
    large_records: int
    """How many records of 1 KiB are read."""
    written_rows: int
    """How many rows a batch, or a micro-batch, writes."""
    written_batches: int
    """How many micro-batches of them count; those before are a warm-up."""
    latency_batches: int
    latency_warm_up: int
    starts: int


FULL = Plan(
    name="full",
    rounds=2,
    small_records=3_000_000,
    large_records=1_000_000,
    written_rows=2_000_000,
    written_batches=3,
    latency_batches=150,
    latency_warm_up=250,
    starts=2,
)

QUICK = Plan(
    name="quick",
    rounds=1,
    small_records=100_000,
    large_records=30_000,
    written_rows=100_000,
    written_batches=2,
    latency_batches=15,
    latency_warm_up=10,
    starts=1,
)
