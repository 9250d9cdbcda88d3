"""The bound of a partition, and what a policy does with a batch that does not fit: decisions, without I/O.

The *backlog* is what counts against the bound: all that the partition holds or, where the topic names groups,
what the slowest of them has still to read. A batch fits when the backlog with it stays within every bound, or
when there is no backlog at all: a batch larger than the bound would otherwise wait for ever.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from headrace.storage.config import TopicConfig

NO_BOUND: Final = -1
SLACK: Final = 16
"""Dropping the oldest frees one part in so many at once, so that not every batch has to search the log."""


class Policy(StrEnum):
    """What happens at the bound."""

    BUFFER = "buffer"
    DROP_OLDEST = "drop-oldest"
    DROP_NEWEST = "drop-newest"
    BLOCK = "block"


class Amount(NamedTuple):
    """So many records, of so many bytes."""

    records: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """How much backlog a partition may have; −1 stands for "as much as there is"."""

    records: int = NO_BOUND
    bytes: int = NO_BOUND

    def fits(self, backlog: Amount, incoming: Amount) -> bool:
        """Whether a batch may be added to the backlog."""
        if backlog.records <= 0:
            return True
        return (
            backlog.records + incoming.records <= self.most_records
            and backlog.bytes + incoming.bytes <= self.most_bytes
        )

    @property
    def most_records(self) -> int:
        """The bound in records, or a number that no log reaches."""
        return sys.maxsize if self.records < 0 else self.records

    @property
    def most_bytes(self) -> int:
        """The bound in bytes, or a number that no log reaches."""
        return sys.maxsize if self.bytes < 0 else self.bytes

    def remainder(self, incoming: Amount) -> Amount:
        """How much backlog may stay when the oldest make room for a batch; less than must go, for slack."""
        return Amount(
            max(self.most_records - self.most_records // SLACK - incoming.records, 0),
            max(self.most_bytes - self.most_bytes // SLACK - incoming.bytes, 0),
        )

    def fullness(self, backlog: Amount) -> float:
        """The share of the bound that is used: of the one that is nearer."""
        shares = [0.0]
        if self.records > 0:
            shares.append(backlog.records / self.records)
        if self.bytes > 0:
            shares.append(backlog.bytes / self.bytes)
        return max(shares)

    def __str__(self) -> str:
        parts = [
            f"{amount} {unit}"
            for amount, unit in ((self.records, "records"), (self.bytes, "bytes"))
            if amount >= 0
        ]
        return " and ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """A topic's policy, its bound, and whose reading makes room."""

    policy: Policy
    bound: Bound
    groups: tuple[str, ...] = ()
    timeout_ms: int = 10_000

    @classmethod
    def of(cls, config: TopicConfig) -> Terms:
        """What the settings of a topic say."""
        return cls(
            policy=Policy(config.headrace_overflow),
            bound=Bound(records=config.headrace_overflow_records, bytes=config.headrace_overflow_bytes),
            groups=tuple(sorted(config.headrace_overflow_groups)),
            timeout_ms=config.headrace_overflow_timeout_ms,
        )
