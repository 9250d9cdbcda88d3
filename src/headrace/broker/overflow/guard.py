"""The guard of one partition: decides about each new batch where the topic has a bound.

It looks at the backlog only when the room that it saw last is used up, for a look asks the log where a group
stands in bytes. Meanwhile there can only be more room than was seen: a group that moves calls for a new look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.overflow.bound import Amount, Policy, Terms
from headrace.broker.overflow.errors import MustWait, TopicFull
from headrace.broker.overflow.line import WaitingLine

if TYPE_CHECKING:
    from headrace.broker.overflow.positions import Positions
    from headrace.protocol.batch import BatchHeader
    from headrace.storage.log import Log


class Backlog(NamedTuple):
    """What counts against the bound, and from which offset on."""

    first_offset: int
    amount: Amount
    slowest: str | None
    """The group that has most to read."""


class Counts:
    """What a guard did since the broker started."""

    __slots__ = ("dropped_records", "refused_records", "timed_out_records")

    def __init__(self) -> None:
        self.dropped_records = 0
        """Records that made room before every named group had read them."""
        self.refused_records = 0
        self.timed_out_records = 0


class Guard:
    """Lets batches into one partition, by the topic's terms."""

    def __init__(self, topic: str, index: int, log: Log, terms: Terms, positions: Positions) -> None:
        self.topic = topic
        self.index = index
        self.terms = terms
        self.counts = Counts()
        self.line = WaitingLine()
        self._log = log
        self._positions = positions
        self._end_limit = -1
        self._written_limit = -1

    def change(self, terms: Terms) -> None:
        """Go on by other terms."""
        self.terms = terms
        self.look_again()

    def look_again(self) -> None:
        """A group has moved, maybe back: trust no room that was seen before."""
        self._end_limit = self._written_limit = -1

    def admit(self, header: BatchHeader) -> None:
        """Return when the batch may be stored now, or raise `TopicFull` or `MustWait`."""
        incoming = Amount(header.last_offset_delta + 1, header.size)
        log = self._log
        if (
            log.end_offset + incoming.records <= self._end_limit
            and log.written_bytes + incoming.bytes <= self._written_limit
        ):
            return
        backlog = self._look()
        if self.terms.bound.fits(backlog.amount, incoming):
            return
        if self.terms.policy is Policy.DROP_OLDEST:
            self._drop_oldest(backlog, incoming)
        elif self.terms.policy is Policy.BLOCK:
            raise MustWait(self._explain(backlog))
        else:
            self.counts.refused_records += incoming.records
            raise TopicFull(self._explain(backlog))

    # ---------------------------------------------------------------- the backlog

    def backlog(self) -> Backlog:
        """What counts against the bound now."""
        log = self._log
        first, slowest = log.start_offset, None
        positions = {
            group: position
            for group in self.terms.groups
            if (position := self._positions.position(group, self.topic, self.index)) is not None
        }
        if self.terms.groups:
            slowest = min(positions, key=positions.__getitem__, default=None)
            first = max(first, log.end_offset if slowest is None else positions[slowest])
        records = max(log.end_offset - first, 0)
        size = log.size_from(first) if records and self.terms.bound.bytes >= 0 else 0
        return Backlog(first, Amount(records, size), slowest)

    def _look(self) -> Backlog:
        """The backlog, and from it the room that batches may use before the next look."""
        found, bound, log = self.backlog(), self.terms.bound, self._log
        self._end_limit = log.end_offset - found.amount.records + bound.most_records
        self._written_limit = log.written_bytes - found.amount.bytes + bound.most_bytes
        return found

    def _drop_oldest(self, backlog: Backlog, incoming: Amount) -> None:
        log, remainder = self._log, self.terms.bound.remainder(incoming)
        start = log.end_offset - remainder.records
        if self.terms.bound.bytes >= 0:
            start = max(start, log.offset_within(remainder.bytes))
        # What is not synced yet cannot be deleted: it goes with the next batch.
        start = min(max(start, log.start_offset), log.high_watermark)
        self.counts.dropped_records += max(start - backlog.first_offset, 0)
        log.move_start(start)
        self._look()

    def _explain(self, backlog: Backlog) -> str:
        held = f"{backlog.amount.records} records"
        if self.terms.bound.bytes >= 0:
            held += f" of {backlog.amount.bytes} bytes"
        who = f" that group {backlog.slowest} has still to read" if backlog.slowest is not None else ""
        return (
            f"partition {self.index} of {self.topic} is full: it holds {held}{who}, and its bound is "
            f"{self.terms.bound} (headrace.overflow={self.terms.policy})"
        )

    def status(self) -> dict[str, object]:
        """How full the partition is, and what became of records since the broker started."""
        found, counts = self.backlog(), self.counts
        return {
            "partition": self.index,
            "backlog_records": found.amount.records,
            "backlog_bytes": self._log.size_from(found.first_offset) if found.amount.records else 0,
            "full_percent": round(100 * self.terms.bound.fullness(found.amount), 1),
            "slowest_group": found.slowest,
            "dropped_records": counts.dropped_records,
            "refused_records": counts.refused_records,
            "timed_out_records": counts.timed_out_records,
            "waiting_batches": len(self.line),
        }

    def explain(self) -> str:
        """Why a batch does not fit now."""
        return self._explain(self.backlog())
