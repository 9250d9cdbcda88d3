"""The sizes of a benchmark run."""

import random
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The sizes of a run."""

    name: str
    rounds: int
    rows: int
    """Rows per micro-batch."""
    batches: int
    """The number of batches; the first one is a warm-up, and not counted."""
    keys: int
    """Of all rows: each row has one of them by chance, so that some come again in their batch."""

    @property
    def records(self) -> int:
        """The total number of records."""
        return self.rows * self.batches

    def key_of_each(self) -> Iterator[int]:
        """The keys of all records, the same in every run; even records have even ones."""
        chance = random.Random(1)
        return (2 * chance.randrange(self.keys // 2) + number % 2 for number in range(self.records))

    def newest(self) -> dict[int, int]:
        """The expected contents of the target: the number of the last record of each key."""
        return {key: number for number, key in enumerate(self.key_of_each())}


FULL = Plan(name="full", rounds=2, rows=100_000, batches=6, keys=300_000)
QUICK = Plan(name="quick", rounds=1, rows=5_000, batches=3, keys=8_000)
