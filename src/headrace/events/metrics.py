"""The metrics of the handlers of an event store."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Final

from headrace.metrics.families import Histogram, Kind, Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headrace.events.dispatcher import CommandDispatcher
    from headrace.metrics.families import Scrape

_AGGREGATE: Final = ("store", "aggregate")

COMMANDS = Metric(
    name="headrace_events_commands_total",
    kind=Kind.COUNTER,
    doc="Commands that this process decided on, by outcome: `done`, `rejected`, `conflict` (the version was "
    "not the expected one), `failed` or `unreadable`.",
    labels=(*_AGGREGATE, "outcome"),
)
LATENCY = Metric(
    name="headrace_events_command_seconds",
    kind=Kind.HISTOGRAM,
    doc="Time from the arrival of a command in this process to its stored reply.",
    labels=_AGGREGATE,
)
PARTITIONS = Metric(
    name="headrace_events_handled_partitions",
    kind=Kind.GAUGE,
    doc="Partitions that this process handles.",
    labels=_AGGREGATE,
)

METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""Every metric of an event store, in the order of the documentation."""


class HandlerMetrics:
    """The commands of one class of aggregates, counted by the threads of its handlers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.outcomes: Counter[str] = Counter(done=0, conflict=0)
        self.latency = Histogram()

    def count(self, outcomes: Iterable[str], seconds: Sequence[float]) -> None:
        """Count the commands of one step, with the time that each took."""
        with self._lock:
            self.outcomes.update(outcomes)
            for each in seconds:
                self.latency.observe(each)


class EventMetricsSource:
    """The page of a process that handles commands."""

    def __init__(self, store: str, dispatchers: Callable[[], Sequence[CommandDispatcher]]) -> None:
        self._store = store
        self._dispatchers = dispatchers

    def scrape(self, scrape: Scrape) -> None:
        """Add all samples."""
        scrape.announce(*METRICS)
        for dispatcher in self._dispatchers():
            where = (self._store, dispatcher.topics.aggregate)
            for outcome, count in list(dispatcher.metrics.outcomes.items()):
                scrape.add(COMMANDS, count, *where, outcome)
            scrape.add(LATENCY, dispatcher.metrics.latency, *where)
            scrape.add(PARTITIONS, len(dispatcher.handled_partitions()), *where)

    def faults(self) -> list[str]:
        """Nothing: handlers recover by themselves."""
        return []

    def pending(self) -> list[str]:
        """Why partitions of this process handle no commands."""
        return [error for dispatcher in self._dispatchers() for error in dispatcher.errors()]
