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

from headrace.client.error_codes import COORDINATOR_RETRIABLE, LEADER_CHANGED
from headrace.client.errors import RequestRefused
from headrace.client.partition import TopicPartition, by_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.client.address import Address
    from headrace.client.cluster import Cluster

EARLIEST: Final = -2
"""Asks for the first offset that a partition still holds."""
LATEST: Final = -1
"""Asks for the offset that the next record will get, or the first one that is not yet decided."""

_NO_BROKER: Final = BrokerId(-1)


def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, read_committed: bool = True
) -> dict[TopicPartition, int]:
    """An offset for each partition: of its beginning, of its end, or of a time.

    A time is milliseconds since 1970 and gives the first offset at or after it, −1 where there is none. With
    `read_committed` the end is the last stable offset: where the first open transaction begins.
    """
    found: dict[TopicPartition, int] = {}

    def ask_all() -> None:
        missing = {partition: wanted[partition] for partition in wanted if partition not in found}
        for address, part in _by_leader(cluster, missing).items():
            found.update(_ask(cluster, address, part, read_committed=read_committed))

    cluster.persist(ask_all, LEADER_CHANGED)
    return {partition: found[partition] for partition in wanted}


def _by_leader(
    cluster: Cluster, wanted: Mapping[TopicPartition, int]
) -> dict[Address, dict[TopicPartition, int]]:
    parts: dict[Address, dict[TopicPartition, int]] = {}
    for partition, time in wanted.items():
        parts.setdefault(cluster.leader_address(partition), {})[partition] = time
    return parts


def _ask(
    cluster: Cluster, address: Address, wanted: Mapping[TopicPartition, int], *, read_committed: bool
) -> dict[TopicPartition, int]:
    topics = tuple(_topic(name, times) for name, times in by_topic(wanted.items()).items())
    request = ListOffsetsRequest(replica_id=_NO_BROKER, isolation_level=i8(read_committed), topics=topics)
    response = cluster.connection(address).ask(request, ListOffsetsResponse)
    found: dict[TopicPartition, int] = {}
    for topic in response.topics:
        for answer in topic.partitions:
            partition = TopicPartition(topic.name, answer.partition_index)
            if answer.error_code is not ErrorCode.none:
                raise RequestRefused(f"find an offset of {partition}", answer.error_code)
            found[partition] = answer.offset
    return found


def _topic(name: str, times: list[tuple[int, int]]) -> ListOffsetsTopic:
    partitions = (
        ListOffsetsPartition(partition_index=i32(index), timestamp=i64(time)) for index, time in times
    )
    return ListOffsetsTopic(name=TopicName(name), partitions=tuple(partitions))


UNDECIDED: Final = COORDINATOR_RETRIABLE | {ErrorCode.unstable_offset_commit}
"""A transaction that is about to end holds offsets of the group."""
NO_OFFSET: Final = -1


def commit_offsets(
    cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int], *, metadata: str = ""
) -> None:
    """Return when the group's positions are stored; the group must have no members of its own.

    A position is the offset that is to be read next, as every tool that shows lag expects.
    """
    if offsets:
        cluster.persist(partial(_commit, cluster, group, offsets, metadata), UNDECIDED)


def fetch_offsets(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition], *, require_stable: bool = True
) -> dict[TopicPartition, int]:
    """The group's positions; a partition without one is absent.

    With `require_stable` positions that an open transaction is about to change are waited for.
    """
    wanted = tuple(partitions)
    if not wanted:
        return {}
    return cluster.persist(partial(_fetch, cluster, group, wanted, require_stable=require_stable), UNDECIDED)


def _commit(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
    topics = tuple(
        OffsetCommitRequestTopic(name=TopicName(name), partitions=_positions(items, metadata))
        for name, items in by_topic(offsets.items()).items()
    )
    request = OffsetCommitRequest(group_id=GroupId(group), member_id="", topics=topics)
    response = cluster.group_coordinator(group).ask(request, OffsetCommitResponse)
    for topic in response.topics:
        for answer in topic.partitions:
            if answer.error_code is not ErrorCode.none:
                where = TopicPartition(topic.name, answer.partition_index)
                raise RequestRefused(f"store the position of {group!r} in {where}", answer.error_code)


def _positions(items: list[tuple[int, int]], metadata: str) -> tuple[OffsetCommitRequestPartition, ...]:
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
    response = cluster.group_coordinator(group).ask(request, OffsetFetchResponse)
    act = f"tell the positions of {group!r}"
    if response.error_code is not ErrorCode.none:
        raise RequestRefused(act, response.error_code)
    found: dict[TopicPartition, int] = {}
    for topic in response.topics:
        for answer in topic.partitions:
            if answer.error_code is not ErrorCode.none:
                raise RequestRefused(act, answer.error_code)
            if answer.committed_offset != NO_OFFSET:
                found[TopicPartition(topic.name, answer.partition_index)] = answer.committed_offset
    return found
