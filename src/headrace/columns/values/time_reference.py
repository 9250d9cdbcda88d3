"""Dates and timestamps as people and programs write them, by the rules of Spark's cast from a string.

Years have four digits. A time without a date, which Spark dates to the day on which it is read, is not
accepted: the same value would mean something else tomorrow.
"""

from __future__ import annotations

import re
from typing import Final
from zoneinfo import ZoneInfo

from headrace.columns.values.calendar import days_from_civil, days_in_month, microseconds_of_local

_DAY: Final = r"(?P<year>[0-9]{4})(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})"
_DATE: Final = re.compile(_DAY + r"(?:[T ].*)?)?)?", re.DOTALL)
_TIME: Final = (
    r"(?P<hour>[0-9]{1,2})(?::(?P<minute>[0-9]{1,2})"
    r"(?::(?P<second>[0-9]{1,2})(?:\.(?P<fraction>[0-9]*))?(?P<zone>[^0-9].*)?)?)?"
)
_TIMESTAMP: Final = re.compile(_DAY + rf"(?:[T ](?:{_TIME})?)?)?)?", re.DOTALL)
_OFFSET: Final = re.compile(
    r"(?:UTC|GMT|UT)?(?P<sign>[+-])(?P<hours>[0-9]{1,2})"
    r"(?::(?P<minutes>[0-9]{1,2})|:(?P<minutes2>[0-9]{2}):(?P<seconds>[0-9]{2})|(?P<minutes3>[0-9]{2}))?"
)
_MAX_OFFSET_SECONDS: Final = 18 * 3600
# What Java's trim takes away: the space and everything below it.
_BLANK: Final = "".join(map(chr, range(33)))


def read_date(text: str) -> int | None:
    """The days since 1970, or None when it is no date."""
    found = _DATE.fullmatch(text.strip(_BLANK))
    return None if found is None else _day(found)


def read_timestamp(text: str, zone: ZoneInfo | None) -> int | None:
    """The microseconds since 1970, or None when it is no timestamp.

    A time without an offset is one of `zone`; when that is None, times are local and must have no offset.
    """
    found = _TIMESTAMP.fullmatch(text.strip(_BLANK))
    day = None if found is None else _day(found)
    if found is None or day is None:
        return None
    hour, minute, second = (int(found[part] or 0) for part in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        return None
    micros = int((found["fraction"] or "")[:6].ljust(6, "0"))
    local = (((day * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000 + micros
    if found["zone"] is None:
        return local if zone is None else microseconds_of_local(local, zone)
    return None if zone is None else _zoned(local, found["zone"].strip(_BLANK))


def _day(found: re.Match[str]) -> int | None:
    year, month, day = int(found["year"]), int(found["month"] or 1), int(found["day"] or 1)
    if not 1 <= month <= 12 or not 1 <= day <= days_in_month(year, month):
        return None
    return days_from_civil(year, month, day)


def _zoned(local: int, name: str) -> int | None:
    """The instant of a local time in the zone or at the offset that its text names."""
    if name in {"Z", "UTC", "GMT", "UT"}:
        return local
    if found := _OFFSET.fullmatch(name):
        minutes = int(found["minutes"] or found["minutes2"] or found["minutes3"] or 0)
        seconds = int(found["seconds"] or 0)
        offset = int(found["hours"]) * 3600 + minutes * 60 + seconds
        if minutes > 59 or seconds > 59 or offset > _MAX_OFFSET_SECONDS:
            return None
        return local - (-offset if found["sign"] == "-" else offset) * 1_000_000
    try:
        return microseconds_of_local(local, ZoneInfo(name))
    except (KeyError, ValueError, OSError):
        return None
