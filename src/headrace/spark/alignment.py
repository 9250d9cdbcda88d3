"""Alignment by event time: a backlog is read in the order of time, so that catching up makes nothing late.

Spark has one watermark for a stream, not one for each partition. If a backlog were split by numbers of
records, a partition that is an hour ahead would move the watermark, and the records of the others would be
late. So a batch that cannot take all records ends at a time: in every partition before the first record at or
after it. The brokers return these offsets (ListOffsets by time); the latest time that keeps the batch within
its limit is found by trying.

The streams of a job are aligned too: not for the watermark, which is that of the slowest stream, but for the
rows that a join would have to hold. They exchange the times that they have reached by hints
(`horizon.<topic>`). A run that ends when it has read everything does not align streams: a stream that waits
for another would look like the end.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.spark.offsets import limit_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.spark.event_time import TimeHints
    from headrace.spark.offsets import Positions

ENOUGH: Final = 0.5
"""A fraction of the limit that is not worth another request."""
AIM: Final = 0.85
"""The fraction of the limit that the first guess aims at: a larger one may exceed it and need a second."""
FOREVER_MS: Final = 1 << 43
"""After any time that a clock shows."""
FIRST_STEP_MS: Final = 1_000
HORIZON: Final = "horizon"


class BatchBoundary(NamedTuple):
    """Where a batch ends, and the time before which all of its records are; None when it ends at the end."""

    ends: Positions
    time_ms: int | None


class _Try(NamedTuple):
    time_ms: int
    ends: Positions
    size: int


class _Guess(NamedTuple):
    """The first time to try, and how much later the next one is if it was too early."""

    time_ms: int
    step_ms: int

    @staticmethod
    def first(limit: int, after_ms: int | None, pace: float | None) -> _Guess:
        if after_ms is None:
            return _Guess(time.time_ns() // 1_000_000, FIRST_STEP_MS)
        if not pace:
            return _Guess(after_ms, FIRST_STEP_MS)
        # If records are as dense as in the previous batch, this time yields about the limit.
        span_ms = max(1, int(limit * AIM / pace))
        return _Guess(after_ms + span_ms, span_ms)


class TimeSearch:
    """Finds the time at which a batch has to end."""

    def __init__(self, begun: Positions, latest: Positions, at_time: Callable[[int], Positions]) -> None:
        self._begun = begun
        self._latest = latest
        self._at_time = at_time

    def ends_at(self, time_ms: int) -> Positions:
        """The ends of a batch that takes all records before a time, and none twice."""
        found = self._at_time(time_ms)
        return {
            partition: end
            if found[partition] < 0
            else min(end, max(self._begun[partition], found[partition]))
            for partition, end in self._latest.items()
        }

    def find_boundary(
        self, limit: int, *, after_ms: int | None = None, pace: float | None = None
    ) -> BatchBoundary:
        """The ends of a batch of about `limit` records.

        `after_ms` is where the previous batch ended, and `pace` its number of records per millisecond.
        """
        low = _Try(0, dict(self._begun), 0)
        high = _Try(FOREVER_MS, self._latest, self.count(self._latest))
        if high.size <= limit:
            return BatchBoundary(self._latest, None)
        low, high = self._narrow(low, high, limit, _Guess.first(limit, after_ms, pace))
        if low.size >= limit * ENOUGH:
            return BatchBoundary(low.ends, low.time_ms)
        # Too many records have the same millisecond, or follow a later one in their partition, for any
        # time to fit: the rest of the limit is split by number of records.
        return BatchBoundary(limit_offsets(low.ends, high.ends, max(1, limit - low.size)), high.time_ms)

    def _narrow(self, low: _Try, high: _Try, limit: int, first: _Guess) -> tuple[_Try, _Try]:
        guess, step = first
        while high.time_ms - low.time_ms > 1 and low.size < limit * ENOUGH:
            if not low.time_ms < guess < high.time_ms:
                guess = (low.time_ms + high.time_ms) // 2
            ends = self.ends_at(guess)
            tried = _Try(guess, ends, self.count(ends))
            if tried.size <= limit:
                low = tried
                guess, step = guess + step, step * 4  # long strides from there, then halves
            else:
                high = tried
                guess = high.time_ms
        return low, high

    def count(self, ends: Positions) -> int:
        """How many offsets a batch with these ends has."""
        return sum(max(0, end - self._begun[partition]) for partition, end in ends.items())


class Alignment:
    """Aligns the partitions of one stream by event time, and the stream with the others of its job."""

    def __init__(self, topic: str, hints: TimeHints | None) -> None:
        self.waits = True
        """Whether it waits for other streams."""
        self._topic = topic
        self._hints = hints
        self._is_new = True
        self._opened_s: float | None = None
        self._reached_ms: int | None = None
        self._pace: float | None = None

    def ends(
        self, begun: Positions, latest: Positions, limit: int, at_time: Callable[[int], Positions]
    ) -> Positions:
        """Where the next batch ends."""
        search = TimeSearch(begun, latest, at_time)
        horizon_ms = self._horizon_of_others()
        if horizon_ms is not None and self._reached_ms is not None and self._reached_ms > horizon_ms:
            return search.ends_at(horizon_ms)
        boundary = search.find_boundary(limit, after_ms=self._reached_ms, pace=self._pace)
        self._learn(boundary, search.count(boundary.ends))
        self._tell(boundary.time_ms)
        # A stream without a backlog does not hold back others, and waits for those that have one.
        if boundary.time_ms is None and horizon_ms is not None:
            return search.ends_at(horizon_ms)
        return boundary.ends

    def _learn(self, boundary: BatchBoundary, size: int) -> None:
        """Record the number of records per millisecond."""
        before_ms, until_ms = self._reached_ms, boundary.time_ms
        self._pace = None
        if before_ms is not None and until_ms is not None and until_ms > before_ms:
            self._pace = size / (until_ms - before_ms)

    def _horizon_of_others(self) -> int | None:
        """The time that the slowest of the streams with a backlog has reached."""
        if self._hints is None or not self.waits:
            return None
        self._opened_s = self._opened_s or time.time()
        return min(
            (
                int(told["time_ms"])
                for topic, told in self._hints.read_all(HORIZON).items()
                # A hint of an earlier run may be of a stream that the job no longer has.
                if topic != self._topic and told["time_ms"] is not None and told["at_s"] >= self._opened_s
            ),
            default=None,
        )

    def _tell(self, time_ms: int | None) -> None:
        # An idle job is polled a hundred times a second: only changes are written.
        if self._hints is not None and (self._is_new or time_ms != self._reached_ms):
            told = {"time_ms": time_ms, "at_s": time.time()}
            self._hints.write(f"{HORIZON}.{self._topic}", told)
        self._reached_ms, self._is_new = time_ms, False
