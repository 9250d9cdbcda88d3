"""What a handler knows of its partition when it begins: read from the log, once everybody else is fenced.

First the newest answers, then the newest snapshots and how far they reach, then the events from there on,
which tell the answers that are not written yet. All are read up to where their partitions end once the
transactional id is ours: nobody else can add to them.

Records that cannot be read stop nothing. Of events, they concern some aggregates (`unreadable`). Where
snapshots cannot be read, none are used. Answers that cannot be read are taken from the events, which are then
read from the last answer before them on; a rejection among them is forgotten.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.client.partition import TopicPartition
from headrace.client.records import UnreadableRecords, read_records
from headrace.errors import HeadraceError
from headrace.events.command import Answer, Reach
from headrace.events.history import advance, second_event
from headrace.events.log import extents
from headrace.events.recorded import recorded_in, to_ms
from headrace.events.remembered import Remembered
from headrace.events.shelf import Shelf
from headrace.events.unreadable import UnreadableHistories, ids_in

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

logger = logging.getLogger(__name__)


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
    unreadable: UnreadableHistories
    """The aggregates that take no commands."""


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
    answered, is_whole = _remember(cluster, places[1], (first, answers[1]), remembered)
    start = _read_snapshots(cluster, places[2], snapshots, form, shelf)
    start = max(start if is_whole else min(start, answered.events), events[0])
    time_ms, replayed = 0, 0
    replay = _Replay(topics.events, form, shelf)
    untold: dict[tuple[str, str], Answer] = {}
    for recorded in _read_events(cluster, places[0], (start, events[1]), form.name):
        if isinstance(recorded, UnreadableRecords):
            replay.unreadable.add(recorded)
            continue
        time_ms = to_ms(recorded.time)
        replayed += replay.apply(recorded)
        if recorded.offset >= answered.events:
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
        commands=max(answered.commands, commands[0]),
        replayed=replayed,
        untold=list(untold.values()),
        unreadable=replay.unreadable,
    )


def _read_snapshots(
    cluster: Cluster, place: TopicPartition, extent: tuple[int, int], form: AggregateForm, shelf: Shelf
) -> int:
    """From which event on there is more than the snapshots say; the shelf has the snapshots.

    If one of them cannot be read, an aggregate would seem older than it is: none is used then.
    """
    marks: list[Record] = []
    faults: list[UnreadableRecords] = []

    def rows() -> Iterator[tuple[str, int, bytes, str]]:
        for record in read_records(cluster, place, *extent):
            if isinstance(record, UnreadableRecords):
                logger.warning("%s", record)
                if ids_in(record) != frozenset():
                    faults.append(record)
            elif record.key == MARK:
                marks[:] = [record]
            elif (snapshot := _snapshot(record, current)) is not None:
                yield snapshot

    current = form.snapshots.encode()
    shelf.fill(rows())
    try:
        mark = json.loads(marks[0].value or b"{}") if marks else {}
        through = int(mark["through"]) if mark.get("form") == form.snapshots else 0
    except (ValueError, TypeError, KeyError, AttributeError) as fault:
        logger.warning("%s: the record that says how far snapshots reach cannot be read: %r", place, fault)
        through = 0
    if faults:
        shelf.clear()
        return 0
    return through


def _snapshot(record: Record, current: bytes) -> tuple[str, int, bytes, str] | None:
    """Id, version, state and last command of a snapshot, if the current code wrote it."""
    fields = dict(record.headers)
    if not record.key or record.value is None or fields.get("form") != current:
        return None
    try:
        command = (fields.get("command") or b"").decode()
        return record.key.decode(), int(fields.get("version") or b""), record.value, command
    except ValueError:
        return None


def _read_events(
    cluster: Cluster, place: TopicPartition, extent: tuple[int, int], aggregate: str
) -> Iterator[Recorded | UnreadableRecords]:
    for record in read_records(cluster, place, *extent):
        yield record if isinstance(record, UnreadableRecords) else recorded_in(aggregate, place, record)


class _Replay:
    """Applies the events of a partition to aggregates of which some come from snapshots.

    A snapshot may be newer than events that are read: those are skipped, and must lead up to the event that
    the snapshot ends with. Anything else is a second event of some version. An aggregate of which an event
    cannot be applied is left out from there on.
    """

    def __init__(self, topic: str, form: AggregateForm, shelf: Shelf) -> None:
        self.unreadable = UnreadableHistories()
        self._topic = topic
        self._form = form
        self._shelf = shelf
        self._skipped: dict[str, Recorded] = {}
        """By aggregate, the last event that was skipped, until the one that its snapshot ends with."""

    def apply(self, recorded: Recorded) -> bool:
        """Whether the aggregate did not have the event yet; it has now."""
        if self.unreadable.is_final(recorded.id):
            return False
        try:
            is_new = self._apply(recorded)
        except Exception as fault:  # noqa: BLE001  a user's code, or an event that it cannot read
            self._leave_out(recorded, fault)
            return False
        self.unreadable.continued(recorded.id, recorded.offset)
        return is_new

    def check_end(self) -> None:
        """Leave out the aggregates that have an event which their snapshots do not have."""
        for recorded in self._skipped.values():
            self._leave_out(recorded, second_event(recorded))
        first = self.unreadable.first_offset
        if first is not None:
            self._shelf.pin(first)

    def _apply(self, recorded: Recorded) -> bool:
        aggregate = self._shelf.get(recorded.id)
        if recorded.version <= aggregate.version and not self._shelf.is_changed(recorded.id):
            self._skip(recorded, aggregate.version)
            return False
        advance(self._form, aggregate, recorded)
        self._shelf.changed(recorded.id, recorded.offset, recorded.command_id)
        return True

    def _skip(self, recorded: Recorded, version: int) -> None:
        last = self._skipped.pop(recorded.id, None)
        if last is not None and recorded.version != last.version + 1:
            raise second_event(recorded)
        if recorded.version < version:
            self._skipped[recorded.id] = recorded
        elif recorded.command_id != self._shelf.snapshot_command(recorded.id):
            raise second_event(recorded)

    def _leave_out(self, recorded: Recorded, fault: Exception) -> None:
        reason = str(fault) if isinstance(fault, HeadraceError) else f"{type(fault).__name__}: {fault}"
        where = f"offset {recorded.offset} of partition {recorded.partition} of {self._topic}"
        self.unreadable.add_event(recorded.id, recorded.offset, f"{where} cannot be applied: {reason}")
        self._shelf.set_aside(recorded.id, recorded.offset)


def _answer_of(recorded: Recorded) -> Answer:
    """What the command of an event was answered, as far as no later event of it says more."""
    return Answer(
        aggregate_id=recorded.id, command_id=recorded.command_id, kind="done", version=recorded.version
    )


def _remember(
    cluster: Cluster, place: TopicPartition, extent: tuple[int, int], remembered: Remembered
) -> tuple[Reach, bool]:
    """How far the answers in the log reach without a gap, and whether none is missing."""
    reach, events = Reach(), None
    for record in read_records(cluster, place, *extent):
        if isinstance(record, UnreadableRecords):
            logger.warning("%s", record)
            if events is None and ids_in(record) != frozenset():
                events = reach.events  # those after it tell what is lost here
            continue
        try:
            answer, reach = Answer.read(record.value or b"")
        except ValueError as fault:
            logger.warning("offset %d of %s is no answer: %s", record.offset, place, fault)
            continue
        remembered.add(answer)
    return (reach, True) if events is None else (reach._replace(events=events), False)
