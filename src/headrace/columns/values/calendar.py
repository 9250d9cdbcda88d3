"""Days and local times as numbers, in the Gregorian calendar extended to all years."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from headrace.protocol.kernels import borrowing

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@borrowing
def days_in_month(year: int, month: int) -> int:
    """The length of a month."""
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


@borrowing
def days_from_civil(year: int, month: int, day: int) -> int:
    """The number of days from 1 January 1970 to this one."""
    # Years start in March here, so that the leap day is the last of its year; 719,468 days lie between
    # 1 March of year 0 and 1970.
    if month <= 2:
        year -= 1
        month += 12
    day_of_year = (153 * (month - 3) + 2) // 5 + day - 1
    return year * 365 + year // 4 - year // 100 + year // 400 + day_of_year - 719_468


def microseconds_of_local(local: int, zone: ZoneInfo) -> int:
    """The instant when the clocks of `zone` show `local`, both in microseconds since 1970.

    Of an hour that comes twice it is the first; an hour that is skipped is counted on from before.
    """
    try:
        clock = (_EPOCH + timedelta(microseconds=local)).replace(tzinfo=zone)
    except OverflowError:
        # Python has no year 0; clocks went by the sun then as they did in year 1.
        clock = datetime.min.replace(tzinfo=zone)
    offset = clock.utcoffset() or timedelta()
    return local - (offset // timedelta(microseconds=1))
