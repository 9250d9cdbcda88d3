"""What a join of two streams gives, in plain Python: every pair is looked at, and time is a number.

Which rows are late is a part of it. A run is a list of parts, and each part is one micro-batch with rows in a
query of its own, which Spark closes with a batch without rows. So a part's rows are late by the watermark
after the part before. The watermark is that of the stream that is behind; a restarted query knows
nothing of a stream until rows of it have come, and then the watermark stays where it was.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A row of one side; `name` is unique there."""

    name: int
    key: str | None
    time: int | None


Part = tuple[Sequence[Event], Sequence[Event]]
Pair = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReference:
    """A join by its rules: times in seconds."""

    how: str
    before: int
    after: int
    watermark_delay: int

    def pairs(self, parts: Sequence[Part]) -> list[Pair]:
        """The names of the rows that come out together; None where there is no row."""
        watermark, lefts, rights = 0, [], []
        for left, right in parts:
            lefts += [event for event in left if not is_late(event, watermark)]
            rights += [event for event in right if not is_late(event, watermark)]
            watermark = max(watermark, min(self._progress(left), self._progress(right)))
        matches = [(one, other) for one in lefts for other in rights if self._match(one, other)]
        result: list[Pair] = [(one.name, other.name) for one, other in matches]
        if self.how in ("left", "full"):
            matched = {one for one, _ in matches}
            alone = [event for event in lefts if event not in matched]
            result += [(event.name, None) for event in alone if _is_over(event, self.after, watermark)]
        if self.how in ("right", "full"):
            matched = {other for _, other in matches}
            alone = [event for event in rights if event not in matched]
            result += [(None, event.name) for event in alone if _is_over(event, self.before, watermark)]
        return sorted(result, key=order)

    def _progress(self, events: Sequence[Event]) -> int:
        return max(
            (event.time - self.watermark_delay for event in events if event.time is not None), default=0
        )

    def _match(self, one: Event, other: Event) -> bool:
        if None in (one.key, one.time, other.key, other.time) or one.key != other.key:
            return False
        assert one.time is not None
        assert other.time is not None
        return one.time - self.before <= other.time <= one.time + self.after


def is_late(event: Event, watermark: int) -> bool:
    return event.time is not None and event.time <= watermark


def _is_over(event: Event, allowed: int, watermark: int) -> bool:
    """Whether a row that has no match is let out: at once when it cannot have one, else when time is over."""
    return event.key is None or event.time is None or event.time + allowed < watermark


def order(pair: Iterable[Any]) -> tuple[tuple[bool, Any], ...]:
    """An order in which None comes last."""
    return tuple((each is None, each or 0) for each in pair)
