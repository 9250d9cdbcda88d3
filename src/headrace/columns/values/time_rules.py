"""How values become timestamps: the zone of local times, and the unit of numbers.

A number is a count since 1970. Unless the unit is set, its size decides: seconds, milliseconds, microseconds
and nanoseconds of any time from 1973 to 5138 have different numbers of digits.

    below 10^11   seconds         up to the year 5138; as milliseconds it would be a day before April 1973
    below 10^14   milliseconds
    below 10^17   microseconds
    above         nanoseconds
"""

from __future__ import annotations

from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from headrace.columns.values.errors import UnsupportedType

AUTO: Final = 0
SECONDS: Final = 1
MILLISECONDS: Final = 2
MICROSECONDS: Final = 3
NANOSECONDS: Final = 4
TIME_UNITS: Final = {
    "auto": AUTO,
    "s": SECONDS,
    "ms": MILLISECONDS,
    "us": MICROSECONDS,
    "ns": NANOSECONDS,
}

SECONDS_END: Final = 10**11
MILLISECONDS_END: Final = 10**14
MICROSECONDS_END: Final = 10**17

FIRST_US: Final = -62_167_219_200_000_000
"""The beginning of the year 0: texts have years of four digits, and numbers reach no further."""
LAST_US: Final = 253_402_300_799_999_999
"""The last microsecond of the year 9999."""
MAX_DIGITS: Final = 19
MIN_CSV_DIGITS: Final = 9
"""A shorter whole number in a CSV field may be a year or a date, and counts only if the unit is set."""


class TimeRules(NamedTuple):
    """What a parser of timestamps has to know."""

    zone: ZoneInfo = ZoneInfo("UTC")
    unit: int = AUTO

    @classmethod
    def of(cls, time_zone: str, time_unit: str) -> TimeRules:
        """The rules that names describe; `UnsupportedType` where there is no such zone or unit."""
        try:
            zone = ZoneInfo(time_zone)
        except (KeyError, ValueError, OSError):
            raise UnsupportedType(
                f"{time_zone!r} is not a time zone: use a name such as 'Europe/Berlin' or 'UTC'"
            ) from None
        if time_unit not in TIME_UNITS:
            raise UnsupportedType(f"{time_unit!r} is not a unit of time: use {', '.join(TIME_UNITS)}")
        return cls(zone, TIME_UNITS[time_unit])

    @property
    def min_csv_digits(self) -> int:
        """From how many digits on a whole number in a CSV field is a time."""
        return MIN_CSV_DIGITS if self.unit == AUTO else 1


def epoch_microseconds(text: str, unit: int) -> int | None:
    """The microseconds since 1970 that a whole number stands for; None outside of the years 0 to 9999."""
    if len(text.lstrip("-")) > MAX_DIGITS:
        return None
    number = int(text)
    if unit == AUTO:
        unit = _unit_of(abs(number))
    if unit == SECONDS:
        micros = number * 1_000_000
    elif unit == MILLISECONDS:
        micros = number * 1_000
    else:
        micros = number if unit == MICROSECONDS else number // 1_000
    return micros if FIRST_US <= micros <= LAST_US else None


def _unit_of(size: int) -> int:
    if size < SECONDS_END:
        return SECONDS
    if size < MILLISECONDS_END:
        return MILLISECONDS
    return MICROSECONDS if size < MICROSECONDS_END else NANOSECONDS
