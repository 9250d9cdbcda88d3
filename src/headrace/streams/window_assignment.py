"""Which windows a row is in, as Spark expressions; and the columns of a window's result.

Windows of a time zone are days and hours as clocks on the wall there show them. Twice a year a day has 23 or
25 hours. Local time is counted as if it were UTC, where every day has 24 hours and windows are all alike; the
start and the end of a window are then converted back. A start that the clock skips is the moment of the skip,
and of one that it shows twice the first one counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.engine.columns import quoted
from headrace.errors import Misuse
from headrace.streams.event_time import MARK
from headrace.streams.windows import Hopping, Session, Sliding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from headrace.streams.rows import Rows
    from headrace.streams.windows import Window

START: Final = "window_start"
END: Final = "window_end"
IS_END: Final = "headrace.windowEnd"
"""The metadata of ours that says of a column that its times are ends of windows."""

LAST_OF_WINDOW: Final = "interval 1 microsecond"
"""How long before the end of its window the time of a result is, as for Spark's `window_time`."""

_TIME: Final = "_headrace_time"
_SPAN: Final = "_headrace_window"
_START: Final = "_headrace_start"
_END: Final = "_headrace_end"
_HOUR_MS: Final = 3_600_000


def window_in_words(window: Window, by: Sequence[str]) -> str:
    """What the state of a window depends on, the same for equal times however they were written.

    >>> from headrace.streams.windows import hopping, session
    >>> window_in_words(hopping("2 minutes", every="60 seconds"), ["city"])
    'windows of 120 s every 60 s by city'
    >>> window_in_words(session("5 minutes"), [])
    'sessions with a gap of 300 s'
    """
    if isinstance(window, Hopping):
        words = f"windows of {window.size_ms / 1000:g} s every {window.every_ms / 1000:g} s"
        words += f", offset {window.offset_ms / 1000:g} s" if window.offset_ms else ""
        words += f", in the zone {window.zone}" if window.zone else ""
    else:
        words = f"sessions with a gap of {_session(window).gap_ms / 1000:g} s"
    return f"{words} by {', '.join(by)}" if by else words


def memberships(rows: Rows, window: Window) -> DataFrame:
    """The rows of a batch, once for each window that they are in, with its window_start and window_end.

    The window of a row of a session is the session that it would be alone.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if isinstance(window, Hopping) and window.zone is not None:
        spread = in_zone(rows, window).withColumns({START: F.col(_START), END: F.col(_END)})
    elif isinstance(window, Hopping) and not window.has_gaps:
        frame, time = timed(rows)
        spread = frame.select("*", _span(window, time).alias(_SPAN))
        spread = spread.withColumns({START: F.col(f"{_SPAN}.start"), END: F.col(f"{_SPAN}.end")})
    elif isinstance(window, Hopping):
        spread = _with_gaps(rows, window).withColumns({START: F.col(_START), END: F.col(_END)})
    else:
        frame, time = timed(rows)
        before, after = (window.size_ms, 0) if isinstance(window, Sliding) else (0, _session(window).gap_ms)
        spread = frame.withColumns({START: time - _interval(before), END: time + _interval(after)})
    return spread.drop(_TIME, _SPAN, _START, _END)


def is_window_end(frame: DataFrame, column: str) -> bool:
    """Whether the times of a column are ends of windows: the time of such a row is just before."""
    return bool((frame.schema[column].metadata or {}).get(IS_END))


def end_metadata(rows: Rows) -> dict[str, Any]:
    """The metadata of a column of window ends: an event time, for which Spark waits as for the rows."""
    return {MARK: _metadata(rows)[MARK], IS_END: True}


def _with_gaps(rows: Rows, window: Hopping) -> DataFrame:
    """The rows that are in a window, with its start and end.

    Spark refuses windows with gaps. But a plain column that is marked as event time closes as its windows do,
    when the time has passed.
    """
    from pyspark.sql import functions as F  # noqa: N812

    frame, time = timed(rows)
    size_us, every_us, offset_us = (1000 * ms for ms in (window.size_ms, window.every_ms, window.offset_ms))
    time_us = F.unix_micros(time)
    start_us = time_us - F.pmod(time_us - F.lit(offset_us), F.lit(every_us))
    end = F.timestamp_micros(start_us + F.lit(size_us)).alias(_END, metadata=end_metadata(rows))
    bounded = frame.select("*", F.timestamp_micros(start_us).alias(_START), end)
    return bounded.filter(time < F.col(_END))


def _span(window: Window, time: Column) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    if isinstance(window, Hopping):
        lengths = (window.size_ms, window.every_ms, window.offset_ms)
        size, every, offset = (f"{length} milliseconds" for length in lengths)
        return F.window(time, size, every, offset)
    return F.session_window(time, f"{_session(window).gap_ms} milliseconds")


def timed(rows: Rows) -> tuple[DataFrame, Column]:
    """The rows, and the column by which they are assigned to windows.

    The end of a window is not in it. So the time of a result is the last microsecond before it, and an hour
    is the sum of its sixty minutes. Joins take the same time.
    """
    from pyspark.sql import functions as F  # noqa: N812

    assert rows.event_time is not None
    time = F.col(quoted(rows.event_time))
    if not is_window_end(rows.frame, rows.event_time):
        return rows.frame, time
    last = time - F.expr(LAST_OF_WINDOW)
    inside = last.alias(_TIME, metadata={MARK: _metadata(rows)[MARK]})
    return rows.frame.select("*", inside), F.col(_TIME)


def _metadata(rows: Rows) -> dict[str, Any]:
    assert rows.event_time is not None
    metadata: dict[str, Any] = rows.frame.schema[rows.event_time].metadata
    return metadata


def _interval(length_ms: int) -> Column:
    from pyspark.sql import functions as F  # noqa: N812

    return F.expr(f"interval {length_ms} milliseconds")


def _session(window: Window) -> Session:
    assert isinstance(window, Session), f"a window of an unknown kind: {window}"
    return window


def in_zone(rows: Rows, window: Hopping) -> DataFrame:
    """The rows with the start and the end of their window; those without a time are in none."""
    if not window.is_tumbling or window.size_ms % _HOUR_MS:
        raise Misuse(
            f"windows of a time zone are tumbling ones of whole hours or days: not {window.size} every "
            f"{window.every}. Take a window without zone."
        )
    frame, time = timed(rows)
    start, end = zoned_bounds(window, time)
    bounded = frame.select("*", start.alias(_START), end.alias(_END, metadata=end_metadata(rows)))
    return bounded.filter(time.isNotNull())


def zoned_bounds(window: Hopping, time: Column) -> tuple[Column, Column]:
    """When the window of a time begins and ends."""
    from pyspark.sql import functions as F  # noqa: N812  the name that Spark's users know

    assert window.zone is not None
    size_us, zone = window.size_ms * 1000, F.lit(window.zone)
    local_us = F.unix_micros(F.from_utc_timestamp(time, zone))
    start_us = local_us - F.pmod(local_us - F.lit(window.offset_ms * 1000), F.lit(size_us))
    start, end = (F.timestamp_micros(start_us + F.lit(more_us)) for more_us in (0, size_us))
    return F.to_utc_timestamp(start, zone), F.to_utc_timestamp(end, zone)
