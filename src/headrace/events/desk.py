"""One partition in the hands of its handler: commands in, events and answers out, all or nothing.

Opening a desk takes the partition over. From then on the one who had it can write nothing, and what they left
undecided is aborted. Only then is the log read to its end, and only then decided: no decision is ever made on
state that another handler could still change.

Each call of `handle` stores the events of all its commands, the answers that have to be told, and snapshots
that are due, together. When that fails, nothing of it counts, and the desk is of no use any more: what it has
in memory may be more than the log has. The next desk begins with what the log says.

An event names its command, and so is the answer to it. Answers to callers of this process are therefore not
written when there are events: those are one batch then, and no transaction is needed. They are written later,
many at once, so that whoever takes over finds the newest ones without reading many events.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from headrace.client.partition import TopicPartition
from headrace.events.command import Reach
from headrace.events.decision import answer_to, decide, failed
from headrace.events.errors import BadEvent, UnknownEvent, UnreadableHistory
from headrace.events.history import incomplete, rebuild
from headrace.events.recorded import write_event
from headrace.events.state import write_state
from headrace.events.takeover import MARK, restore
from headrace.events.writing import Writer
from headrace.protocol.records import NewRecord

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.client.cluster import Cluster
    from headrace.events.aggregate import Aggregate, AggregateForm
    from headrace.events.command import Answer, Command
    from headrace.events.decision import Written
    from headrace.events.event import Event
    from headrace.events.limits import Limits
    from headrace.events.takeover import Restored
    from headrace.events.topics import StoreTopics

UNTOLD: Final = 500
"""Answers that only events tell: so many, and they are written."""
SNAPSHOTS_AT_ONCE: Final = 500
LARGEST_SNAPSHOT_BYTES: Final = 900_000


class Letter(NamedTuple):
    """A command, and where it was in the topic of commands, if it came that way."""

    command: Command
    offset: int | None = None


class Draft(NamedTuple):
    """The answer to a command, and its events, neither of which is stored yet."""

    answer: Answer
    events: Sequence[NewRecord] = ()
    is_told: bool = False
    """Whether the answer is known without a record of it: by the events, or because it was told before."""


class Desk:
    """The state of one partition, and the right to change it. For one thread."""

    def __init__(
        self,
        cluster: Cluster,
        topics: StoreTopics,
        partition: int,
        form: AggregateForm,
        limits: Limits,
        writer: Writer,
        restored: Restored,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._form = form
        self._limits = limits
        self._writer = writer
        self._shelf = restored.shelf
        self._remembered = restored.remembered
        self._end = restored.end
        self._time_ms = restored.time_ms
        self.commands = restored.commands
        """The offset of the next command from the topic."""
        self.replayed = restored.replayed
        """How many events were applied when the desk was opened."""
        self._partition = partition
        self._fresh: dict[str, list[Event]] = {}
        self._untold = restored.untold
        self._unreadable = restored.unreadable
        self._marked = -1
        self._is_keepable = False

    @classmethod
    def open(
        cls, cluster: Cluster, topics: StoreTopics, partition: int, form: AggregateForm, limits: Limits
    ) -> Self:
        """The partition, taken over from whoever had it."""
        plain = [TopicPartition(name, partition) for name in (topics.events, topics.answers)]
        writer = Writer.open(cluster, topics.transactional_id(partition), plain)
        restored = restore(cluster, topics, partition, form, limits)
        return cls(cluster, topics, partition, form, limits, writer, restored)

    def handle(self, letters: Sequence[Letter]) -> list[Answer]:
        """The answers to these commands, which are decided one after the other; all are stored."""
        self._fresh.clear()
        self._time_ms = max(self._time_ms, time.time_ns() // 1_000_000)
        drafts = [self._draft(letter) for letter in letters]
        for letter in letters:
            if letter.offset is not None:
                self.commands = max(self.commands, letter.offset + 1)
        self._store(drafts)
        self._shelf.trim()
        return [draft.answer for draft in drafts]

    def close(self) -> None:
        """Let go of what is in memory."""
        self._shelf.close()

    def _draft(self, letter: Letter) -> Draft:
        command = letter.command
        known = self._remembered.find(command)
        if known is not None:
            return Draft(known, is_told=letter.offset is None)
        reason = self._unreadable.reason(command.aggregate_id)
        if reason is not None:
            return Draft(self._unreadable_answer(command, reason))
        aggregate = self._shelf.get(command.aggregate_id)
        decision = decide(self._form, aggregate, command)
        answer = decision.answer
        records: list[NewRecord] = []
        if decision.events:
            fault = self._apply(aggregate, decision.events, command)
            if fault is None:
                records = list(self._records(command, answer, decision.events))
            else:
                answer = self._failed(command, fault)
        self._remembered.add(answer)
        return Draft(answer, records, is_told=letter.offset is None and bool(records))

    def _apply(self, aggregate: Aggregate, events: Sequence[Written], command: Command) -> Exception | None:
        """The fault of an applier, if one failed: the aggregate is spoilt then."""
        try:
            for event, _ in events:
                self._form.apply(aggregate, event)
            if (
                not self._is_keepable
            ):  # that no snapshot can be made is to be known early, not after many events
                write_state(self._form, aggregate)
                self._is_keepable = True
        except Exception as fault:  # noqa: BLE001  a user's code: its fault is the answer
            return fault
        self._fresh.setdefault(aggregate.id, []).extend(event for event, _ in events)
        self._shelf.changed(aggregate.id, self._end, command.command_id)
        return None

    def _failed(self, command: Command, fault: Exception) -> Answer:
        """The answer to a command whose events could not be applied; the aggregate is read again."""
        key = command.aggregate_id
        try:
            return failed(self._form, self._restored(key), command, fault)
        except (UnreadableHistory, UnknownEvent, BadEvent) as unreadable:
            self._unreadable.add_event(key, self._end, str(unreadable))
            self._shelf.set_aside(key, self._end)
            return self._unreadable_answer(command, str(unreadable))

    def _unreadable_answer(self, command: Command, reason: str) -> Answer:
        return answer_to(command, "unreadable", 0, incomplete(self._form, command.aggregate_id, reason))

    def _restored(self, key: str) -> Aggregate:
        """The aggregate anew, from the log and from what this transaction has added."""
        aggregate = rebuild(self._cluster, self._topics, self._form, key, end=self._end)
        for event in self._fresh.get(key, ()):
            self._form.apply(aggregate, event)
        self._shelf.put(aggregate)
        return aggregate

    def _records(self, command: Command, answer: Answer, events: Sequence[Written]) -> Iterator[NewRecord]:
        first = answer.version - len(events) + 1
        for version, (event, data) in enumerate(events, first):
            yield write_event(
                self._topics.store, self._form.name, command, version, self._time_ms, event, data
            )

    def _store(self, drafts: Sequence[Draft]) -> None:
        events = [record for draft in drafts for record in draft.events]
        snapshots = self._snapshots(self._end + len(events))
        answers = [draft.answer for draft in drafts if not draft.is_told]
        untold = [draft.answer for draft in drafts if draft.is_told and draft.events]
        if snapshots or len(self._untold) > UNTOLD:
            # Whoever takes over reads events from the snapshots on: what only older ones tell would be lost.
            answers, untold = [*untold, *answers], []
        if answers:
            answers, self._untold = [*self._untold, *answers], []
        parts = {
            self._topics.events: events,
            self._topics.answers: [self._reply(answer) for answer in answers],
            self._topics.snapshots: snapshots,
        }
        self._write(
            {TopicPartition(name, self._partition): records for name, records in parts.items() if records}
        )
        self._untold += untold

    def _reply(self, answer: Answer) -> NewRecord:
        value = answer.write(Reach(self.commands, self._end))
        return NewRecord(answer.aggregate_id.encode(), value, self._time_ms)

    def _snapshots(self, end: int) -> list[NewRecord]:
        """Snapshots of aggregates whose oldest event without one is too far behind the end."""
        due = self._shelf.due(end - self._limits.snapshot_events, SNAPSHOTS_AT_ONCE)
        records = [record for key in due if (record := self._snapshot(key)) is not None]
        if records:
            through = self._shelf.through(end)
            if through != self._marked:
                self._marked = through
                mark = b'{"form":"%b","through":%d}' % (self._form.snapshots.encode(), through)
                records.append(NewRecord(MARK, mark, self._time_ms))
        return records

    def _snapshot(self, key: str) -> NewRecord | None:
        aggregate = self._shelf.get(key)
        state = self._shelf.state_of(aggregate)
        if state is None or len(state) > LARGEST_SNAPSHOT_BYTES:
            self._shelf.give_up(key)
            return None
        headers = (
            ("form", self._form.snapshots.encode()),
            ("version", b"%d" % aggregate.version),
            ("command", self._shelf.covered(key).encode()),
        )
        return NewRecord(key.encode(), state, self._time_ms, headers)

    def _write(self, parts: dict[TopicPartition, list[NewRecord]]) -> None:
        events = self._writer.write(parts).get(TopicPartition(self._topics.events, self._partition))
        if events is not None:
            # Where the broker only says that it has had the batch, this is a lower bound.
            self._end = max(events.first, self._end) + events.size
