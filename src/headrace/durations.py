"""Durations as users write them: a `timedelta`, or text such as "10 minutes", "1 hour 30 minutes" or "30s".

Every duration is parsed here, so that all options accept the same units and report the same errors. Months
and years are rejected: their length depends on the calendar.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final, TypeAlias

from headrace.errors import Misuse

Duration: TypeAlias = str | timedelta
"""How users write a duration."""

_UNITS_MS: Final = {
    1: ("ms", "millisecond", "milliseconds"),
    1_000: ("s", "sec", "secs", "second", "seconds"),
    60_000: ("m", "min", "mins", "minute", "minutes"),
    3_600_000: ("h", "hour", "hours"),
    86_400_000: ("d", "day", "days"),
    604_800_000: ("w", "week", "weeks"),
}
_MS_OF: Final = {word: ms for ms, words in _UNITS_MS.items() for word in words}
_PART: Final = re.compile(r"(\d+)\s*([a-z]+)")
_WHOLE: Final = re.compile(r"\d+\s*[a-z]+(?:[\s,]*\d+\s*[a-z]+)*")
_LONGEST_MS: Final = 100 * 366 * 86_400_000


def milliseconds_of(text: Duration, what: str = "the duration") -> int:
    """The milliseconds in a duration; `what` is its name in error messages, such as `watermark_delay`.

    >>> milliseconds_of("1 hour 30 minutes"), milliseconds_of("500 ms"), milliseconds_of("30s")
    (5400000, 500, 30000)
    >>> milliseconds_of(timedelta(minutes=1))
    60000
    """
    if isinstance(text, timedelta):
        if text < timedelta():
            raise Misuse(f"{what} is {text!r}: a duration is not negative.")
        text = duration_text(text)
    words = str(text).strip().lower()
    parts = _PART.findall(words) if _WHOLE.fullmatch(words) else []
    if not parts or any(unit not in _MS_OF for _, unit in parts):
        raise Misuse(
            f"{what} is {text!r}, which is not a duration: write numbers and units, such as "
            '"10 minutes", "1 hour 30 minutes" or "500 ms". The units are ms, seconds, minutes, hours, '
            "days and weeks."
        )
    total = sum(int(number) * _MS_OF[unit] for number, unit in parts)
    if total > _LONGEST_MS:
        raise Misuse(f"{what} is {text!r}, which is more than a hundred years: write a shorter one.")
    return total


def duration_text(duration: Duration) -> str:
    """The duration as text.

    >>> duration_text(timedelta(seconds=1.5)), duration_text("30s")
    ('1500 ms', '30s')
    """
    return duration if isinstance(duration, str) else f"{duration // timedelta(milliseconds=1)} ms"


def seconds_of(text: Duration, what: str = "the duration") -> float:
    """The seconds in a text.

    >>> seconds_of("10 minutes")
    600.0
    """
    return milliseconds_of(text, what) / 1000


def interval_of(text: Duration, what: str = "the duration") -> str:
    """The duration as Spark's own functions read it, whatever short form the user chose.

    >>> interval_of("1 h 30 min")
    '5400000 milliseconds'
    """
    return f"{milliseconds_of(text, what)} milliseconds"
