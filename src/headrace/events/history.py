"""The events of one aggregate, and what it was at any version or time.

A partition holds the events of many aggregates. It is read as columns, and only the rows of the one that is
wanted become objects: some millions of records a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.client.fetch import PartitionReader
from headrace.client.partition import TopicPartition
from headrace.events.errors import BadEvent
from headrace.events.log import extents
from headrace.events.recorded import read_event, to_ms

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from headrace.client.cluster import Cluster
    from headrace.events.aggregate import Aggregate, AggregateForm
    from headrace.events.recorded import Recorded
    from headrace.events.topics import StoreTopics

COLUMNS: Final = ("key", "value", "offset", "timestamp", "headers")


def read_history(
    cluster: Cluster,
    topics: StoreTopics,
    key: str | None,
    *,
    end: int | None = None,
) -> Iterator[Recorded]:
    """The events of an aggregate in their order, up to now, or up to an offset of its partition.

    Without an id those of all aggregates, partition by partition.
    """
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
    """The aggregate as its events made it: all of them, or those up to a version or a time."""
    aggregate = form.new(key)
    for recorded in read_history(cluster, topics, key, end=end):
        if is_beyond(recorded, version, as_of):
            break
        advance(form, aggregate, recorded)
    return aggregate


def advance(form: AggregateForm, aggregate: Aggregate, recorded: Recorded) -> None:
    """Apply the next event of an aggregate; a gap, or a second event of a version, is `BadEvent`."""
    if recorded.version <= aggregate.version:
        raise second_event(recorded)
    if recorded.version != aggregate.version + 1:
        raise BadEvent(
            f"{form.name} {aggregate.id!r} has no event of version {aggregate.version + 1}, and one of "
            f"version {recorded.version} (offset {recorded.offset} of partition {recorded.partition}): "
            "events were deleted, or something else than an event store wrote to the topic."
        )
    form.apply(aggregate, recorded.event(form))


def second_event(recorded: Recorded) -> BadEvent:
    """The error for an event of a version that the aggregate already has from another command."""
    return BadEvent(
        f"{recorded.aggregate} {recorded.id!r} has a second event of version {recorded.version}, of command "
        f"{recorded.command_id!r} (offset {recorded.offset} of partition {recorded.partition}): two commands "
        "were decided on the same state, or something else than an event store wrote to the topic."
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
) -> Iterator[Recorded]:
    import pyarrow.compute as pc

    from headrace.columns.cutting import Cutter

    if start >= end:
        return
    cutter = Cutter(place, start, end, columns=COLUMNS)
    for piece in PartitionReader(cluster, place, start, end):
        for rows in cutter.parts(piece.batches, piece.aborted):
            found = rows if key is None else rows.filter(pc.equal(rows.column("key"), key.encode()))
            for row in found.to_pylist():
                yield _recorded(aggregate, place.partition, row)


def _recorded(aggregate: str, partition: int, row: dict[str, Any]) -> Recorded:
    headers = tuple((each["key"], each["value"]) for each in row["headers"] or ())
    return read_event(
        aggregate, partition, row["offset"], to_ms(row["timestamp"]), row["key"], row["value"], headers
    )
