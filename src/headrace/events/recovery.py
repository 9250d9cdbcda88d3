"""Recovery of a partition: what its handler must know before its first decision, read from the log.

The newest replies are read first, then the snapshots, then the events that no snapshot covers, which also
imply the replies that are not written yet. Everything is read up to the end that the partitions have after
the previous handler is fenced: no other process can append.

Unreadable records stop nothing. Of events, they affect some aggregates (`UnreadableHistories`). If a snapshot
is unreadable, no snapshot is used. Unreadable replies are derived from the events, which are then read from
the last reply before them on; a rejection among them is lost.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.client.fetch import UnreadableRecords, read_records
from headrace.client.partition import TopicPartition
from headrace.errors import HeadraceError
from headrace.events.cache import AggregateCache, ReplyCache
from headrace.events.commands import CommandReply, ReplyRange
from headrace.events.event import recorded_in, to_ms
from headrace.events.history import UnreadableHistories, advance, ids_in, second_event
from headrace.events.topics import offset_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.client.cluster import Cluster
    from headrace.events.aggregate import AggregateSchema
    from headrace.events.event import RecordedEvent
    from headrace.events.partition_processor import Limits
    from headrace.events.topics import StoreTopics
    from headrace.protocol.records import Record

COVERAGE_KEY: Final = b"\0"
"""The key of the record with the offset before which snapshots cover all events; not an aggregate's id."""

logger = logging.getLogger(__name__)


class RecoveredPartition(NamedTuple):
    """The state of a partition, as the log has it."""

    aggregates: AggregateCache
    replies: ReplyCache
    end: int
    """The offset after the last event."""
    time_ms: int
    """The time of the last event."""
    next_command_offset: int
    """The offset of the first command in the topic without a reply."""
    replayed: int
    """The number of events that were applied."""
    implied: list[CommandReply]
    """Replies that are not written: events imply them."""
    unreadable: UnreadableHistories
    """The aggregates that refuse commands."""


def recover(
    cluster: Cluster, topics: StoreTopics, partition: int, schema: AggregateSchema, limits: Limits
) -> RecoveredPartition:
    """The state of a partition that this process has taken over."""
    names = (topics.events, topics.replies, topics.snapshots, topics.commands)
    partitions = [TopicPartition(name, partition) for name in names]
    found = offset_ranges(cluster, partitions)
    events, replies, snapshots, commands = (found[each] for each in partitions)
    cache = AggregateCache(schema, limits.aggregates)
    reply_cache = ReplyCache(limits.replies)
    # A marker follows the records of each transaction: the newest N replies are in the last 2 N offsets.
    first = max(replies[0], replies[1] - 2 * limits.replies)
    complete, is_whole = _read_replies(cluster, partitions[1], (first, replies[1]), reply_cache)
    start = _read_snapshots(cluster, partitions[2], snapshots, schema, cache)
    start = max(start if is_whole else min(start, complete.events), events[0])
    time_ms, replayed = 0, 0
    replay = _EventReplay(topics.events, schema, cache)
    implied: dict[tuple[str, str], CommandReply] = {}
    for recorded in _read_events(cluster, partitions[0], (start, events[1]), schema.name):
        if isinstance(recorded, UnreadableRecords):
            replay.unreadable.add(recorded)
            continue
        time_ms = to_ms(recorded.time)
        replayed += replay.apply(recorded)
        if recorded.offset >= complete.events:
            reply = _reply_of(recorded)
            implied[reply.key] = reply
        if not replayed % 1000:
            cache.spill()
    replay.finish()
    for reply in implied.values():
        reply_cache.add(reply)
    return RecoveredPartition(
        aggregates=cache,
        replies=reply_cache,
        end=events[1],
        time_ms=time_ms,
        next_command_offset=max(complete.commands, commands[0]),
        replayed=replayed,
        implied=list(implied.values()),
        unreadable=replay.unreadable,
    )


def _read_snapshots(
    cluster: Cluster,
    partition: TopicPartition,
    offsets: tuple[int, int],
    schema: AggregateSchema,
    cache: AggregateCache,
) -> int:
    """The offset of the first event that no snapshot covers; the snapshots are in the cache then.

    If one of them is unreadable, its aggregate would lack events: then none is used.
    """
    coverage: list[Record] = []
    unreadable: list[UnreadableRecords] = []

    def rows() -> Iterator[tuple[str, int, bytes, str]]:
        for record in read_records(cluster, partition, *offsets):
            if isinstance(record, UnreadableRecords):
                logger.warning("%s", record)
                if ids_in(record) != frozenset():
                    unreadable.append(record)
            elif record.key == COVERAGE_KEY:
                coverage[:] = [record]
            elif (snapshot := _snapshot(record, current)) is not None:
                yield snapshot

    current = schema.snapshots.encode()
    cache.add_snapshots(rows())
    if unreadable:
        cache.drop_snapshots()
        return 0
    try:
        found = json.loads(coverage[0].value or b"{}") if coverage else {}
        return int(found["end"]) if found.get("schema") == schema.snapshots else 0
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("%s: the record about the coverage of snapshots cannot be read: %r", partition, error)
        return 0


def _snapshot(record: Record, current: bytes) -> tuple[str, int, bytes, str] | None:
    """Id, version, state and last command of a snapshot, if the current code wrote it."""
    fields = dict(record.headers)
    if not record.key or record.value is None or fields.get("schema") != current:
        return None
    try:
        command = (fields.get("command") or b"").decode()
        return record.key.decode(), int(fields.get("version") or b""), record.value, command
    except ValueError:
        return None


def _read_events(
    cluster: Cluster, partition: TopicPartition, offsets: tuple[int, int], aggregate: str
) -> Iterator[RecordedEvent | UnreadableRecords]:
    for record in read_records(cluster, partition, *offsets):
        yield record if isinstance(record, UnreadableRecords) else recorded_in(aggregate, partition, record)


class _EventReplay:
    """Applies the events of a partition to aggregates, some of which come from snapshots.

    A snapshot may be newer than events that are read. Those are skipped, and must lead up to the last event
    of the snapshot; otherwise two events have the same version. An aggregate is excluded from the first event
    on that cannot be applied.
    """

    def __init__(self, topic: str, schema: AggregateSchema, cache: AggregateCache) -> None:
        self.unreadable = UnreadableHistories()
        self._topic = topic
        self._schema = schema
        self._cache = cache
        self._skipped: dict[str, RecordedEvent] = {}
        """The last skipped event of each aggregate, until the last one of its snapshot."""

    def apply(self, recorded: RecordedEvent) -> bool:
        """Apply an event; returns whether it was new to the aggregate."""
        if self.unreadable.is_final(recorded.id):
            return False
        try:
            is_new = self._apply(recorded)
        except Exception as error:  # noqa: BLE001  user code, or an event that it does not know
            self._exclude(recorded, error)
            return False
        self.unreadable.continued(recorded.id, recorded.offset)
        return is_new

    def finish(self) -> None:
        """Exclude the aggregates with an event that their snapshots do not have."""
        for recorded in self._skipped.values():
            self._exclude(recorded, second_event(recorded))
        first = self.unreadable.first_offset
        if first is not None:
            self._cache.replay_from(first)

    def _apply(self, recorded: RecordedEvent) -> bool:
        aggregate = self._cache.get(recorded.id)
        if recorded.version <= aggregate.version and not self._cache.has_uncovered_event(recorded.id):
            self._skip(recorded, aggregate.version)
            return False
        advance(self._schema, aggregate, recorded)
        self._cache.note_event(recorded.id, recorded.offset, recorded.command_id)
        return True

    def _skip(self, recorded: RecordedEvent, version: int) -> None:
        last = self._skipped.pop(recorded.id, None)
        if last is not None and recorded.version != last.version + 1:
            raise second_event(recorded)
        if recorded.version < version:
            self._skipped[recorded.id] = recorded
        elif recorded.command_id != self._cache.snapshot_command(recorded.id):
            raise second_event(recorded)

    def _exclude(self, recorded: RecordedEvent, error: Exception) -> None:
        reason = str(error) if isinstance(error, HeadraceError) else f"{type(error).__name__}: {error}"
        where = f"offset {recorded.offset} of partition {recorded.partition} of {self._topic}"
        self.unreadable.add_event(recorded.id, recorded.offset, f"{where} cannot be applied: {reason}")
        self._cache.discard(recorded.id, recorded.offset)


def _reply_of(recorded: RecordedEvent) -> CommandReply:
    """The reply that an event implies, unless a later event of the same command exists."""
    return CommandReply(
        aggregate_id=recorded.id, command_id=recorded.command_id, kind="done", version=recorded.version
    )


def _read_replies(
    cluster: Cluster, partition: TopicPartition, offsets: tuple[int, int], reply_cache: ReplyCache
) -> tuple[ReplyRange, bool]:
    """The range that the readable replies cover without a gap, and whether all are readable."""
    complete, events = ReplyRange(), None
    for record in read_records(cluster, partition, *offsets):
        if isinstance(record, UnreadableRecords):
            logger.warning("%s", record)
            if events is None and ids_in(record) != frozenset():
                events = complete.events  # the events after it imply the unreadable replies
            continue
        try:
            reply, complete = CommandReply.read(record.value or b"")
        except ValueError as error:
            logger.warning("skipped offset %d of %s, which is no reply: %s", record.offset, partition, error)
            continue
        reply_cache.add(reply)
    return (complete, True) if events is None else (complete._replace(events=events), False)
