"""One partition in the hands of its handler: commands in, events and answers out, in one transaction.

Opening a desk takes the partition's transactional id over. From then on the one who had it can write nothing,
and what they left undecided is aborted. Only then is the log read to its end, and only then decided: no
decision is ever made on state that another handler could still change.

Each call of `handle` is one transaction: the events of all its commands, their answers, and snapshots that
are due. When it fails, nothing of it counts, and the desk is of no use any more: what it has in memory may be
more than the log has. The next desk begins with what the log says.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from headrace.client.partition import TopicPartition
from headrace.client.produce import BatchProducer
from headrace.client.shared_transaction import SharedTransaction
from headrace.events.decision import decide, failed
from headrace.events.history import rebuild
from headrace.events.recorded import write_event
from headrace.events.state import write_state
from headrace.events.takeover import MARK, restore
from headrace.protocol.batch import TRANSACTIONAL
from headrace.protocol.records import NewRecord, encode_batch

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

TRANSACTION_MS: Final = 15_000
"""How long readers wait at most behind a transaction whose handler is gone and has no successor."""
SNAPSHOTS_AT_ONCE: Final = 500
LARGEST_SNAPSHOT_BYTES: Final = 900_000
BATCH_BYTES: Final = 500_000
BATCH_RECORDS: Final = 5_000


class Letter(NamedTuple):
    """A command, and where it was in the topic of commands, if it came that way."""

    command: Command
    offset: int | None = None


class Desk:
    """The state of one partition, and the right to change it. For one thread."""

    def __init__(
        self,
        cluster: Cluster,
        topics: StoreTopics,
        partition: int,
        form: AggregateForm,
        limits: Limits,
        transaction: SharedTransaction,
        restored: Restored,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._form = form
        self._limits = limits
        self._transaction = transaction
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
        self._marked = -1
        self._is_keepable = False

    @classmethod
    def open(
        cls, cluster: Cluster, topics: StoreTopics, partition: int, form: AggregateForm, limits: Limits
    ) -> Self:
        """The partition, taken over from whoever had it."""
        name = topics.transactional_id(partition)
        transaction = SharedTransaction.open(cluster, name, timeout_ms=TRANSACTION_MS)
        restored = restore(cluster, topics, partition, form, limits)
        return cls(cluster, topics, partition, form, limits, transaction, restored)

    def handle(self, letters: Sequence[Letter]) -> list[Answer]:
        """The answers to these commands, which are decided one after the other; all are stored."""
        self._fresh.clear()
        self._time_ms = max(self._time_ms, time.time_ns() // 1_000_000)
        events: list[NewRecord] = []
        answers = [self._answer(letter.command, events) for letter in letters]
        for letter in letters:
            if letter.offset is not None:
                self.commands = max(self.commands, letter.offset + 1)
        self._store(events, answers)
        self._shelf.trim()
        return answers

    def close(self) -> None:
        """Let go of what is in memory."""
        self._shelf.close()

    def _answer(self, command: Command, events: list[NewRecord]) -> Answer:
        known = self._remembered.find(command)
        if known is not None:
            return known
        aggregate = self._shelf.get(command.aggregate_id)
        decision = decide(self._form, aggregate, command)
        answer = decision.answer
        if decision.events:
            fault = self._apply(aggregate, decision.events)
            if fault is None:
                events += self._records(command, answer, decision.events)
            else:
                answer = failed(self._form, self._restored(command.aggregate_id), command, fault)
        self._remembered.add(answer)
        return answer

    def _apply(self, aggregate: Aggregate, events: Sequence[Written]) -> Exception | None:
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
        self._shelf.changed(aggregate.id, self._end)
        return None

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

    def _store(self, events: list[NewRecord], answers: Sequence[Answer]) -> None:
        replies = [
            NewRecord(answer.aggregate_id.encode(), answer.write(self.commands), self._time_ms)
            for answer in answers
        ]
        parts = {self._topics.events: events, self._topics.answers: replies}
        parts[self._topics.snapshots] = self._snapshots(self._end + len(events))
        self._write(
            {TopicPartition(name, self._partition): records for name, records in parts.items() if records}
        )

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
        self._shelf.covered(key)
        headers = (("form", self._form.snapshots.encode()), ("version", b"%d" % aggregate.version))
        return NewRecord(key.encode(), state, self._time_ms, headers)

    def _write(self, parts: dict[TopicPartition, list[NewRecord]]) -> None:
        transaction = self._transaction
        transaction.begin(parts)
        producer = BatchProducer(
            self._cluster, transactional_id=transaction.transactional_id, adding=transaction.writes_add
        )
        for place, records in parts.items():
            sequence = 0
            for batch in _batches(records):
                encoded = encode_batch(
                    batch,
                    attributes=TRANSACTIONAL,
                    producer_id=transaction.identity.producer_id,
                    producer_epoch=transaction.identity.epoch,
                    base_sequence=sequence,
                )
                producer.send(place, encoded)
                sequence += len(batch)
        offsets = producer.flush()
        transaction.commit()
        place = TopicPartition(self._topics.events, self._partition)
        if place in parts:
            # Where the broker only says that it has had the batch, this is a lower bound.
            first = max(offsets[place], self._end)
            self._end = first + len(parts[place]) + 1


def _batches(records: list[NewRecord]) -> Iterator[list[NewRecord]]:
    batch: list[NewRecord] = []
    size = 0
    for record in records:
        taken = len(record.value or b"") + 500
        if batch and (size + taken > BATCH_BYTES or len(batch) == BATCH_RECORDS):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += taken
    yield batch
