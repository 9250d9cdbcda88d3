"""The log of a view: its offsets, its rows up to some offset, and the records that follow.

The records that follow must be complete. Offsets have no gaps until compaction or retention removes records,
so a gap after the position of a reader means that it missed a change, and is an error. (Transaction markers
have offsets too; so gaps are looked for in batches, not in records.)

An unreadable batch is not a gap: it is reported as skipped, and the feed continues after it.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from kio.schema.errors import ErrorCode
from kio.schema.metadata.v12 import MetadataRequest, MetadataResponse
from kio.schema.metadata.v12.request import MetadataRequestTopic
from kio.schema.types import TopicName

from headrace.client.errors import LEADER_CHANGED, OffsetOutOfRange, RequestRefused, UnknownPartition
from headrace.client.fetch import NO_END, PartitionReader, fetch_batches
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition
from headrace.columns.record_decoder import BatchHeaders, RecordDecoder, UnreadableBatch
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.kernels import octets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

    from headrace.client.cluster import Cluster
    from headrace.client.fetch import FetchedBatches

    Skip = Callable[[int, UnreadableBatch], None]
    """Called with the partition and each unreadable batch."""

WAIT_MS: Final = 500
"""How long the broker holds back a response that would be empty."""
COLUMNS: Final = ("key", "value", "offset")

logger = logging.getLogger(__name__)


class ViewRecord(NamedTuple):
    """A record of a view: a row, or a deleted key."""

    offset: int
    key: bytes | None
    value: bytes | None


class PartitionRecords(NamedTuple):
    """The next records of a partition."""

    partition: int
    records: list[ViewRecord]
    next_offset: int


def refuse(_: int, batch: UnreadableBatch) -> None:
    """Raise an error for an unreadable batch."""
    raise CorruptBatch(batch.sentence)


def warn(partition: int, batch: UnreadableBatch) -> None:
    """Skip an unreadable batch with a warning."""
    logger.warning("skipped in partition %d: %s", partition, batch.sentence)


class ViewLog:
    """The log of one view. For one thread."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self._cluster = cluster
        self.topic = topic

    def topic_id(self) -> str:
        """The id of the topic; empty if the cluster has no topic ids."""
        return self._cluster.retry(self._request_topic_id, LEADER_CHANGED)

    def partitions(self) -> int:
        """The number of partitions."""
        found = self._cluster.topics((self.topic,))
        if self.topic not in found:
            raise UnknownPartition(TopicPartition(self.topic, 0))
        return len(found[self.topic].partitions)

    def offset_ranges(self) -> tuple[tuple[int, int], ...]:
        """The first offset of each partition, and its last stable offset."""
        partitions = [TopicPartition(self.topic, number) for number in range(self.partitions())]
        first, end = (
            list_offsets(self._cluster, dict.fromkeys(partitions, which)) for which in (EARLIEST, LATEST)
        )
        return tuple((first[partition], end[partition]) for partition in partitions)

    def rows(self, partition: int, start: int, end: int, skip: Skip) -> list[ViewRecord]:
        """The newest record of each key before `end`, in order, without deleted keys."""
        topic_partition = TopicPartition(self.topic, partition)
        newest: dict[bytes | None, ViewRecord] = {}
        cutter = RecordDecoder(topic_partition, start, end, columns=COLUMNS)
        for fetched in PartitionReader(self._cluster, topic_partition, start, end):
            for rows in cutter.readable_parts(fetched.batches, fetched.aborted):
                if isinstance(rows, UnreadableBatch):
                    skip(partition, rows)
                    continue
                for record in _rows_of(rows):
                    newest.pop(record.key, None)  # so that keys have the order of their newest records
                    if record.value is not None:
                        newest[record.key] = record
        return list(newest.values())

    def follow(self, offsets: Sequence[int], skip: Skip) -> list[PartitionRecords]:
        """Wait briefly for the next records of the partitions; raises `OffsetOutOfRange` for a gap."""
        positions = {TopicPartition(self.topic, number): offset for number, offset in enumerate(offsets)}
        return [
            _read_fetched(fetched, positions[fetched.partition], skip)
            for fetched in fetch_batches(self._cluster, positions, max_wait_ms=WAIT_MS)
        ]

    def _request_topic_id(self) -> str:
        connection = self._cluster.any()
        if not connection.serves(MetadataRequest):
            return ""
        wanted = MetadataRequestTopic(topic_id=None, name=TopicName(self.topic))
        request = MetadataRequest(
            topics=(wanted,), allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        (found,) = connection.request(request, MetadataResponse).topics
        if found.error_code is not ErrorCode.none:
            raise RequestRefused(f"describe the topic {self.topic!r}", found.error_code)
        return "" if found.topic_id is None else found.topic_id.hex


def _read_fetched(fetched: FetchedBatches, position: int, skip: Skip) -> PartitionRecords:
    """The records from `position` on; raises `OffsetOutOfRange` for a gap."""
    topic_partition, batches, aborted, next_offset = fetched
    headers = BatchHeaders(octets(batches))
    bases, lasts = headers["base_offset"].tolist(), headers.last_offsets.tolist()
    expected = position
    for base, last in zip(bases, lasts, strict=True):
        if base > expected:
            raise OffsetOutOfRange(topic_partition, expected, base, lasts[-1] + 1)
        expected = max(expected, last + 1)
    seen = headers.visible(position, NO_END, aborted).tolist()
    missing = sum(lasts[index] + 1 - max(bases[index], position) for index in seen)
    records: list[ViewRecord] = []
    for rows in RecordDecoder(topic_partition, position, NO_END, columns=COLUMNS).readable_parts(
        batches, aborted
    ):
        if isinstance(rows, UnreadableBatch):
            missing -= rows.last + 1 - rows.first
            skip(topic_partition.partition, rows)
        else:
            missing -= rows.num_rows
            records += _rows_of(rows)
    if missing > 0:
        raise OffsetOutOfRange(topic_partition, position, next_offset, next_offset)
    return PartitionRecords(topic_partition.partition, records, next_offset)


def _rows_of(rows: pa.RecordBatch) -> Iterator[ViewRecord]:
    keys, values, offsets = (rows.column(name).to_pylist() for name in COLUMNS)
    return map(ViewRecord, offsets, keys, values)
