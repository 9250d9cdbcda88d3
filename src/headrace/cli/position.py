"""A place in a topic as users say it: `start`, `end`, an offset, a time, or a time ago."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final

UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
AGO: Final = re.compile(r"-(\d+)([smhdw])")


class Kind(StrEnum):
    """How a place is said."""

    START = "start"
    END = "end"
    OFFSET = "offset"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """A place in each partition of a topic."""

    kind: Kind
    value: int = 0
    """The offset, or the time in milliseconds since 1970."""


START: Final = Position(kind=Kind.START)
END: Final = Position(kind=Kind.END)


def read_position(text: str, *, now: datetime | None = None) -> Position:
    """The place that `text` names. A time without a zone is local time.

    >>> read_position("end").kind
    <Kind.END: 'end'>
    >>> read_position("42").value
    42
    >>> read_position("1970-01-01T00:00:01Z").value
    1000
    >>> read_position("-5m", now=datetime(1970, 1, 1, 0, 6, tzinfo=UTC)).value
    60000
    """
    if text in (Kind.START, Kind.END):
        return Position(kind=Kind(text))
    if text.isascii() and text.isdigit():
        return Position(kind=Kind.OFFSET, value=int(text))
    ago = AGO.fullmatch(text)
    if ago is not None:
        span = timedelta(**{UNITS[ago[2]]: int(ago[1])})
        return _at((now or datetime.now(UTC)) - span)
    try:
        return _at(datetime.fromisoformat(text).astimezone(UTC))
    except ValueError:
        raise ValueError(
            f"{text!r} is not a place in a topic: write start, end, an offset such as 42, "
            "a time such as 2026-01-31T12:00, or a time ago such as -5m (s, m, h, d, w)"
        ) from None


def _at(time: datetime) -> Position:
    return Position(kind=Kind.TIME, value=max(0, int(time.timestamp() * 1000)))
