"""Committed records of one partition, one by one, in plain Python: what a handler reads at first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.client.fetch import PartitionReader
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.protocol.batch import read_header, split_batches
from headrace.protocol.records import decode_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headrace.client.cluster import Cluster
    from headrace.client.fetch import Fetched
    from headrace.client.partition import TopicPartition
    from headrace.protocol.records import Record


def extents(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
    """The first offset of each partition, and the one after its last record, decided or not.

    Reading up to there waits until every transaction that was open is decided.
    """
    wanted = list(partitions)
    first, end = (
        list_offsets(cluster, dict.fromkeys(wanted, which), read_committed=False)
        for which in (EARLIEST, LATEST)
    )
    return {partition: (first[partition], end[partition]) for partition in wanted}


def ends(cluster: Cluster, partitions: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
    """The offset after the last record of each partition, decided or not."""
    return list_offsets(cluster, dict.fromkeys(partitions, LATEST), read_committed=False)


def data_end(cluster: Cluster, place: TopicPartition, end: int) -> int:
    """Where a client stands that has all records of a partition that ends at `end`.

    Of a marker before the end librdkafka tells only when it has waited in vain for more: whoever has passed
    the record before it has them all.
    """
    is_marker = end > 0 and not any(True for _ in read_records(cluster, place, end - 1, end))
    return end - 1 if is_marker else end


def read_records(cluster: Cluster, partition: TopicPartition, start: int, end: int) -> Iterator[Record]:
    """The committed records at the offsets [start, end)."""
    if start >= end:
        return
    for piece in PartitionReader(cluster, partition, start, end):
        yield from (record for record in _committed(piece) if start <= record.offset < end)


def _committed(piece: Fetched) -> Iterator[Record]:
    # As every client does it: a producer is in an aborted transaction from where the broker's list says up to
    # its next marker.
    pending = sorted(piece.aborted, key=lambda each: each[1], reverse=True)
    aborting: set[int] = set()
    for batch in split_batches(piece.batches):
        header = read_header(batch)
        while pending and pending[-1][1] <= header.last_offset:
            aborting.add(pending.pop()[0])
        if header.is_control:
            aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            yield from decode_batch(batch)
