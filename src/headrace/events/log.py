"""Where the partitions of a store begin and end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.client.offsets import EARLIEST, LATEST, list_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.client.cluster import Cluster
    from headrace.client.partition import TopicPartition


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
