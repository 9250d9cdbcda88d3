"""Decodes the committed records of a partition, in plain Python."""

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
    """Offsets whose records cannot be decoded."""

    partition: TopicPartition
    first: int
    last: int
    reason: str
    batch: bytes = b""
    """The stored record batch; empty if only the content of a record is invalid."""
    key: bytes | None = None
    """The key of a record with invalid content."""

    def __str__(self) -> str:
        offsets = (
            f"offset {self.first}" if self.first == self.last else f"offsets {self.first} to {self.last}"
        )
        topic, number = self.partition
        return f"{offsets} of partition {number} of {topic!r} cannot be read: {self.reason}"


def read_records(
    cluster: Cluster, partition: TopicPartition, start: int, end: int
) -> Iterator[Record | UnreadableRecords]:
    """Yield the committed records with offsets from `start` to before `end`."""
    if start >= end:
        return
    for fetched in PartitionReader(cluster, partition, start, end):
        for record in committed_records(partition, fetched.batches, fetched.aborted):
            if isinstance(record, UnreadableRecords):
                if record.last >= start and record.first < end:
                    yield record
            elif start <= record.offset < end:
                yield record


def committed_records(
    partition: TopicPartition, batches: memoryview, aborted: Sequence[tuple[int, int]]
) -> Iterator[Record | UnreadableRecords]:
    """Yield the records of these batches without those of `aborted` transactions.

    A batch with a wrong checksum is never skipped as a marker or as aborted: its content is unknown.
    """
    # A producer is in an aborted transaction from the offset in the broker's list to its next marker.
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
    """Yield the records, and log a warning for those that cannot be decoded."""
    for record in records:
        if isinstance(record, UnreadableRecords):
            logger.warning("skipped: %s", record)
        else:
            yield record
