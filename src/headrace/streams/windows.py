"""Windows: which stretches of event time an event belongs to. Each is [start, end) unless it says otherwise.

```text
minutes        0     2     4     6     8     10    12
tumbling 6     |-----------------|-----------------|      an event is in exactly one
hopping 6      |-----------------|                        an event is in three of them
every 2              |-----------------|
                           |-----------------|
hopping 6      |-----------------|           |------      an event at 7 is in none
every 10
session        |--x--x----------|      |--x----------|    as long as events follow each other
gap 5             1  3          8        10         15
```
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from headrace.durations import duration_text, milliseconds_of
from headrace.errors import Misuse

if TYPE_CHECKING:
    from headrace.durations import Duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What all windows have in common; make one with `tumbling`, `hopping`, `sliding` or `session`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hopping(Window):
    """Windows of one size, one of which begins every so often."""

    size: str
    every: str
    offset: str = "0 seconds"
    """How much later than midnight (UTC, or that of the zone) windows begin."""
    zone: str | None = None
    """The time zone whose hours and days are meant, by its name, such as Europe/Berlin."""

    def __post_init__(self) -> None:
        if not self.size_ms or not self.every_ms:
            raise Misuse("a window's size, and the time between windows, is at least a millisecond.")
        if self.offset_ms >= self.every_ms:
            raise Misuse(
                f"offset {self.offset!r} is not below {self.every!r}, after which the next window begins: "
                "windows repeat, so a smaller offset gives the same ones."
            )
        if self.zone is not None:
            _check_zone(self.zone)

    @property
    def size_ms(self) -> int:
        """How long a window is."""
        return milliseconds_of(self.size, "the size of a window")

    @property
    def every_ms(self) -> int:
        """How long after the beginning of a window the next one begins."""
        return milliseconds_of(self.every, "the time between windows")

    @property
    def offset_ms(self) -> int:
        """How much later than midnight windows begin."""
        return milliseconds_of(self.offset, "the offset of windows")

    @property
    def has_gaps(self) -> bool:
        """Whether there are times that are in no window."""
        return self.every_ms > self.size_ms

    @property
    def is_tumbling(self) -> bool:
        """Whether every time is in exactly one window."""
        return self.every_ms == self.size_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Sliding(Window):
    """For each event the time (t - size, t] that ends with it."""

    size: str

    def __post_init__(self) -> None:
        if not self.size_ms:
            raise Misuse("the size of a window is at least a millisecond.")

    @property
    def size_ms(self) -> int:
        """How far back from an event its window reaches."""
        return milliseconds_of(self.size, "the size of a window")


@dataclass(frozen=True, slots=True, kw_only=True)
class Session(Window):
    """Events of a key that follow each other; it ends `gap` after the last of them."""

    gap: str

    def __post_init__(self) -> None:
        if not self.gap_ms:
            raise Misuse("the gap of sessions is at least a millisecond.")

    @property
    def gap_ms(self) -> int:
        """How long nothing may come until a session is over."""
        return milliseconds_of(self.gap, "the gap of sessions")


def tumbling(size: Duration, *, offset: Duration = "0 seconds", zone: str | None = None) -> Hopping:
    """Windows of one size, each beginning where the one before ends.

    Windows of a day, or of hours, can be those of a time zone: `tumbling("1 day", zone="Europe/Berlin")`.

    >>> tumbling("1 minute").size_ms
    60000
    """
    text = duration_text(size)
    return Hopping(size=text, every=text, offset=duration_text(offset), zone=zone)


def hopping(size: Duration, every: Duration, *, offset: Duration = "0 seconds") -> Hopping:
    """Windows of one size, one of which begins every so often: they overlap, or leave gaps.

    >>> hopping("6 minutes", every="10 minutes").has_gaps
    True
    """
    return Hopping(size=duration_text(size), every=duration_text(every), offset=duration_text(offset))


def sliding(size: Duration, every: Duration | None = None) -> Hopping | Sliding:
    """For each event the time (t - size, t] that ends with it; with `every` the same as `hopping`.

    >>> sliding("6 minutes", every="2 minutes") == hopping("6 minutes", every="2 minutes")
    True
    """
    return Sliding(size=duration_text(size)) if every is None else hopping(size, every)


def session(gap: Duration) -> Session:
    """Events of a key that follow each other within less than `gap`, or after exactly that.

    >>> session("5 minutes").gap_ms
    300000
    """
    return Session(gap=duration_text(gap))


def _check_zone(zone: str) -> None:
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise Misuse(
            f"zone {zone!r} is not known: write the name of a time zone, such as Europe/Berlin."
        ) from None
