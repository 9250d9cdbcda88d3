"""Committed records of a partition, one by one, in plain Python. Records that cannot be read are named."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from headrace.client.fetch import PartitionReader
from headrace.protocol.batch import check_batch, read_header, split_batches
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import Record, decode_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace.client.cluster import Cluster
    from headrace.client.partition import TopicPartition

logger = logging.getLogger(__name__)


class UnreadableRecords(NamedTuple):
    """Offsets of a partition whose records cannot be read."""

    partition: TopicPartition
    first: int
    last: int
    reason: str
    batch: bytes = b""
    """The record batch as it is stored; empty if the batch can be read, and its record means nothing."""
    key: bytes | None = None
    """The key of a record that means nothing."""

    def __str__(self) -> str:
        offsets = (
            f"offset {self.first}" if self.first == self.last else f"offsets {self.first} to {self.last}"
        )
        topic, number = self.partition
        return f"{offsets} of partition {number} of {topic!r} cannot be read: {self.reason}"


def read_records(
    cluster: Cluster, partition: TopicPartition, start: int, end: int
) -> Iterator[Record | UnreadableRecords]:
    """The committed records at the offsets [start, end), in their order."""
    if start >= end:
        return
    for piece in PartitionReader(cluster, partition, start, end):
        for record in committed_records(partition, piece.batches, piece.aborted):
            if isinstance(record, UnreadableRecords):
                if record.last >= start and record.first < end:
                    yield record
            elif start <= record.offset < end:
                yield record


def committed_records(
    partition: TopicPartition, batches: memoryview, aborted: Sequence[tuple[int, int]]
) -> Iterator[Record | UnreadableRecords]:
    """The records of these batches without those of `aborted` transactions.

    What a batch with a wrong checksum holds is unknown, so it is never left out as a marker or as aborted.
    """
    # As every client does it: a producer is in an aborted transaction from where the broker's list says up to
    # its next marker.
    pending = sorted(aborted, key=lambda each: each[1], reverse=True)
    aborting: set[int] = set()
    for batch in split_batches(batches):
        header = read_header(batch)
        while pending and pending[-1][1] <= header.last_offset:
            aborting.add(pending.pop()[0])
        try:
            check_batch(batch, header)
            if header.is_control:
                aborting.discard(header.producer_id)
                continue
            if header.is_transactional and header.producer_id in aborting:
                continue
            records = decode_batch(batch)
        except CorruptBatch as fault:
            yield UnreadableRecords(
                partition, header.base_offset, header.last_offset, str(fault), bytes(batch)
            )
        else:
            yield from records


def skip_unreadable(records: Iterable[Record | UnreadableRecords]) -> Iterator[Record]:
    """The records alone; a warning names those that cannot be read."""
    for record in records:
        if isinstance(record, UnreadableRecords):
            logger.warning("skipped: %s", record)
        else:
            yield record
