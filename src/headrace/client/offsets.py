"""Offsets of partitions (ListOffsets) and of consumer groups (OffsetCommit, OffsetFetch)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode
from kio.schema.list_offsets.v6 import ListOffsetsRequest, ListOffsetsResponse
from kio.schema.list_offsets.v6.request import ListOffsetsPartition, ListOffsetsTopic
from kio.schema.offset_commit.v8 import OffsetCommitRequest, OffsetCommitResponse
from kio.schema.offset_commit.v8.request import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from kio.schema.offset_fetch.v7 import OffsetFetchRequest, OffsetFetchResponse
from kio.schema.offset_fetch.v7.request import OffsetFetchRequestTopic
from kio.schema.types import BrokerId, GroupId, TopicName
from kio.static.primitive import i8, i32, i64

from headrace.client.errors import LEADER_CHANGED, OFFSETS_RETRIABLE, RequestRefused
from headrace.client.partition import TopicPartition, by_leader, by_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.client.bootstrap import Address
    from headrace.client.cluster import Cluster

EARLIEST: Final = -2
"""The log start offset."""
LATEST: Final = -1
"""The high watermark, or the last stable offset."""

NO_OFFSET: Final = -1
_CONSUMER: Final = BrokerId(-1)


def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, read_committed: bool = True
) -> dict[TopicPartition, int]:
    """Look up an offset of each partition: `EARLIEST`, `LATEST`, or a timestamp in milliseconds.

    A timestamp resolves to the first offset at or after it, or −1. With `read_committed` the latest offset is
    the last stable offset.
    """
    found: dict[TopicPartition, int] = {}

    def request_missing() -> None:
        missing = {partition: wanted[partition] for partition in wanted if partition not in found}
        for address, part in by_leader(cluster, missing).items():
            found.update(_list(cluster, address, part, read_committed=read_committed))

    cluster.retry(request_missing, LEADER_CHANGED)
    return {partition: found[partition] for partition in wanted}


def _list(
    cluster: Cluster, address: Address, wanted: Mapping[TopicPartition, int], *, read_committed: bool
) -> dict[TopicPartition, int]:
    topics = tuple(_topic(name, times) for name, times in by_topic(wanted.items()).items())
    request = ListOffsetsRequest(replica_id=_CONSUMER, isolation_level=i8(read_committed), topics=topics)
    response = cluster.connection(address).request(request, ListOffsetsResponse)
    found: dict[TopicPartition, int] = {}
    for topic in response.topics:
        for result in topic.partitions:
            partition = TopicPartition(topic.name, result.partition_index)
            if result.error_code is not ErrorCode.none:
                raise RequestRefused(f"find an offset of {partition}", result.error_code)
            found[partition] = result.offset
    return found


def _topic(name: str, times: list[tuple[int, int]]) -> ListOffsetsTopic:
    partitions = (
        ListOffsetsPartition(partition_index=i32(index), timestamp=i64(time)) for index, time in times
    )
    return ListOffsetsTopic(name=TopicName(name), partitions=tuple(partitions))


def commit_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int], *, metadata: str = ""
) -> None:
    """Commit offsets of a group without members. A committed offset is that of the next record."""
    if offsets:
        cluster.retry(partial(_commit, cluster, group, offsets, metadata), OFFSETS_RETRIABLE)


def fetch_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition], *, require_stable: bool = True
) -> dict[TopicPartition, int]:
    """The committed offsets of a group; partitions without one are left out.

    With `require_stable` it waits for open transactions that may change them.
    """
    wanted = tuple(partitions)
    if not wanted:
        return {}
    return cluster.retry(
        partial(_fetch, cluster, group, wanted, require_stable=require_stable), OFFSETS_RETRIABLE
    )


def _commit(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
    topics = tuple(
        OffsetCommitRequestTopic(name=TopicName(name), partitions=_committed(items, metadata))
        for name, items in by_topic(offsets.items()).items()
    )
    request = OffsetCommitRequest(group_id=GroupId(group), member_id="", topics=topics)
    response = cluster.group_coordinator(group).request(request, OffsetCommitResponse)
    for topic in response.topics:
        for result in topic.partitions:
            if result.error_code is not ErrorCode.none:
                where = TopicPartition(topic.name, result.partition_index)
                raise RequestRefused(f"commit the offset of {group!r} in {where}", result.error_code)


def _committed(items: list[tuple[int, int]], metadata: str) -> tuple[OffsetCommitRequestPartition, ...]:
    return tuple(
        OffsetCommitRequestPartition(
            partition_index=i32(index), committed_offset=i64(offset), committed_metadata=metadata
        )
        for index, offset in items
    )


def _fetch(
    cluster: Cluster, group: str, partitions: tuple[TopicPartition, ...], *, require_stable: bool
) -> dict[TopicPartition, int]:
    topics = tuple(
        OffsetFetchRequestTopic(
            name=TopicName(name), partition_indexes=tuple(i32(index) for index, _ in items)
        )
        for name, items in by_topic((partition, None) for partition in partitions).items()
    )
    request = OffsetFetchRequest(group_id=GroupId(group), topics=topics, require_stable=require_stable)
    response = cluster.group_coordinator(group).request(request, OffsetFetchResponse)
    act = f"fetch the offsets of {group!r}"
    if response.error_code is not ErrorCode.none:
        raise RequestRefused(act, response.error_code)
    found: dict[TopicPartition, int] = {}
    for topic in response.topics:
        for result in topic.partitions:
            if result.error_code is not ErrorCode.none:
                raise RequestRefused(act, result.error_code)
            if result.committed_offset != NO_OFFSET:
                found[TopicPartition(topic.name, result.partition_index)] = result.committed_offset
    return found
