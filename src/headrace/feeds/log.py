"""The log of a view as a feed needs it: where it ends, what is in it up to some point, and what follows.

What follows has to be complete. The offsets of a log follow one another without a gap until compaction or
retention takes something out, so a gap after the position of a reader means that it missed a change, and
is an error. (Markers of transactions take offsets too; that is why the batches are looked at, not records.)

A record batch that cannot be read is no gap: it is reported as skipped, and the feed goes on behind it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12 import MetadataRequest, MetadataResponse
from kio.schema.metadata.v12.request import MetadataRequestTopic
from kio.schema.types import TopicName

from headrace.client.codes import MOVED
from headrace.client.errors import OffsetsGone, RequestRefused, UnknownPartition
from headrace.client.fetch import PartitionReader
from headrace.client.follow import NO_END, fetch_batches
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.columns.batch_headers import BatchHeaders
from headrace.columns.cutting import Cutter, UnreadableBatch
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.kernels import octets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from headrace.client.cluster import Cluster
    from headrace.client.follow import FetchedBatches

    Skip = Callable[[int, UnreadableBatch], None]
    """Is told the partition and the batch for each one that cannot be read."""

WAIT_MS: Final = 500
"""How long the broker holds back a response that would be empty."""
COLUMNS: Final = ("key", "value", "offset")

logger = logging.getLogger(__name__)


class Entry(NamedTuple):
    """A record: a row of the view, or the end of one."""

    offset: int
    key: bytes | None
    value: bytes | None


class News(NamedTuple):
    """What a partition brought."""

    partition: int
    entries: list[Entry]
    next_offset: int


def refuse(_: int, batch: UnreadableBatch) -> None:
    """Do not skip: a batch that cannot be read is an error."""
    raise CorruptBatch(batch.sentence)


def warn(partition: int, batch: UnreadableBatch) -> None:
    """Skip with a warning."""
    logger.warning("skipped in partition %d: %s", partition, batch.sentence)


class ViewLog:
    """The topic of one view. For one thread."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self.topic = topic

    def identity(self) -> str:
        """The id of the topic; empty where the cluster gives none."""
        return self._cluster.persist(self._ask_identity, MOVED)

    def partitions(self) -> int:
        """How many partitions the topic has."""
        found = self._cluster.topics((self.topic,))
        if self.topic not in found:
            raise UnknownPartition(TopicPartition(self.topic, 0))
        return len(found[self.topic].partitions)

    def extents(self) -> tuple[tuple[int, int], ...]:
        """The first offset of each partition, and the one after its last committed record."""
        partitions = [TopicPartition(self.topic, number) for number in range(self.partitions())]
        first, end = (
            list_offsets(self._cluster, dict.fromkeys(partitions, which)) for which in (EARLIEST, LATEST)
        )
        return tuple((first[partition], end[partition]) for partition in partitions)

    def rows(self, partition: int, start: int, end: int, skip: Skip) -> list[Entry]:
        """The newest record of each key before `end`, without those that are deleted, in their order."""
        place = TopicPartition(self.topic, partition)
        newest: dict[bytes | None, Entry] = {}
        cutter = Cutter(place, start, end, columns=COLUMNS)
        for piece in PartitionReader(self._cluster, place, start, end):
            for rows in cutter.readable_parts(piece.batches, piece.aborted):
                if isinstance(rows, UnreadableBatch):
                    skip(partition, rows)
                    continue
                for entry in _entries(rows):
                    newest.pop(entry.key, None)  # so that a key stands where its newest record is
                    if entry.value is not None:
                        newest[entry.key] = entry
        return list(newest.values())

    def follow(self, offsets: Sequence[int], skip: Skip) -> list[News]:
        """What comes next in the partitions, waiting for it a little; nothing where nothing came.

        `OffsetsGone` when something that came before it is gone.
        """
        positions = {TopicPartition(self.topic, number): offset for number, offset in enumerate(offsets)}
        return [
            _news(fetched, positions[fetched.partition], skip)
            for fetched in fetch_batches(self._cluster, positions, max_wait_ms=WAIT_MS)
        ]

    def _ask_identity(self) -> str:
        connection = self._cluster.any()
        if not connection.serves(MetadataRequest):
            return ""
        wanted = MetadataRequestTopic(topic_id=None, name=TopicName(self.topic))
        request = MetadataRequest(
            topics=(wanted,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        (found,) = connection.ask(request, MetadataResponse).topics
        if found.error_code is not ErrorCode.none:
            raise RequestRefused(f"describe the topic {self.topic!r}", found.error_code)
        return "" if found.topic_id is None else found.topic_id.hex


def _news(fetched: FetchedBatches, position: int, skip: Skip) -> News:
    """The records from `position` on, which have to be there without a gap."""
    place, batches, aborted, next_offset = fetched
    headers = BatchHeaders(octets(batches))
    bases, lasts = headers["base_offset"].tolist(), headers.last_offsets.tolist()
    expected = position
    for base, last in zip(bases, lasts, strict=True):
        if base > expected:
            raise OffsetsGone(place, expected, base, lasts[-1] + 1)
        expected = max(expected, last + 1)
    seen = headers.visible(position, NO_END, aborted).tolist()
    missing = sum(lasts[index] + 1 - max(bases[index], position) for index in seen)
    entries: list[Entry] = []
    for rows in Cutter(place, position, NO_END, columns=COLUMNS).readable_parts(batches, aborted):
        if isinstance(rows, UnreadableBatch):
            missing -= rows.last + 1 - rows.first
            skip(place.partition, rows)
        else:
            missing -= rows.num_rows
            entries += _entries(rows)
    if missing > 0:
        raise OffsetsGone(place, position, next_offset, next_offset)
    return News(place.partition, entries, next_offset)


def _entries(rows: pa.RecordBatch) -> Iterator[Entry]:
    keys, values, offsets = (rows.column(name).to_pylist() for name in COLUMNS)
    return map(Entry, offsets, keys, values)
