"""Decides on the commands of one partition, and stores events, replies and snapshots atomically.

Opening a processor fences the previous handler of the partition and aborts its open transaction. Only then
the log is read to its end, and only then commands are decided: no decision is based on state that another
handler could still change.

Each call of `handle` stores the events of all its commands, the replies, and the snapshots that are due, all
or nothing. If that fails, the processor must be closed: its memory may hold more than the log. The next one
recovers from the log.

An event carries the id of its command, and so implies the reply to it. Replies to callers in this process are
therefore not written along with events: the events alone are one batch, which needs no transaction. The
implied replies are written later, many at once, so that a successor finds the newest ones without reading
many events.

The writer stores records for one partition that fit into one batch as that batch, which a broker accepts
completely or not at all: one request. Everything else is a transaction: one request that writes, and one that
commits.

Once a writer is open, its predecessor cannot write. The coordinator refuses its transactions, because the
transactional id has a newer epoch. The partitions refuse its plain batches, because they accept no epoch that
is older than the newest they have seen: opening therefore leaves a marker with a newer epoch in each
partition of plain batches, and returns once the marker is written.

A partition forgets producers that have not written for a day, and a producer id is replaced when its epochs
are used up. A plain batch is therefore written only soon after the last write, and far from the last epoch;
otherwise a transaction is used, for which the coordinator does the fencing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from kio.schema.errors import ErrorCode

from headrace.client.errors import PRODUCE_RETRIABLE
from headrace.client.partition import TopicPartition
from headrace.client.produce import BatchProducer
from headrace.client.shared_transaction import SharedTransaction
from headrace.errors import Misuse
from headrace.events.cache import write_state
from headrace.events.commands import ReplyRange, decide, failed, reply_to
from headrace.events.errors import InvalidEvent, UnknownEvent, UnreadableHistory
from headrace.events.event import write_event
from headrace.events.history import incomplete_history, rebuild
from headrace.events.recovery import COVERAGE_KEY, recover
from headrace.protocol.batch import TRANSACTIONAL
from headrace.protocol.records import NewRecord, encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.client.cluster import Cluster
    from headrace.client.shared_transaction import ProducerIdentity
    from headrace.events.aggregate import Aggregate, AggregateSchema
    from headrace.events.commands import Command, CommandReply, EncodedEvent
    from headrace.events.event import Event
    from headrace.events.recovery import RecoveredPartition
    from headrace.events.topics import StoreTopics


TRANSACTION_MS: Final = 15_000
"""How long readers wait for the open transaction of a handler that was killed and has no successor."""
BATCH_BYTES: Final = 500_000
BATCH_RECORDS: Final = 5_000
PLAIN_WITHIN_S: Final = 3_600.0
RETRIABLE: Final = PRODUCE_RETRIABLE | {ErrorCode.invalid_txn_state}
"""After a transaction Apache Kafka accepts no plain batch until its markers are written."""
LAST_PLAIN_EPOCH: Final = 32_000
"""The last epoch is 32,767; each successor uses two or three."""


class WrittenRange(NamedTuple):
    """The offsets of the written records of one partition."""

    first: int
    """The offset of the first record; negative if the broker only responds that it already has the batch."""
    size: int
    """The number of offsets, including the marker of the transaction."""


class LogWriter:
    """The only writer of some partitions. For one thread; unusable after an error."""

    def __init__(
        self, cluster: Cluster, transaction: SharedTransaction, plain: Sequence[TopicPartition]
    ) -> None:
        self.transaction = transaction
        self.producer = BatchProducer(cluster, retriable=RETRIABLE)
        self._plain = frozenset(plain)
        self._written_at = time.monotonic()

    @classmethod
    def open(cls, cluster: Cluster, transactional_id: str, plain: Sequence[TopicPartition]) -> Self:
        """Take over the transactional id and the partitions of plain batches from the previous writer."""
        first = SharedTransaction.open(cluster, transactional_id, timeout_ms=TRANSACTION_MS)
        first.add(plain)
        # The second open aborts the first transaction, and returns when its markers are written.
        transaction = SharedTransaction.open(cluster, transactional_id, timeout_ms=TRANSACTION_MS)
        return cls(cluster, transaction, plain)

    def write(
        self, parts: Mapping[TopicPartition, Sequence[NewRecord]]
    ) -> dict[TopicPartition, WrittenRange]:
        """Store these records; returns their offsets."""
        batches = [(partition, batch) for partition, records in parts.items() for batch in _batches(records)]
        if not batches:
            return {}
        is_plain = len(batches) == 1 and self._may_be_plain(batches[0][0])
        offsets = self._write_plain(*batches[0]) if is_plain else self._write_all(batches)
        self._written_at = time.monotonic()
        marker = 0 if is_plain else 1
        return {
            partition: WrittenRange(offsets[partition], len(records) + marker)
            for partition, records in parts.items()
        }

    def _may_be_plain(self, partition: TopicPartition) -> bool:
        return (
            partition in self._plain
            and self.transaction.identity.epoch < LAST_PLAIN_EPOCH
            and time.monotonic() - self._written_at < PLAIN_WITHIN_S
        )

    def _write_plain(
        self, partition: TopicPartition, records: Sequence[NewRecord]
    ) -> dict[TopicPartition, int]:
        self.producer.send(partition, self._encoded(partition, records, 0))
        return self.producer.flush()

    def _write_all(
        self, batches: Sequence[tuple[TopicPartition, Sequence[NewRecord]]]
    ) -> dict[TopicPartition, int]:
        transaction = self.transaction
        transaction.begin({partition for partition, _ in batches})
        producer = transaction.producer()
        for partition, records in batches:
            producer.send(partition, self._encoded(partition, records, TRANSACTIONAL))
        offsets = producer.flush()
        transaction.commit()
        return offsets

    def _encoded(self, partition: TopicPartition, records: Sequence[NewRecord], attributes: int) -> bytearray:
        identity: ProducerIdentity = self.transaction.identity
        return encode_batch(
            records,
            attributes=attributes,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=self.transaction.next_sequence(partition, len(records)),
        )


def _batches(records: Sequence[NewRecord]) -> Iterator[list[NewRecord]]:
    batch: list[NewRecord] = []
    size = 0
    for record in records:
        taken = len(record.value or b"") + 500
        if batch and (size + taken > BATCH_BYTES or len(batch) == BATCH_RECORDS):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += taken
    if batch:
        yield batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the handler of each partition."""

    aggregates: int = 10_000
    """Aggregates in memory; the others are in a temporary file."""
    replies: int = 10_000
    """Cached replies: a command that is repeated within that many others has no second effect."""
    snapshot_events: int = 1_000
    """A snapshot covers each event older than this many others, which bounds what a successor replays."""

    def __post_init__(self) -> None:
        for name in ("aggregates", "replies", "snapshot_events"):
            if getattr(self, name) < 1:
                raise Misuse(f"Limits({name}={getattr(self, name)}): the minimum is 1.")


MAX_IMPLIED_REPLIES: Final = 500
"""With more implied replies, they are written."""
MAX_SNAPSHOTS_PER_WRITE: Final = 500
MAX_SNAPSHOT_BYTES: Final = 900_000


class CommandEnvelope(NamedTuple):
    """A command, and its offset in the topic of commands if it came from there."""

    command: Command
    offset: int | None = None


class PendingDecision(NamedTuple):
    """The reply to a command and its events, not stored yet."""

    reply: CommandReply
    events: Sequence[NewRecord] = ()
    is_implied: bool = False
    """Whether the reply needs no record: its events imply it, or it was returned before."""


class PartitionProcessor:
    """The state of one partition, and the exclusive right to change it. For one thread."""

    def __init__(
        self,
        cluster: Cluster,
        topics: StoreTopics,
        partition: int,
        schema: AggregateSchema,
        limits: Limits,
        writer: LogWriter,
        recovered: RecoveredPartition,
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._schema = schema
        self._limits = limits
        self._writer = writer
        self._cache = recovered.aggregates
        self._replies = recovered.replies
        self._end = recovered.end
        self._time_ms = recovered.time_ms
        self.next_command_offset = recovered.next_command_offset
        """The offset of the first command in the topic without a reply."""
        self.replayed = recovered.replayed
        """The number of events that recovery applied."""
        self._partition = partition
        self._unstored: dict[str, list[Event]] = {}
        self._implied = recovered.implied
        self._unreadable = recovered.unreadable
        self._coverage = -1
        self._is_serializable = False

    @classmethod
    def open(
        cls, cluster: Cluster, topics: StoreTopics, partition: int, schema: AggregateSchema, limits: Limits
    ) -> Self:
        """Take over a partition from its previous handler."""
        plain = [TopicPartition(name, partition) for name in (topics.events, topics.replies)]
        writer = LogWriter.open(cluster, topics.transactional_id(partition), plain)
        recovered = recover(cluster, topics, partition, schema, limits)
        return cls(cluster, topics, partition, schema, limits, writer, recovered)

    def handle(self, envelopes: Sequence[CommandEnvelope]) -> list[CommandReply]:
        """Decide on these commands one after the other, and store the results; returns the replies."""
        self._unstored.clear()
        self._time_ms = max(self._time_ms, time.time_ns() // 1_000_000)
        decisions = [self._decide(envelope) for envelope in envelopes]
        for envelope in envelopes:
            if envelope.offset is not None:
                self.next_command_offset = max(self.next_command_offset, envelope.offset + 1)
        self._store(decisions)
        self._cache.spill()
        return [pending.reply for pending in decisions]

    def close(self) -> None:
        """Free memory and temporary files."""
        self._cache.close()

    def _decide(self, envelope: CommandEnvelope) -> PendingDecision:
        command = envelope.command
        known = self._replies.find(command)
        if known is not None:
            return PendingDecision(known, is_implied=envelope.offset is None)
        reason = self._unreadable.reason(command.aggregate_id)
        if reason is not None:
            return PendingDecision(self._unreadable_reply(command, reason))
        aggregate = self._cache.get(command.aggregate_id)
        decision = decide(self._schema, aggregate, command)
        reply = decision.reply
        records: list[NewRecord] = []
        if decision.events:
            error = self._apply(aggregate, decision.events, command)
            if error is None:
                records = list(self._records(command, reply, decision.events))
            else:
                reply = self._failed(command, error)
        self._replies.add(reply)
        return PendingDecision(reply, records, is_implied=envelope.offset is None and bool(records))

    def _apply(
        self, aggregate: Aggregate, events: Sequence[EncodedEvent], command: Command
    ) -> Exception | None:
        """Apply events; returns the error of an applier, which leaves the aggregate in an invalid state."""
        try:
            for event, _ in events:
                self._schema.apply(aggregate, event)
            # State that no snapshot can hold must fail at the first command, not after many events.
            if not self._is_serializable:
                write_state(self._schema, aggregate)
                self._is_serializable = True
        except Exception as error:  # noqa: BLE001  user code: its error is the reply
            return error
        self._unstored.setdefault(aggregate.id, []).extend(event for event, _ in events)
        self._cache.note_event(aggregate.id, self._end, command.command_id)
        return None

    def _failed(self, command: Command, error: Exception) -> CommandReply:
        """The reply to a command whose events could not be applied; the aggregate is read again."""
        key = command.aggregate_id
        try:
            return failed(self._schema, self._rebuilt(key), command, error)
        except (UnreadableHistory, UnknownEvent, InvalidEvent) as unreadable:
            self._unreadable.add_event(key, self._end, str(unreadable))
            self._cache.discard(key, self._end)
            return self._unreadable_reply(command, str(unreadable))

    def _unreadable_reply(self, command: Command, reason: str) -> CommandReply:
        return reply_to(
            command, "unreadable", 0, incomplete_history(self._schema, command.aggregate_id, reason)
        )

    def _rebuilt(self, key: str) -> Aggregate:
        """The aggregate, rebuilt from the log and the events that are not stored yet."""
        aggregate = rebuild(self._cluster, self._topics, self._schema, key, end=self._end)
        for event in self._unstored.get(key, ()):
            self._schema.apply(aggregate, event)
        self._cache.put(aggregate)
        return aggregate

    def _records(
        self, command: Command, reply: CommandReply, events: Sequence[EncodedEvent]
    ) -> Iterator[NewRecord]:
        first = reply.version - len(events) + 1
        for version, (event, data) in enumerate(events, first):
            yield write_event(
                self._topics.store, self._schema.name, command, version, self._time_ms, event, data
            )

    def _store(self, decisions: Sequence[PendingDecision]) -> None:
        events = [record for pending in decisions for record in pending.events]
        snapshots = self._snapshots(self._end + len(events))
        replies = [pending.reply for pending in decisions if not pending.is_implied]
        implied = [pending.reply for pending in decisions if pending.is_implied and pending.events]
        if snapshots or len(self._implied) > MAX_IMPLIED_REPLIES:
            # A successor reads only events after the snapshots: replies that older ones imply would be lost.
            replies, implied = [*implied, *replies], []
        if replies:
            replies, self._implied = [*self._implied, *replies], []
        parts = {
            self._topics.events: events,
            self._topics.replies: [self._reply(reply) for reply in replies],
            self._topics.snapshots: snapshots,
        }
        self._write(
            {TopicPartition(name, self._partition): records for name, records in parts.items() if records}
        )
        self._implied += implied

    def _reply(self, reply: CommandReply) -> NewRecord:
        value = reply.write(ReplyRange(self.next_command_offset, self._end))
        return NewRecord(reply.aggregate_id.encode(), value, self._time_ms)

    def _snapshots(self, end: int) -> list[NewRecord]:
        """Snapshots of the aggregates with an uncovered event that is too far behind the end."""
        due = self._cache.due_snapshots(end - self._limits.snapshot_events, MAX_SNAPSHOTS_PER_WRITE)
        records = [record for key in due if (record := self._snapshot(key)) is not None]
        if records:
            covered = self._cache.covered_end(end)
            if covered != self._coverage:
                self._coverage = covered
                value = b'{"schema":"%b","end":%d}' % (self._schema.snapshots.encode(), covered)
                records.append(NewRecord(COVERAGE_KEY, value, self._time_ms))
        return records

    def _snapshot(self, key: str) -> NewRecord | None:
        aggregate = self._cache.get(key)
        state = self._cache.state_of(aggregate)
        if state is None or len(state) > MAX_SNAPSHOT_BYTES:
            self._cache.exclude(key)
            return None
        headers = (
            ("schema", self._schema.snapshots.encode()),
            ("version", b"%d" % aggregate.version),
            ("command", self._cache.note_snapshot(key).encode()),
        )
        return NewRecord(key.encode(), state, self._time_ms, headers)

    def _write(self, parts: dict[TopicPartition, list[NewRecord]]) -> None:
        events = self._writer.write(parts).get(TopicPartition(self._topics.events, self._partition))
        if events is not None:
            # A lower bound, if the broker only responds that it already has the batch.
            self._end = max(events.first, self._end) + events.size
