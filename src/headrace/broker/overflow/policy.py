"""Overflow policies: how much backlog a partition may have, and what happens to a batch beyond that. No I/O.

The *backlog* is what counts against the limit: all records of the partition or, if the topic names consumer
groups, the records that the slowest of them has still to read. A batch fits if the backlog including it stays
within the limit, or if there is no backlog: a batch larger than the limit would otherwise never fit.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.storage.config import TopicConfig

UNLIMITED: Final = -1
SLACK: Final = 16
"""Dropping the oldest records frees 1/16 of the limit at once, so that not every batch searches the log."""


class TopicFull(HeadraceError):
    """A batch is rejected because its topic is full: it is not stored, and the client should not retry."""


class Backpressure(HeadraceError):
    """A batch does not fit yet: its producer waits until consumers have read enough."""


class BackpressureTimeout(HeadraceError):
    """A batch did not fit in time: it is not stored, and the client may retry."""


class OverflowAction(StrEnum):
    """What happens when a topic is full: the values of `headrace.overflow`."""

    BUFFER = "buffer"
    DROP_OLDEST = "drop-oldest"
    DROP_NEWEST = "drop-newest"
    BLOCK = "block"


class BacklogSize(NamedTuple):
    """A number of records and their size."""

    records: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogLimit:
    """The largest backlog of a partition; −1 is unlimited."""

    records: int = UNLIMITED
    bytes: int = UNLIMITED

    def fits(self, backlog: BacklogSize, incoming: BacklogSize) -> bool:
        """Whether a batch may be added to the backlog."""
        if backlog.records <= 0:
            return True
        return (
            backlog.records + incoming.records <= self.max_records
            and backlog.bytes + incoming.bytes <= self.max_bytes
        )

    @property
    def max_records(self) -> int:
        """The limit in records; `sys.maxsize` if unlimited."""
        return sys.maxsize if self.records < 0 else self.records

    @property
    def max_bytes(self) -> int:
        """The limit in bytes; `sys.maxsize` if unlimited."""
        return sys.maxsize if self.bytes < 0 else self.bytes

    def retained(self, incoming: BacklogSize) -> BacklogSize:
        """How much backlog stays if the oldest records make room for a batch, slack included."""
        return BacklogSize(
            max(self.max_records - self.max_records // SLACK - incoming.records, 0),
            max(self.max_bytes - self.max_bytes // SLACK - incoming.bytes, 0),
        )

    def utilization(self, backlog: BacklogSize) -> float:
        """The used fraction of the limit, in records or bytes, whichever is larger."""
        fractions = [0.0]
        if self.records > 0:
            fractions.append(backlog.records / self.records)
        if self.bytes > 0:
            fractions.append(backlog.bytes / self.bytes)
        return max(fractions)

    def __str__(self) -> str:
        parts = [
            f"{amount} {unit}"
            for amount, unit in ((self.records, "records"), (self.bytes, "bytes"))
            if amount >= 0
        ]
        return " and ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class BacklogPolicy:
    """The overflow settings of a topic."""

    action: OverflowAction
    limit: BacklogLimit
    groups: tuple[str, ...] = ()
    """The consumer groups and share groups whose unread records are the backlog; empty for all records."""
    timeout_ms: int = 10_000

    @classmethod
    def of(cls, config: TopicConfig) -> BacklogPolicy:
        """The policy that the settings of a topic describe."""
        return cls(
            action=OverflowAction(config.headrace_overflow),
            limit=BacklogLimit(
                records=config.headrace_overflow_records, bytes=config.headrace_overflow_bytes
            ),
            groups=tuple(sorted(config.headrace_overflow_groups)),
            timeout_ms=config.headrace_overflow_timeout_ms,
        )
