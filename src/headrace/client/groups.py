"""Positions of consumer groups, kept and looked up without being a member (OffsetCommit, OffsetFetch)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode
from kio.schema.offset_commit.v8 import OffsetCommitRequest, OffsetCommitResponse
from kio.schema.offset_commit.v8.request import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from kio.schema.offset_fetch.v7 import OffsetFetchRequest, OffsetFetchResponse
from kio.schema.offset_fetch.v7.request import OffsetFetchRequestTopic
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i64

from headrace.client.codes import PASSING
from headrace.client.errors import RequestRefused
from headrace.client.partition import TopicPartition, by_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.client.cluster import Cluster

UNDECIDED: Final = PASSING | {ErrorCode.unstable_offset_commit}
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
