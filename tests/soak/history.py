"""A history of operations on one topic, and a checker that looks for anomalies in it.

The anomalies are those of Jepsen's Kafka workload. Every value is sent once, so a value identifies its send,
and a record is known by its partition and offset. Clients append operations as they complete; the checker
reads the finished history together with the log that a `read_committed` consumer reads at the end.
"""

import enum
import threading
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise


class Outcome(enum.Enum):
    """What its client knows about a send."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"
    """The acknowledgment, or the result of the commit, was lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """One value sent to one partition; offsets are known only from acknowledgments."""

    producer: str
    partition: int
    value: int
    outcome: Outcome
    offset: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """A consumer received a partition, or positioned itself in it: what it polls next need not follow on."""

    consumer: str
    partition: int
    committed: int = 0
    """For a member of a group, the highest offset whose commit had been confirmed before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """A record that a `read_committed` consumer received."""

    consumer: str
    partition: int
    offset: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A group's offset whose commit was confirmed."""

    partition: int
    offset: int


Operation = Send | Assign | Poll | Commit


@dataclass(slots=True)
class History:
    """Operations in the order in which they completed; any thread may append."""

    operations: list[Operation] = field(default_factory=list)
    _confirmed: dict[int, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def append(self, operation: Operation) -> None:
        """Add an operation that has completed."""
        with self._lock:
            self.operations.append(operation)
            if isinstance(operation, Commit):
                before = self._confirmed.get(operation.partition, 0)
                self._confirmed[operation.partition] = max(before, operation.offset)

    def confirmed(self, partition: int) -> int:
        """The highest offset of a group whose commit is confirmed so far; 0 if there is none."""
        with self._lock:
            return self._confirmed.get(partition, 0)

    def counts(self) -> dict[str, int]:
        """How many operations there are of each type."""
        return dict(Counter(f"{type(operation).__name__.lower()}s" for operation in self.operations))

    def sends(self, *outcomes: Outcome) -> list[Send]:
        """The sends with one of these outcomes."""
        return [o for o in self.operations if isinstance(o, Send) and o.outcome in outcomes]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Anomaly:
    """Something that must not happen, and where."""

    kind: str
    partition: int
    detail: str


Log = list[dict[int, int]]
"""For each partition the values by their offsets, as read from the beginning to the end."""


def find_anomalies(history: History, log: Log) -> list[Anomaly]:
    """All anomalies of a history whose topic holds `log` at the end."""
    checks = (
        _inconsistent_offsets,
        _duplicates,
        _lost_writes,
        _aborted_reads,
        _unsent_reads,
        _reordered_sends,
        _polls_out_of_order,
        _lost_commits,
    )
    return sorted(anomaly for check in checks for anomaly in check(history, log))


def find_missing(history: History, received: Iterable[int]) -> list[int]:
    """The committed values that readers with at-least-once delivery have not received."""
    return sorted({send.value for send in history.sends(Outcome.COMMITTED)} - set(received))


def find_copy_anomalies(log: Log, copied: Iterable[int]) -> dict[int, int]:
    """How often each value is in an exactly-once copy of the log, where that is not once."""
    expected = Counter(value for partition in log for value in partition.values())
    found = Counter(copied)
    return {value: found[value] for value in expected | found if found[value] != expected[value]}


def _observations(history: History, log: Log) -> Iterator[tuple[int, int, int]]:
    """Every claim that a value is at an offset of a partition."""
    for operation in history.operations:
        if isinstance(operation, Poll | Send) and operation.offset is not None:
            yield operation.partition, operation.offset, operation.value
    for partition, values in enumerate(log):
        for offset, value in values.items():
            yield partition, offset, value


def _inconsistent_offsets(history: History, log: Log) -> Iterator[Anomaly]:
    values: dict[tuple[int, int], set[int]] = defaultdict(set)
    for partition, offset, value in _observations(history, log):
        values[partition, offset].add(value)
    for (partition, offset), seen in values.items():
        if len(seen) > 1:
            yield _anomaly("inconsistent offset", partition, f"offset {offset} holds {sorted(seen)}")


def _duplicates(history: History, log: Log) -> Iterator[Anomaly]:
    places: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for partition, offset, value in _observations(history, log):
        places[value].add((partition, offset))
    for value, seen in places.items():
        if len(seen) > 1:
            yield _anomaly("duplicate", min(seen)[0], f"value {value} is at {sorted(seen)}")


def _lost_writes(history: History, log: Log) -> Iterator[Anomaly]:
    present = [set(values.values()) for values in log]
    for send in history.sends(Outcome.COMMITTED):
        if send.value not in present[send.partition]:
            yield _anomaly("lost write", send.partition, f"{send} is not in the log")


def _aborted_reads(history: History, log: Log) -> Iterator[Anomaly]:
    aborted = {send.value: send for send in history.sends(Outcome.ABORTED)}
    for partition, offset, value in _reads(history, log):
        if value in aborted:
            yield _anomaly("aborted read", partition, f"offset {offset} shows {aborted[value]}")


def _unsent_reads(history: History, log: Log) -> Iterator[Anomaly]:
    sent = {send.value for send in history.sends(*Outcome)}
    for partition, offset, value in _reads(history, log):
        if value not in sent:
            yield _anomaly("unsent read", partition, f"offset {offset} holds {value}")


def _reads(history: History, log: Log) -> set[tuple[int, int, int]]:
    polled = {(o.partition, o.offset, o.value) for o in history.operations if isinstance(o, Poll)}
    return polled | {(number, *item) for number, values in enumerate(log) for item in values.items()}


def _reordered_sends(history: History, _: Log) -> Iterator[Anomaly]:
    """Values grow with time at each producer, so their offsets in a partition have to grow as well."""
    acknowledged: dict[tuple[str, int], list[Send]] = defaultdict(list)
    for send in history.sends(*Outcome):
        if send.offset is not None:
            acknowledged[send.producer, send.partition].append(send)
    for (_, partition), sends in acknowledged.items():
        sends.sort(key=lambda send: send.value)
        for one, two in pairwise(sends):
            if one.offset >= two.offset:  # type: ignore[operator]  # neither is None here
                yield _anomaly("reordered send", partition, f"{one} is behind {two}")


def _polls_out_of_order(history: History, log: Log) -> Iterator[Anomaly]:
    """Within one assignment offsets grow, and no visible record is passed over."""
    visible = [sorted(values) for values in log]
    last: dict[tuple[str, int], int] = {}
    for operation in history.operations:
        if isinstance(operation, Assign):
            last.pop((operation.consumer, operation.partition), None)
        elif isinstance(operation, Poll):
            place = operation.consumer, operation.partition
            before = last.get(place)
            last[place] = operation.offset
            if before is not None:
                yield from _between(operation, before, visible[operation.partition])


def _between(poll: Poll, before: int, visible: list[int]) -> Iterator[Anomaly]:
    if poll.offset <= before:
        yield _anomaly("non-monotonic poll", poll.partition, f"{poll} after offset {before}")
        return
    skipped = visible[bisect_right(visible, before) : bisect_left(visible, poll.offset)]
    if skipped:
        yield _anomaly("skipped poll", poll.partition, f"{poll} after offset {before} passes over {skipped}")


def _lost_commits(history: History, _: Log) -> Iterator[Anomaly]:
    """A member that is assigned a partition continues at the committed offset or before it."""
    floor: dict[tuple[str, int], int] = {}
    for operation in history.operations:
        if isinstance(operation, Assign):
            floor[operation.consumer, operation.partition] = operation.committed
        elif isinstance(operation, Poll):
            committed = floor.pop((operation.consumer, operation.partition), 0)
            if operation.offset < committed:
                yield _anomaly(
                    "lost commit", operation.partition, f"{operation}, though {committed} was committed"
                )


def _anomaly(kind: str, partition: int, detail: str) -> Anomaly:
    return Anomaly(kind=kind, partition=partition, detail=detail)
