"""The history of aggregates: their events, their state at any version or time, and unreadable records.

A partition holds the events of many aggregates. It is read as columns, and only rows of the wanted aggregate
become objects: this reads millions of records a second.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.client.fetch import PartitionReader, UnreadableRecords
from headrace.client.partition import TopicPartition
from headrace.events.cache import plain_state
from headrace.events.errors import UnreadableEvent, UnreadableHistory
from headrace.events.event import read_event, to_ms
from headrace.events.topics import offset_ranges
from headrace.protocol.batch import read_header, split_batches
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import decode_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from headrace.client.cluster import Cluster
    from headrace.events.aggregate import Aggregate, AggregateSchema
    from headrace.events.event import RecordedEvent
    from headrace.events.topics import StoreTopics
    from headrace.protocol.records import Record

logger = logging.getLogger(__name__)


class _Gap(NamedTuple):
    first: int
    last: int
    reason: str
    is_final: bool
    """Whether no later event can prove that the history is complete."""


class UnreadableHistories:
    """Tracks which aggregates of one partition have an incomplete history, while its records are read.

    An aggregate must not decide on a state that lacks an event, and an unreadable record must not stop the
    others:

    - A record that is no event, or an event that cannot be applied, affects the aggregate of its key.
    - A batch that fails its checksum affects the aggregates that its keys and headers name, if its records
      can still be decoded.
    - A batch whose records cannot be decoded affects no aggregate if it has no producer id: no event store
      wrote it. With a producer id it may hold events of any aggregate of the partition.

    In each case a later event that continues the versions of an aggregate proves that its history is
    complete.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, _Gap] = {}
        self._of_any: _Gap | None = None
        self._continued: dict[str, int] = {}
        """The last offset of each aggregate with an event after the batch that may affect any aggregate."""

    def add(self, records: UnreadableRecords) -> None:
        """Record that these offsets are unreadable."""
        logger.warning("%s", records)
        gap = _Gap(records.first, records.last, str(records), is_final=False)
        ids = ids_in(records)
        if ids is None:
            self._of_any = gap
            return
        for key in ids:
            if not self.is_final(key):
                self._by_id[key] = gap

    def add_event(self, key: str, offset: int, reason: str) -> None:
        """Record that the event at `offset` cannot be applied: its aggregate refuses commands from now on."""
        logger.warning("%s", reason)
        cause = self._by_id.get(key) or self._of_any
        if cause is not None:
            reason = f"{reason} Also, {cause.reason}"
        self._by_id[key] = _Gap(offset, offset, reason, is_final=True)

    def continued(self, key: str, offset: int) -> None:
        """Record that the event at `offset` continues the versions of its aggregate."""
        known = self._by_id.get(key)
        if known is not None and not known.is_final and offset > known.last:
            del self._by_id[key]
        if self._of_any is not None and offset > self._of_any.last:
            self._continued[key] = offset

    def is_final(self, key: str) -> bool:
        """Whether an event of the aggregate cannot be applied."""
        known = self._by_id.get(key)
        return known is not None and known.is_final

    def reason(self, key: str) -> str | None:
        """Why the history of the aggregate is incomplete; None if it is complete."""
        if key in self._by_id:
            return self._by_id[key].reason
        if self._of_any is not None and self._continued.get(key, -1) < self._of_any.last:
            return f"{self._of_any.reason}, and no later event proves that none of this aggregate is missing"
        return None

    @property
    def first_offset(self) -> int | None:
        """The offset of the first gap, from which every successor must read; None without a gap."""
        offsets = [gap.first for gap in self._by_id.values()]
        if self._of_any is not None:
            offsets.append(self._of_any.first)
        return min(offsets, default=None)


def ids_in(records: UnreadableRecords) -> frozenset[str] | None:
    """The aggregates whose events these records may be; None if any may be affected."""
    if not records.batch:
        key = (records.key or b"").decode(errors="replace")
        return frozenset({key} if key else ())
    try:
        found = decode_batch(records.batch)
    except CorruptBatch:
        is_foreign = read_header(records.batch).producer_id < 0
        return frozenset() if is_foreign else None
    return frozenset(key for record in found for key in _names(record))


def _names(record: Record) -> set[str]:
    """The ids in key and headers; if damage made them differ, either may be right."""
    subject = (dict(record.headers).get("ce_subject") or b"").decode(errors="replace").partition("/")[2]
    names = {(record.key or b"").decode(errors="replace"), subject}
    return {name for name in names if name and name[0] != "\0"}  # keys of transaction markers begin with \0


COLUMNS: Final = ("key", "value", "offset", "timestamp", "headers")


def read_history(
    cluster: Cluster,
    topics: StoreTopics,
    key: str | None,
    *,
    end: int | None = None,
) -> Iterator[RecordedEvent]:
    """The events of an aggregate in order, up to now or up to an offset of its partition.

    Without an id, the events of all aggregates, partition by partition. Unreadable records are skipped with a
    warning.
    """
    for record in read_events(cluster, topics, key, end=end):
        if isinstance(record, UnreadableRecords):
            logger.warning("skipped: %s", record)
        else:
            yield record


def read_events(
    cluster: Cluster,
    topics: StoreTopics,
    key: str | None,
    *,
    end: int | None = None,
) -> Iterator[RecordedEvent | UnreadableRecords]:
    """Like `read_history`, but also yields the unreadable records that may be events of the aggregate."""
    numbers = range(topics.partitions) if key is None else [topics.partition_of(key)]
    for number in numbers:
        partition = TopicPartition(topics.events, number)
        first, last = offset_ranges(cluster, [partition])[partition]
        yield from _read(cluster, topics.aggregate, partition, first, last if end is None else end, key)


def rebuild(
    cluster: Cluster,
    topics: StoreTopics,
    schema: AggregateSchema,
    key: str,
    *,
    version: int | None = None,
    as_of: datetime | None = None,
    end: int | None = None,
) -> Aggregate:
    """The aggregate after all its events, or after those up to a version or a time.

    Raises `UnreadableHistory` if one of these events may be missing.
    """
    aggregate = schema.new(key)
    for recorded in complete_history(schema, key, read_events(cluster, topics, key, end=end)):
        if _is_after(recorded, version, as_of):
            break
        advance(schema, aggregate, recorded)
        if aggregate.version == version:
            break  # later records need not be readable
    return aggregate


def complete_history(
    schema: AggregateSchema, key: str, records: Iterable[RecordedEvent | UnreadableRecords]
) -> Iterator[RecordedEvent]:
    """The events of an aggregate; raises `UnreadableHistory` at the end if the last ones may be missing."""
    unreadable = UnreadableHistories()
    for record in records:
        if isinstance(record, UnreadableRecords):
            unreadable.add(record)
        else:
            # `advance` checks the version, which shows a missing event before this one.
            unreadable.continued(key, record.offset)
            yield record
    reason = unreadable.reason(key)
    if reason is not None:
        raise UnreadableHistory(incomplete_history(schema, key, reason))


def incomplete_history(schema: AggregateSchema, key: str, reason: str) -> str:
    """The error message for an aggregate with an incomplete history."""
    return f"the history of {schema.name} {key!r} is incomplete, so its state is unknown: {reason}"


def advance(schema: AggregateSchema, aggregate: Aggregate, recorded: RecordedEvent) -> None:
    """Apply the next event; raises `UnreadableHistory` for a gap or a second event of a version."""
    if recorded.version <= aggregate.version:
        raise second_event(recorded)
    if recorded.version != aggregate.version + 1:
        raise UnreadableHistory(
            f"{schema.name} {aggregate.id!r} lacks the event of version {aggregate.version + 1} before that"
            f" of version {recorded.version} (offset {recorded.offset} of partition {recorded.partition}): "
            "events were deleted or are unreadable, or another program wrote to the topic."
        )
    schema.apply(aggregate, recorded.event(schema))


def second_event(recorded: RecordedEvent) -> UnreadableHistory:
    """The error for a second event of the same version."""
    return UnreadableHistory(
        f"{recorded.aggregate} {recorded.id!r} has a second event of version {recorded.version}, of command "
        f"{recorded.command_id!r} (offset {recorded.offset} of partition {recorded.partition}): two commands "
        "were decided on the same state, or another program wrote to the topic."
    )


def _is_after(recorded: RecordedEvent, version: int | None, as_of: datetime | None) -> bool:
    """Whether an event is after that version or that time."""
    return (version is not None and recorded.version > version) or (
        as_of is not None and to_ms(recorded.time) > to_ms(as_of)
    )


def _read(
    cluster: Cluster,
    aggregate: str,
    partition: TopicPartition,
    start: int,
    end: int,
    key: str | None,
) -> Iterator[RecordedEvent | UnreadableRecords]:
    import pyarrow.compute as pc

    from headrace.columns.record_decoder import RecordDecoder, UnreadableBatch

    if start >= end:
        return
    cutter = RecordDecoder(partition, start, end, columns=COLUMNS)
    for piece in PartitionReader(cluster, partition, start, end):
        for rows in cutter.readable_parts(piece.batches, piece.aborted):
            if isinstance(rows, UnreadableBatch):
                batch = _batch_at(piece.batches, rows.first)
                yield UnreadableRecords(partition, rows.first, rows.last, rows.reason, batch)
                continue
            found = rows if key is None else rows.filter(pc.equal(rows.column("key"), key.encode()))
            for row in found.to_pylist():
                yield _recorded(aggregate, partition, row)


def _batch_at(batches: memoryview, offset: int) -> bytes:
    """The batch that holds an offset."""
    return next(bytes(batch) for batch in split_batches(batches) if read_header(batch).last_offset >= offset)


def _recorded(
    aggregate: str, partition: TopicPartition, row: dict[str, Any]
) -> RecordedEvent | UnreadableRecords:
    offset, key = row["offset"], row["key"]
    headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
    try:
        if row["timestamp"] is None:
            raise UnreadableEvent("its timestamp is out of range")
        time_ms = to_ms(row["timestamp"])
        return read_event(aggregate, partition.partition, offset, time_ms, key, row["value"], headers)
    except UnreadableEvent as error:
        return UnreadableRecords(partition, offset, offset, str(error), key=key)


class Absent:
    """A missing value; None may be a value."""

    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = Absent()


class StateChange(NamedTuple):
    """One change of the state of an aggregate."""

    path: str
    before: Any
    after: Any


class HistoryStep(NamedTuple):
    """An event, and the changes that it made."""

    recorded: RecordedEvent
    changes: tuple[StateChange, ...]


def history_steps(
    schema: AggregateSchema, key: str, records: Iterable[RecordedEvent | UnreadableRecords]
) -> Iterator[HistoryStep]:
    """Each event of an aggregate with the changes that it made, or `UnreadableHistory`."""
    aggregate = schema.new(key)
    before = plain_state(schema, aggregate)
    for recorded in complete_history(schema, key, records):
        advance(schema, aggregate, recorded)
        after = plain_state(schema, aggregate)
        yield HistoryStep(recorded, tuple(state_changes(before, after)))
        before = after


def state_changes(before: Any, after: Any, path: str = "") -> Iterator[StateChange]:
    """The differences of two states; objects are compared by name, other values as a whole.

    >>> list(state_changes({"items": {"tea": 2}}, {"items": {"tea": 1, "cup": 1}}))
    [StateChange(path='items.tea', before=2, after=1), StateChange(path='items.cup', before=absent, after=1)]
    """
    if not (isinstance(before, dict) and isinstance(after, dict)):
        if before != after or type(before) is not type(after):
            yield StateChange(path, before, after)
        return
    for name in {**before, **after}:
        inner = f"{path}.{name}" if path else name
        yield from state_changes(before.get(name, ABSENT), after.get(name, ABSENT), inner)
