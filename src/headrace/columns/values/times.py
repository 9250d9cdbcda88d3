"""Dates and timestamps in values: their units, their zones, and the forms of text that are accepted.

A number is a count since 1970. Unless the unit is set, its size decides: seconds, milliseconds, microseconds
and nanoseconds of any time from 1973 to 5138 have different numbers of digits.

    below 10^11   seconds         up to the year 5138; as milliseconds it would be a day before April 1973
    below 10^14   milliseconds
    below 10^17   microseconds
    above         nanoseconds

Text follows the rules of Spark's cast from a string, with years of four digits. A time without a date is not
accepted. Spark dates it to the day on which it is read, so the same value would mean something else tomorrow.

Compiled code reads the forms that programs write: ISO 8601 with `T` or a space, seconds with or without a
fraction, `Z`, an offset, or neither. Other forms (`2026-1-2`, `Europe/Berlin`) are left to the reference
parser, `read_timestamp`.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from headrace.columns.values.tokens import INTEGER, NULL, STRING, UnsupportedType, column
from headrace.protocol.kernels import borrowing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from headrace.columns.values.tokens import Tokens
    from headrace.protocol.kernels import Octets


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

    Of an hour that occurs twice it is the first; a skipped hour is counted with the offset before it.
    """
    try:
        clock = (_EPOCH + timedelta(microseconds=local)).replace(tzinfo=zone)
    except OverflowError:
        # Python has no year 0; its offset is that of year 1.
        clock = datetime.min.replace(tzinfo=zone)
    offset = clock.utcoffset() or timedelta()
    return local - (offset // timedelta(microseconds=1))


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
"""The beginning of the year 0: texts have years of four digits, and numbers the same range."""
LAST_US: Final = 253_402_300_799_999_999
"""The last microsecond of the year 9999."""
MAX_DIGITS: Final = 19
MIN_CSV_DIGITS: Final = 9
"""A shorter whole number in a CSV field may be a year or a date, and counts only if the unit is set."""


class TimeRules(NamedTuple):
    """The settings of a parser of timestamps."""

    zone: ZoneInfo = ZoneInfo("UTC")
    unit: int = AUTO

    @classmethod
    def of(cls, time_zone: str, time_unit: str) -> TimeRules:
        """The rules of these names; raises `UnsupportedType` for an unknown zone or unit."""
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
        """The least number of digits of a whole number in a CSV field that is a time."""
        return MIN_CSV_DIGITS if self.unit == AUTO else 1


def epoch_microseconds(text: str, unit: int) -> int | None:
    """The microseconds since 1970 that a whole number means; None outside of the years 0 to 9999."""
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
# The characters that Java's trim removes: the space and everything below it.
_BLANK: Final = "".join(map(chr, range(33)))


def read_date(text: str) -> int | None:
    """The days since 1970, or None if it is not a date."""
    found = _DATE.fullmatch(text.strip(_BLANK))
    return None if found is None else _day(found)


def read_timestamp(text: str, zone: ZoneInfo | None) -> int | None:
    """The microseconds since 1970, or None if it is not a timestamp.

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


_INSTANT: Final = 0
_LOCAL: Final = 1
_UNCLEAR: Final = 2
_QUARTER: Final = 900_000_000
_TENTH_OF_LARGEST: Final = ((1 << 63) - 1) // 10


def dates(tokens: Tokens) -> pa.Array:
    """Days, from `2026-01-02` with or without a time after it."""
    days = np.zeros(len(tokens.kinds), np.int32)
    _read_dates(tokens, days)
    return column(pa.date32(), days, tokens.present)


def timestamps(tokens: Tokens, type_: pa.DataType, rules: TimeRules) -> pa.Array:
    """Microseconds since 1970, by `rules`."""
    micros = np.zeros(len(tokens.kinds), np.int64)
    local = np.zeros(len(tokens.kinds), np.bool_)
    unzoned = type_.tz is None
    found = _read_timestamps(tokens, unzoned, rules.unit, micros, local)
    if found and not unzoned and rules.zone.key != "UTC":
        micros[local] = _instants(micros[local], rules.zone)
    return column(type_, micros, tokens.present)


def _instants(local: NDArray[np.int64], zone: ZoneInfo) -> NDArray[np.int64]:
    """The instants of local times in `zone`, which is looked up once for each quarter of an hour.

    Arrow's own conversion has no daylight saving time after 2037.
    """
    quarters, places = np.unique(local // _QUARTER, return_inverse=True)
    starts = [microseconds_of_local(int(quarter) * _QUARTER, zone) for quarter in quarters]
    stops = [microseconds_of_local(int(quarter + 1) * _QUARTER, zone) for quarter in quarters]
    instants = np.array(starts, np.int64)[places] + local % _QUARTER
    changing = np.array(stops, np.int64) - np.array(starts, np.int64) != _QUARTER
    for index in np.flatnonzero(changing[places]):
        instants[index] = microseconds_of_local(int(local[index]), zone)
    return instants


@borrowing
def _two(data: Octets, position: int) -> int:
    """The number of two digits; a large number if they are not digits."""
    tens, ones = data[position] - 48, data[position + 1] - 48
    return tens * 10 + ones if 0 <= tens <= 9 and 0 <= ones <= 9 else 1_000_000


@borrowing
def _read_day(data: Octets, start: int, stop: int) -> tuple[bool, int]:
    """Whether there is a date of the form 2026-01-02 at `start`, and which day it is."""
    if stop - start < 10 or data[start + 4] != 45 or data[start + 7] != 45:
        return False, 0
    year = _two(data, start) * 100 + _two(data, start + 2)
    month, day = _two(data, start + 5), _two(data, start + 8)
    if year > 9999 or not 1 <= month <= 12 or not 1 <= day <= days_in_month(year, month):
        return False, 0
    return True, days_from_civil(year, month, day)


@borrowing
def _read_dates(
    tokens: Tokens,
    days: NDArray[np.int32],
) -> None:
    """Fill `days`."""
    data, kinds, starts, stops, rows, doubtful = tokens
    for index in range(len(kinds)):
        if kinds[index] <= NULL:
            continue
        start, stop = int(starts[index]), int(stops[index])
        good = False
        if kinds[index] == STRING:
            good, day = _read_day(data, start, stop)
            days[index] = day
        if not good or (stop > start + 10 and data[start + 10] not in (84, 32)):
            doubtful[rows[index]] = 1


@borrowing
def _read_timestamps(
    tokens: Tokens,
    unzoned: bool,
    unit: int,
    micros: NDArray[np.int64],
    local: NDArray[np.bool_],
) -> int:
    """Fill `micros`; how many of them are `local` times without an offset."""
    data, kinds, starts, stops, rows, doubtful = tokens
    found = 0
    for index in range(len(kinds)):
        if kinds[index] <= NULL:
            continue
        start, stop = int(starts[index]), int(stops[index])
        meaning, time = _UNCLEAR, 0
        if kinds[index] == STRING:
            meaning, time = _read_timestamp(data, start, stop)
        elif kinds[index] == INTEGER:
            meaning, time = _epoch(data, start, stop, unit)
        if meaning == _UNCLEAR or (unzoned and meaning != _LOCAL):
            doubtful[rows[index]] = 1
            continue
        micros[index] = time
        if meaning == _LOCAL:
            local[index] = True
            found += 1
    return found


@borrowing
def _epoch(data: Octets, start: int, stop: int, unit: int) -> tuple[int, int]:
    """A whole number as a time since 1970 in a unit, or in the unit that its size implies."""
    negative = data[start] == 45
    first = start + 1 if negative else start
    if stop - first > MAX_DIGITS:
        return _UNCLEAR, 0
    number = 0
    for position in range(first, stop):
        if number >= _TENTH_OF_LARGEST:
            return _UNCLEAR, 0
        number = number * 10 + (data[position] - 48)
    if unit == AUTO:
        unit = SECONDS
        if number >= SECONDS_END:
            unit = MILLISECONDS
        if number >= MILLISECONDS_END:
            unit = MICROSECONDS
        if number >= MICROSECONDS_END:
            unit = NANOSECONDS
    time = -number if negative else number
    if unit == NANOSECONDS:
        time //= 1_000
    elif unit != MICROSECONDS:
        factor = 1_000_000 if unit == SECONDS else 1_000
        if number > LAST_US // factor:
            return _UNCLEAR, 0
        time *= factor
    return (_INSTANT, time) if FIRST_US <= time <= LAST_US else (_UNCLEAR, 0)


@borrowing
def _read_timestamp(data: Octets, start: int, stop: int) -> tuple[int, int]:
    """The kind of time in the text, an instant or a local time, and its microseconds since 1970."""
    good, day = _read_day(data, start, stop)
    if not good:
        return _UNCLEAR, 0
    if stop == start + 10:
        return _LOCAL, day * 86_400_000_000
    position = start + 10
    if (
        stop - start < 19
        or data[position] not in (84, 32)
        or data[position + 3] != 58
        or data[position + 6] != 58
    ):
        return _UNCLEAR, 0
    hour, minute, second = _two(data, position + 1), _two(data, position + 4), _two(data, position + 7)
    if hour > 23 or minute > 59 or second > 59:
        return _UNCLEAR, 0
    micros = ((day * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000
    fraction, position = _read_fraction(data, start + 19, stop)
    if position == stop:
        return _LOCAL, micros + fraction
    good, offset = _read_offset(data, position, stop)
    return _INSTANT if good else _UNCLEAR, micros + fraction - offset * 60_000_000


@borrowing
def _read_fraction(data: Octets, position: int, stop: int) -> tuple[int, int]:
    """The microseconds of a fraction, of which no more than six digits count, and the position after it."""
    if position == stop or data[position] != 46:
        return 0, position
    position += 1
    unit = 100_000
    fraction = 0
    while position < stop and 48 <= data[position] <= 57:
        fraction += (data[position] - 48) * unit
        unit //= 10
        position += 1
    return fraction, position


@borrowing
def _read_offset(data: Octets, position: int, stop: int) -> tuple[bool, int]:
    """Whether `Z`, `+01:00`, `+0100` or `+01` stands at `position` and nothing after it, and its minutes."""
    size = stop - position
    if size == 1 and data[position] == 90:
        return True, 0
    if size not in (3, 5, 6) or data[position] not in (43, 45) or (size == 6 and data[position + 3] != 58):
        return False, 0
    hours = _two(data, position + 1)
    minutes = _two(data, stop - 2) if size > 3 else 0
    # Offsets from UTC are at most 18 hours.
    if minutes > 59 or hours * 60 + minutes > 1080:
        return False, 0
    offset = hours * 60 + minutes
    return True, -offset if data[position] == 45 else offset
