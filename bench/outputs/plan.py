"""How much is written, and how often."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sizes of a run."""

    name: str
    rounds: int
    rows: int
    """Of a micro-batch: all of them with keys of their own."""
    batches: int
    """The first of them is a warm-up, and makes most of the keys; it is not counted."""
    keys: int

    @property
    def records(self) -> int:
        """How many records are read in all."""
        return self.rows * self.batches


FULL = Plan(name="full", rounds=2, rows=100_000, batches=6, keys=300_000)
QUICK = Plan(name="quick", rounds=1, rows=5_000, batches=3, keys=8_000)
