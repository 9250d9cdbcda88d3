"""The events of one aggregate, and what it was at any version or time.

A partition holds the events of many aggregates. It is read as columns, and only the rows of the one that is
wanted become objects: some millions of records a second.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from headrace.client.fetch import PartitionReader
from headrace.client.partition import TopicPartition
from headrace.client.records import UnreadableRecords
from headrace.events.errors import UnreadableEvent, UnreadableHistory
from headrace.events.log import extents
from headrace.events.recorded import read_event, to_ms
from headrace.events.unreadable import UnreadableHistories
from headrace.protocol.batch import read_header, split_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from headrace.client.cluster import Cluster
    from headrace.events.aggregate import Aggregate, AggregateForm
    from headrace.events.recorded import Recorded
    from headrace.events.topics import StoreTopics

COLUMNS: Final = ("key", "value", "offset", "timestamp", "headers")

logger = logging.getLogger(__name__)


def read_history(
    cluster: Cluster,
    topics: StoreTopics,
    key: str | None,
    *,
    end: int | None = None,
) -> Iterator[Recorded]:
    """The events of an aggregate in their order, up to now, or up to an offset of its partition.

    Without an id those of all aggregates, partition by partition. Records that cannot be read are skipped
    with a warning.
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
) -> Iterator[Recorded | UnreadableRecords]:
    """As `read_history`, with the records that cannot be read and may be events of the aggregate."""
    numbers = range(topics.partitions) if key is None else [topics.partition_of(key)]
    for number in numbers:
        place = TopicPartition(topics.events, number)
        first, last = extents(cluster, [place])[place]
        yield from _read(cluster, topics.aggregate, place, first, last if end is None else end, key)


def rebuild(
    cluster: Cluster,
    topics: StoreTopics,
    form: AggregateForm,
    key: str,
    *,
    version: int | None = None,
    as_of: datetime | None = None,
    end: int | None = None,
) -> Aggregate:
    """The aggregate as its events made it: all of them, or those up to a version or a time.

    `UnreadableHistory` is raised if one of these events may be missing.
    """
    aggregate = form.new(key)
    for recorded in whole_history(form, key, read_events(cluster, topics, key, end=end)):
        if is_beyond(recorded, version, as_of):
            break
        advance(form, aggregate, recorded)
        if aggregate.version == version:
            break  # what follows need not be readable
    return aggregate


def whole_history(
    form: AggregateForm, key: str, records: Iterable[Recorded | UnreadableRecords]
) -> Iterator[Recorded]:
    """The events of an aggregate; `UnreadableHistory` at the end if its last ones may be missing."""
    unreadable = UnreadableHistories()
    for record in records:
        if isinstance(record, UnreadableRecords):
            unreadable.add(record)
        else:
            # A missing event before this one shows in its version, which `advance` checks.
            unreadable.continued(key, record.offset)
            yield record
    reason = unreadable.reason(key)
    if reason is not None:
        raise UnreadableHistory(incomplete(form, key, reason))


def incomplete(form: AggregateForm, key: str, reason: str) -> str:
    """The message about an aggregate whose history cannot be read whole."""
    return f"the history of {form.name} {key!r} cannot be read whole, so its state is not known: {reason}"


def advance(form: AggregateForm, aggregate: Aggregate, recorded: Recorded) -> None:
    """Apply the next event of an aggregate; a gap, or a second event of a version, is `UnreadableHistory`."""
    if recorded.version <= aggregate.version:
        raise second_event(recorded)
    if recorded.version != aggregate.version + 1:
        raise UnreadableHistory(
            f"{form.name} {aggregate.id!r} has no event of version {aggregate.version + 1}, and one of "
            f"version {recorded.version} (offset {recorded.offset} of partition {recorded.partition}): "
            "events were deleted or cannot be read, or another program wrote to the topic."
        )
    form.apply(aggregate, recorded.event(form))


def second_event(recorded: Recorded) -> UnreadableHistory:
    """The error for an event of a version that the aggregate already has from another command."""
    return UnreadableHistory(
        f"{recorded.aggregate} {recorded.id!r} has a second event of version {recorded.version}, of command "
        f"{recorded.command_id!r} (offset {recorded.offset} of partition {recorded.partition}): two commands "
        "were decided on the same state, or another program wrote to the topic."
    )


def is_beyond(recorded: Recorded, version: int | None, as_of: datetime | None) -> bool:
    """Whether an event lies after that version, or after that time."""
    return (version is not None and recorded.version > version) or (
        as_of is not None and to_ms(recorded.time) > to_ms(as_of)
    )


def _read(
    cluster: Cluster,
    aggregate: str,
    place: TopicPartition,
    start: int,
    end: int,
    key: str | None,
) -> Iterator[Recorded | UnreadableRecords]:
    import pyarrow.compute as pc

    from headrace.columns.cutting import Cutter, UnreadableBatch

    if start >= end:
        return
    cutter = Cutter(place, start, end, columns=COLUMNS)
    for piece in PartitionReader(cluster, place, start, end):
        for rows in cutter.readable_parts(piece.batches, piece.aborted):
            if isinstance(rows, UnreadableBatch):
                batch = _batch_at(piece.batches, rows.first)
                yield UnreadableRecords(place, rows.first, rows.last, rows.reason, batch)
                continue
            found = rows if key is None else rows.filter(pc.equal(rows.column("key"), key.encode()))
            for row in found.to_pylist():
                yield _recorded(aggregate, place, row)


def _batch_at(batches: memoryview, offset: int) -> bytes:
    """The batch among these that holds an offset."""
    return next(bytes(batch) for batch in split_batches(batches) if read_header(batch).last_offset >= offset)


def _recorded(aggregate: str, place: TopicPartition, row: dict[str, Any]) -> Recorded | UnreadableRecords:
    offset, key = row["offset"], row["key"]
    headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
    try:
        if row["timestamp"] is None:
            raise UnreadableEvent("its timestamp is out of range")
        time_ms = to_ms(row["timestamp"])
        return read_event(aggregate, place.partition, offset, time_ms, key, row["value"], headers)
    except UnreadableEvent as fault:
        return UnreadableRecords(place, offset, offset, str(fault), key=key)
