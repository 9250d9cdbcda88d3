"""A word to the log about streams whose event times have little to do with the times of their records.

A backlog is cut by the times of records (see `spark.alignment`). That keeps event time in step only where an
event's time is near its record's. How near is seen for nothing: after a batch that was cut at a time, the
watermark says what the newest event of the batch was.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from headrace.durations import milliseconds_of
from headrace.spark.alignment import HORIZON
from headrace.spark.event_time import TimeHints

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.spark.transactional_batch import Batch
    from headrace.streams.stream import Stream

log = logging.getLogger("headrace.streams")

MESSAGE: Final = (
    "the stream of %r: event times (%s) are %s the times of their records by more than watermark_delay=%r. "
    "While a backlog is read, in step with the times of records, events may be late: give the stream a "
    "longer watermark_delay, or a max_records that takes the backlog in one piece."
)


class EventTimeSkewMonitor:
    """Looks at one stream of a job, batch after batch, until it has said something."""

    def __init__(
        self, stream: Stream, folder: str, streams: Callable[[], int], *, held_back_ms: int = 0
    ) -> None:
        self._stream = stream
        self._hints = TimeHints(folder)
        self._streams = streams
        self._watermark_delay_ms = milliseconds_of(stream.watermark_delay or "0 ms")
        self._held_back_ms = held_back_ms  # what the job waits for beyond that
        self._cuts_ms: tuple[int | None, int | None] = (None, None)
        self._has_spoken = False

    def look(self, batch: Batch) -> None:
        """Compare the watermark, which the batch before has set, with the times that it was cut at."""
        if self._has_spoken:
            return
        told = self._hints.read(f"{HORIZON}.{self._stream.topic}") or {}
        before_ms, end_ms = self._cuts_ms
        self._cuts_ms = (end_ms, told.get("time_ms"))
        if end_ms is None:
            return
        found = self._strays(batch.watermark_ms, before_ms, end_ms)
        if found is not None:
            self._has_spoken = True
            log.warning(
                MESSAGE, self._stream.topic, self._stream.event_time, found, self._stream.watermark_delay
            )

    def _strays(self, watermark_ms: int, before_ms: int | None, end_ms: int) -> str | None:
        # The watermark is that of the slowest stream, so no stream's newest event is older than this.
        newest_ms = watermark_ms + self._watermark_delay_ms + self._held_back_ms
        if newest_ms > end_ms + self._watermark_delay_ms:
            return "ahead of"
        is_alone = self._streams() == 1
        if is_alone and before_ms is not None and 0 < newest_ms < before_ms - self._watermark_delay_ms:
            return "behind"
        return None
