"""Producer ids, none of which is ever given twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.transactions.records import write_producer_ids

if TYPE_CHECKING:
    from headrace.broker.statelog import StateLog

BLOCK: Final = 1000
"""Ids that one record in the log sets aside: as many as Kafka's controller hands to a broker at once."""


class ProducerIds:
    """A counter that survives restarts.

    A block of ids is recorded as taken before the first of them is given; what a restart finds unused of it
    is skipped. The caller awaits `StateLog.durable` before it tells a client the id.
    """

    def __init__(self, state: StateLog) -> None:
        self._state = state
        self._next = 0
        self._end = 0

    def restore(self, next_id: int) -> None:
        """Go on from here: everything below may have been given."""
        self._next = self._end = next_id

    def take(self) -> int:
        """An id that was never given before."""
        if self._next >= self._end:
            self._state.append([write_producer_ids(self._next + BLOCK)])
            self._end = self._next + BLOCK
        self._next += 1
        return self._next - 1
