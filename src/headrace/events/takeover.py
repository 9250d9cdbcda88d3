"""What a handler knows of its partition when it begins: read from the log, once everybody else is fenced.

First the newest answers, then the newest snapshots and how far they reach, then the events from there on,
which tell the answers that are not written yet. All are read up to where their partitions end once the
transactional id is ours: nobody else can add to them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.client.partition import TopicPartition
from headrace.events.command import Answer, Reach
from headrace.events.history import advance, second_event
from headrace.events.log import extents, read_records
from headrace.events.recorded import read_event, to_ms
from headrace.events.remembered import Remembered
from headrace.events.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.client.cluster import Cluster
    from headrace.events.aggregate import AggregateForm
    from headrace.events.limits import Limits
    from headrace.events.recorded import Recorded
    from headrace.events.topics import StoreTopics
    from headrace.protocol.records import Record

MARK: Final = b"\0"
"""The key of the record that says how far snapshots reach; no aggregate has it as its id."""


class Restored(NamedTuple):
    """What the log says of a partition."""

    shelf: Shelf
    remembered: Remembered
    end: int
    """The offset after the last event."""
    time_ms: int
    """The time of the last event."""
    commands: int
    """The offset of the first command in the topic that has no answer."""
    replayed: int
    """How many events were applied."""
    untold: list[Answer]
    """Answers that only events tell."""


def restore(
    cluster: Cluster, topics: StoreTopics, partition: int, form: AggregateForm, limits: Limits
) -> Restored:
    """Everything that was decided in this partition, as far as decisions to come depend on it."""
    names = (topics.events, topics.answers, topics.snapshots, topics.commands)
    places = [TopicPartition(name, partition) for name in names]
    found = extents(cluster, places)
    events, answers, snapshots, commands = (found[place] for place in places)
    shelf = Shelf(form, limits.aggregates)
    remembered = Remembered(limits.remembered)
    # A marker follows the records of each transaction: the newest N answers lie in the last 2 N offsets.
    first = max(answers[0], answers[1] - 2 * limits.remembered)
    reach = _remember(cluster, places[1], (first, answers[1]), remembered)
    start = _read_snapshots(cluster, places[2], snapshots, form, shelf)
    time_ms, replayed = 0, 0
    replay = _Replay(form, shelf)
    untold: dict[tuple[str, str], Answer] = {}
    for recorded in _read_events(cluster, places[0], (max(start, events[0]), events[1]), form.name):
        time_ms = to_ms(recorded.time)
        replayed += replay.apply(recorded)
        if recorded.offset >= reach.events:
            answer = _answer_of(recorded)
            untold[answer.key] = answer
        if not replayed % 1000:
            shelf.trim()
    replay.check_end()
    for answer in untold.values():
        remembered.add(answer)
    return Restored(
        shelf=shelf,
        remembered=remembered,
        end=events[1],
        time_ms=time_ms,
        commands=max(reach.commands, commands[0]),
        replayed=replayed,
        untold=list(untold.values()),
    )


def _read_snapshots(
    cluster: Cluster, place: TopicPartition, extent: tuple[int, int], form: AggregateForm, shelf: Shelf
) -> int:
    """From which event on there is more than the snapshots say; the shelf has the snapshots."""
    marks: list[Record] = []

    def rows() -> Iterator[tuple[str, int, bytes, str]]:
        for record in read_records(cluster, place, *extent):
            if record.key == MARK:
                marks[:] = [record]
            elif (
                record.key
                and record.value is not None
                and (fields := dict(record.headers))["form"] == current
            ):
                command = (fields["command"] or b"").decode()
                yield record.key.decode(), int(fields["version"] or b""), record.value, command

    current = form.snapshots.encode()
    shelf.fill(rows())
    mark = json.loads(marks[0].value or b"{}") if marks else {}
    return int(mark["through"]) if mark.get("form") == form.snapshots else 0


def _read_events(
    cluster: Cluster, place: TopicPartition, extent: tuple[int, int], aggregate: str
) -> Iterator[Recorded]:
    for record in read_records(cluster, place, *extent):
        yield read_event(
            aggregate,
            place.partition,
            record.offset,
            record.timestamp,
            record.key,
            record.value,
            record.headers,
        )


class _Replay:
    """Applies the events of a partition to aggregates of which some come from snapshots.

    A snapshot may be newer than events that are read: those are skipped, and must lead up to the event that
    the snapshot ends with. Anything else is a second event of some version, and `BadEvent`.
    """

    def __init__(self, form: AggregateForm, shelf: Shelf) -> None:
        self._form = form
        self._shelf = shelf
        self._skipped: dict[str, Recorded] = {}
        """By aggregate, the last event that was skipped, until the one that its snapshot ends with."""

    def apply(self, recorded: Recorded) -> bool:
        """Whether the aggregate did not have the event yet; it has now."""
        aggregate = self._shelf.get(recorded.id)
        if recorded.version <= aggregate.version and not self._shelf.is_changed(recorded.id):
            self._skip(recorded, aggregate.version)
            return False
        advance(self._form, aggregate, recorded)
        self._shelf.changed(recorded.id, recorded.offset, recorded.command_id)
        return True

    def check_end(self) -> None:
        """Pass when no event is left that its aggregate's snapshot does not have."""
        for recorded in self._skipped.values():
            raise second_event(recorded)

    def _skip(self, recorded: Recorded, version: int) -> None:
        last = self._skipped.pop(recorded.id, None)
        if last is not None and recorded.version != last.version + 1:
            raise second_event(recorded)
        if recorded.version < version:
            self._skipped[recorded.id] = recorded
        elif recorded.command_id != self._shelf.snapshot_command(recorded.id):
            raise second_event(recorded)


def _answer_of(recorded: Recorded) -> Answer:
    """What the command of an event was answered, as far as no later event of it says more."""
    return Answer(
        aggregate_id=recorded.id, command_id=recorded.command_id, kind="done", version=recorded.version
    )


def _remember(
    cluster: Cluster, place: TopicPartition, extent: tuple[int, int], remembered: Remembered
) -> Reach:
    """How far the answers in the log reach; they are remembered."""
    reach = Reach()
    for record in read_records(cluster, place, *extent):
        answer, reach = Answer.read(record.value or b"")
        remembered.add(answer)
    return reach
