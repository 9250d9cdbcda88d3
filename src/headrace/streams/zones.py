"""Windows of a time zone: days and hours as clocks on the wall there show them.

Twice a year a day has 23 or 25 hours. Local time is counted as if it were UTC, where every day has 24 hours
and windows are all alike; the beginning and the end of a window are then brought back into real time. A
beginning that the clock skips is the moment of the skip, and of one that it shows twice the first one counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.errors import Misuse
from headrace.streams.window_assignment import end_metadata, timed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from headrace.streams.rows import Rows
    from headrace.streams.windows import Hopping

HOUR_MS: Final = 3_600_000
ZONED_START: Final = "_headrace_start"
ZONED_END: Final = "_headrace_end"


def in_zone(rows: Rows, window: Hopping) -> DataFrame:
    """The rows with the start and the end of their window; those without a time are in none."""
    if not window.is_tumbling or window.size_ms % HOUR_MS:
        raise Misuse(
            f"windows of a time zone are tumbling ones of whole hours or days: not {window.size} every "
            f"{window.every}. Take a window without zone."
        )
    frame, time = timed(rows)
    start, end = zoned_bounds(window, time)
    bounded = frame.select("*", start.alias(ZONED_START), end.alias(ZONED_END, metadata=end_metadata(rows)))
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
