"""Clocks that are wrong: the true time of an event from the three times that were written down for it.

A device notes when something `occurred` and when it `sent` it, both by its own clock; the server notes when
it was `received`. What the device's clock is off by is received − sent, and what it says of the event is put
right by as much:

    device   occurred 09:20:00   sent 09:21:00          40 minutes behind
    server                                    received 10:01:00
    offset   10:01:00 − 09:21:00 = 40 minutes    true time 09:20:00 + 40 minutes = 10:00:00

The way from device to server is taken as nothing: an event that waited in the network is dated that much too
late, and never too early.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.durations import interval_of, milliseconds_of
from headrace.engine.columns import quoted
from headrace.errors import Misuse

if TYPE_CHECKING:
    from pyspark.sql import Column

    from headrace.durations import Duration
    from headrace.streams.rows import Operators, Rows

CORRECTED: Final = "event_time"
"""The column of corrected times in a stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """A rule by which times of devices are put right; `correct_clock` makes one."""

    occurred: str
    sent: str
    received: str | None = None
    ignore: Duration = "1 second"
    max_offset: Duration = "7 days"
    max_delay: Duration = "7 days"

    def __post_init__(self) -> None:
        for name in ("ignore", "max_offset", "max_delay"):
            milliseconds_of(getattr(self, name), f"correct_clock: {name}")

    def column(self, received: Column | None = None) -> Column:
        """A struct of `time`, `done` and `offset`, for use with a DataFrame.

        `done` says what was done: "corrected"; "as logged", when the offset is too small to speak of or not
        known; "received", when the times make no sense and the server's is all there is.
        """
        from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

        occurred, sent = F.col(quoted(self.occurred)), F.col(quoted(self.sent))
        if received is None:
            received = F.col(quoted(self._received()))
        offset = F.unix_micros(received) - F.unix_micros(sent)
        delay = F.unix_micros(sent) - F.unix_micros(occurred)
        done = (
            F.when(occurred.isNull(), "received")
            # Nothing has occurred so long after it was received: its clock is off by more than the bound.
            .when(F.unix_micros(occurred) - F.unix_micros(received) > _micros(self.max_offset), "received")
            .when(offset.isNull(), "as logged")
            .when(F.abs(offset) > _micros(self.max_offset), "received")
            .when((delay < -_micros(self.ignore)) | (delay > _micros(self.max_delay)), "received")
            .when(F.abs(offset) <= _micros(self.ignore), "as logged")
            .otherwise("corrected")
        )
        corrected = F.timestamp_micros(F.unix_micros(occurred) + offset)
        time = F.when(done == "corrected", corrected).when(done == "received", received).otherwise(occurred)
        return F.struct(time.alias("time"), done.alias("done"), (offset / 1_000_000).alias("offset"))

    def _received(self) -> str:
        if self.received is None:
            raise Misuse(
                "correct_clock(…).column() needs to know when events were received: name the column by "
                'received=, such as metadata=["timestamp"] gives as "_timestamp".'
            )
        return self.received


def correct_clock(
    occurred: str,
    sent: str,
    received: str | None = None,
    *,
    ignore: Duration = "1 second",
    max_offset: Duration = "7 days",
    max_delay: Duration = "7 days",
) -> Clock:
    """The true times of events from devices whose clocks are wrong, for `event_time=` of a stream.

    `occurred`, `sent` and `received` name columns; without `received` it is the time of the record. The
    stream has the true time as `event_time`, and what was done as `clock.done` and `clock.offset` (seconds).

    Offsets up to `ignore` are the network's, and leave the time as it was logged. A clock that is off by
    more than `max_offset`, an event sent before it occurred, or more than `max_delay` after it, make no
    sense: such an event counts from when it was received.

    >>> correct_clock("occurred", "sent").received is None
    True
    """
    return Clock(
        occurred=occurred,
        sent=sent,
        received=received,
        ignore=ignore,
        max_offset=max_offset,
        max_delay=max_delay,
    )


def clock_skew(rows: Operators, *, by: str, every: Duration = "1 hour") -> Rows:
    """What the clock of each device is off by, in seconds, hour by hour: the smallest offset that was seen.

    Delay on the way only adds to an offset, so the smallest is the nearest to the truth. The rows are those
    of a stream with `event_time=correct_clock(…)`; the columns are window_start, window_end, the device,
    `skew` (positive when its clock is behind) and `events`.
    """
    from pyspark.sql import functions as F  # noqa: N812

    from headrace.streams.windows import tumbling

    interval_of(every, "clock_skew: every")
    if "clock" not in rows.df.columns:
        raise Misuse(
            "clock_skew() needs the column `clock`: declare the stream with event_time=correct_clock(…)."
        )
    events = F.count(F.lit(1)).alias("events")
    skew = F.min("clock.offset").alias("skew")
    return rows.window(tumbling(every), by=by).agg(skew, events)


def _micros(duration: Duration) -> int:
    return milliseconds_of(duration) * 1000
