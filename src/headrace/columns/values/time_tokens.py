"""Tokens as dates and timestamps.

Compiled code reads the forms that programs write: ISO 8601 with `T` or a space, seconds with or without a
fraction, `Z`, an offset, or neither. People's forms (`2026-1-2`, `Europe/Berlin`) are left to the reference.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from headrace.columns.values.calendar import days_from_civil, days_in_month, microseconds_of_local
from headrace.columns.values.time_rules import (
    AUTO,
    FIRST_US,
    LAST_US,
    MAX_DIGITS,
    MICROSECONDS,
    MICROSECONDS_END,
    MILLISECONDS,
    MILLISECONDS_END,
    NANOSECONDS,
    SECONDS,
    SECONDS_END,
)
from headrace.columns.values.tokens import INTEGER, NULL, STRING
from headrace.columns.values.validity import column
from headrace.protocol.kernels import borrowing

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from numpy.typing import NDArray

    from headrace.columns.values.time_rules import TimeRules
    from headrace.columns.values.tokens import Tokens
    from headrace.protocol.kernels import Octets

_INSTANT: Final = 0
_LOCAL: Final = 1
_UNCLEAR: Final = 2
_QUARTER: Final = 900_000_000
_TENTH_OF_LARGEST: Final = ((1 << 63) - 1) // 10


def dates(tokens: Tokens) -> pa.Array:
    """Days, of `2026-01-02` and of anything that goes on with a time."""
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
    """The instants of times on the clocks of `zone`: the zone is asked once for each quarter of an hour.

    Arrow's own conversion knows no summer time after 2037.
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
    """The number that two digits stand for; a large one when they are none."""
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
    """A whole number as a time since 1970 in a unit, or in the one that its size says."""
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
    """What the text stands for, an instant or a local time, and its microseconds since 1970."""
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
    # No clock is further than 18 hours from that of Greenwich.
    if minutes > 59 or hours * 60 + minutes > 1080:
        return False, 0
    offset = hours * 60 + minutes
    return True, -offset if data[position] == 45 else offset
