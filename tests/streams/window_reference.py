"""Windows in plain Python: what a job has to give for rows that come in parts, one after the other.

Times are whole milliseconds since 1970. After each part the watermark is the newest time seen, less the
watermark delay. A window is closed by a part when the watermark behind it has reached its end; what comes
later for it is late. Spark begins with a watermark of 0, so nothing is on time whose window ended before
1970.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.streams.windows import Hopping, Session, Sliding, Window


class Event(NamedTuple):
    at_ms: int
    key: str | None
    amount: int


class Span(NamedTuple):
    """A window: [start, end)."""

    start_ms: int
    end_ms: int


class Result(NamedTuple):
    span: Span
    key: str | None
    events: int
    total: int


@dataclass
class Outcome:
    """What comes of all parts."""

    results: list[Result] = field(default_factory=list)
    """In no order."""
    late: list[tuple[Span, Event]] = field(default_factory=list)
    is_open: list[Result] = field(default_factory=list)
    """What the last watermark has not closed."""


def spans_of(window: Hopping, at_ms: int) -> Iterator[Span]:
    """The windows that a time is in, from the first."""
    newest = (at_ms - window.offset_ms) // window.every_ms * window.every_ms + window.offset_ms
    count = -(-window.size_ms // window.every_ms)
    for number in reversed(range(count)):
        start = newest - number * window.every_ms
        if start <= at_ms < start + window.size_ms:
            yield Span(start, start + window.size_ms)


def sessions_of(times_ms: Iterable[int], gap_ms: int) -> list[Span]:
    """The sessions of one key's times; an event exactly `gap` after the last one still belongs to them."""
    spans: list[Span] = []
    for at_ms in sorted(times_ms):
        if spans and at_ms <= spans[-1].end_ms:
            spans[-1] = Span(spans[-1].start_ms, max(spans[-1].end_ms, at_ms + gap_ms))
        else:
            spans.append(Span(at_ms, at_ms + gap_ms))
    return spans


def run_reference(window: Window, parts: Sequence[Sequence[Event]], lateness_ms: int) -> Outcome:
    """Results, late events, and what is still open, when the watermark moves on after each part."""
    if isinstance(window, Session):
        return _run_sessions(window, parts, lateness_ms)
    assert isinstance(window, Hopping)
    outcome, watermark_ms = Outcome(), 0
    held: dict[tuple[Span, str | None], list[Event]] = defaultdict(list)
    for part in parts:
        for event in part:
            for span in spans_of(window, event.at_ms):
                if span.end_ms <= watermark_ms:
                    outcome.late.append((span, event))
                else:
                    held[span, event.key].append(event)
        watermark_ms = moved(watermark_ms, part, lateness_ms)
        for span, key in [each for each in held if each[0].end_ms <= watermark_ms]:
            outcome.results.append(summed(span, key, held.pop((span, key))))
    outcome.is_open = [summed(span, key, events) for (span, key), events in held.items()]
    return outcome


def _run_sessions(window: Session, parts: Sequence[Sequence[Event]], lateness_ms: int) -> Outcome:
    outcome, watermark_ms = Outcome(), 0
    held: dict[str | None, list[Event]] = defaultdict(list)
    for part in parts:
        for event in part:
            own = Span(event.at_ms, event.at_ms + window.gap_ms)
            if own.end_ms <= watermark_ms:
                outcome.late.append((own, event))
            else:
                held[event.key].append(event)
        watermark_ms = moved(watermark_ms, part, lateness_ms)
        for key, events in held.items():
            results = list(_summed_sessions(window, key, events))
            closed = [result for result in results if result.span.end_ms <= watermark_ms]
            outcome.results += closed
            held[key] = [event for event in events if not any(_is_in(event, each.span) for each in closed)]
    for key, events in held.items():
        outcome.is_open += _summed_sessions(window, key, events)
    return outcome


def _summed_sessions(window: Session, key: str | None, events: list[Event]) -> Iterator[Result]:
    for span in sessions_of((event.at_ms for event in events), window.gap_ms):
        yield summed(span, key, [event for event in events if _is_in(event, span)])


def sliding_reference(window: Sliding, events: Sequence[Event]) -> list[tuple[Event, int, int]]:
    """Each event with count and total over (t - size, t] of its key, in order of time; none is late."""
    return [
        (event, len(seen), sum(other.amount for other in seen))
        for event in sorted(events)
        for seen in [[other for other in events if _slides_over(window, event, other)]]
    ]


def _slides_over(window: Sliding, event: Event, other: Event) -> bool:
    return other.key == event.key and event.at_ms - window.size_ms < other.at_ms <= event.at_ms


def _is_in(event: Event, span: Span) -> bool:
    return span.start_ms <= event.at_ms < span.end_ms


def summed(span: Span, key: str | None, events: Sequence[Event]) -> Result:
    """The row of a window."""
    return Result(span, key, len(events), sum(event.amount for event in events))


def moved(watermark_ms: int, part: Sequence[Event], lateness_ms: int) -> int:
    """The watermark behind a part: it never goes back."""
    return max([watermark_ms, *(event.at_ms - lateness_ms for event in part)])
