"""Share groups (KIP-932): heartbeats, descriptions, offsets, settings, and the messages that carry records.

ShareFetch (API key 78) and ShareAcknowledge (79), version 2, are encoded and decoded by hand for speed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from kio.schema.describe_configs.v4 import DescribeConfigsRequest, DescribeConfigsResponse
from kio.schema.describe_configs.v4.request import DescribeConfigsResource
from kio.schema.describe_share_group_offsets.v1 import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from kio.schema.describe_share_group_offsets.v1.request import DescribeShareGroupOffsetsRequestGroup
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1 import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from kio.schema.incremental_alter_configs.v1.request import AlterableConfig, AlterConfigsResource
from kio.schema.list_groups.v5 import ListGroupsRequest, ListGroupsResponse
from kio.schema.metadata.v12 import MetadataRequest, MetadataResponse
from kio.schema.metadata.v12.request import MetadataRequestTopic
from kio.schema.share_group_describe.v1 import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from kio.schema.share_group_heartbeat.v1 import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i32

from headrace.client.bootstrap import Address
from headrace.client.errors import COORDINATOR_RETRIABLE, BadResponse, RequestRefused
from headrace.protocol.errors import ProtocolError
from headrace.protocol.share import AcknowledgeType, pack_delay
from headrace.protocol.wire import INT16, INT32, UNLIMITED, FrameCursor, pack_count, pack_string

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kio.schema.share_group_describe.v1.response import DescribedGroup

    from headrace.client.cluster import Cluster

GROUP_RESOURCE: Final = i8(32)
SET: Final = i8(0)
GROUP_CONFIG: Final = 8
"""The config source of a setting of a group."""

SHARE_FETCH: Final = 78
SHARE_ACKNOWLEDGE: Final = 79
SHARE_VERSION: Final = 2

_FETCH = struct.Struct(">iiiiiib?")
_ACKNOWLEDGE = struct.Struct(">i?")
_RANGE = struct.Struct(">qqBb")
_HEAD = struct.Struct(">ih")
_ACQUIRED = struct.Struct(">qqh")
_LEADER = struct.Struct(">ii")

STRICT: Final = 1
"""The acquire mode: not more than `max_records`."""

TopicIdPartition = tuple[UUID, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatResult:
    """The response to a heartbeat; the assignment is None if it has not changed."""

    error: ErrorCode
    message: str | None
    epoch: int
    interval_ms: int
    assignment: frozenset[tuple[UUID, int]] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicLeaders:
    """A topic with the addresses of the leaders of its partitions."""

    name: str
    id: UUID
    leaders: Mapping[int, Address]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareProgress:
    """Start offset and lag of a share group in a partition."""

    topic: str
    partition: int
    start: int
    lag: int


def send_share_heartbeat(
    cluster: Cluster, group: str, member: str, epoch: int, topics: Iterable[str] | None = None
) -> HeartbeatResult:
    """Send one heartbeat: epoch 0 joins, −1 leaves."""
    request = ShareGroupHeartbeatRequest(
        group_id=GroupId(group),
        member_id=member,
        member_epoch=i32(epoch),
        subscribed_topic_names=None if topics is None else tuple(TopicName(topic) for topic in topics),
    )
    response = cluster.group_coordinator(group).request(request, ShareGroupHeartbeatResponse)
    assigned = response.assignment
    return HeartbeatResult(
        error=response.error_code,
        message=response.error_message,
        epoch=response.member_epoch,
        interval_ms=round(response.heartbeat_interval.total_seconds() * 1000),
        assignment=None
        if assigned is None
        else frozenset(
            (topic.topic_id, index)
            for topic in assigned.topic_partitions
            for index in topic.partitions
            if topic.topic_id is not None
        ),
    )


def find_topics(cluster: Cluster, names: Iterable[str]) -> dict[UUID, TopicLeaders]:
    """The existing topics with these names, by topic id."""
    request = MetadataRequest(
        topics=tuple(MetadataRequestTopic(topic_id=None, name=TopicName(name)) for name in names),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )
    response = cluster.any().request(request, MetadataResponse)
    brokers = {broker.node_id: Address(host=broker.host, port=broker.port) for broker in response.brokers}
    return {
        topic.topic_id: TopicLeaders(
            name=topic.name or "",
            id=topic.topic_id,
            leaders={
                part.partition_index: brokers[part.leader_id]
                for part in topic.partitions
                if part.leader_id in brokers
            },
        )
        for topic in response.topics
        if topic.topic_id is not None and topic.error_code is ErrorCode.none
    }


def list_share_groups(cluster: Cluster) -> list[str]:
    """The names of all share groups."""
    names: set[str] = set()
    for address in cluster.brokers():
        request = ListGroupsRequest(states_filter=(), types_filter=("share",))
        response = cluster.connection(address).request(request, ListGroupsResponse)
        if response.error_code is not ErrorCode.none:
            raise RequestRefused("list its share groups", response.error_code)
        names |= {group.group_id for group in response.groups}
    return sorted(names)


def describe_share_group(cluster: Cluster, group: str) -> DescribedGroup:
    """The members of a share group."""
    act = f"describe the share group {group!r}"
    request = ShareGroupDescribeRequest(group_ids=(GroupId(group),), include_authorized_operations=False)

    def request_description() -> DescribedGroup:
        (found,) = cluster.group_coordinator(group).request(request, ShareGroupDescribeResponse).groups
        if found.error_code is not ErrorCode.none:
            raise RequestRefused(act, found.error_code, found.error_message)
        return found

    return cluster.retry(request_description, COORDINATOR_RETRIABLE)


def share_progress(cluster: Cluster, group: str) -> list[ShareProgress]:
    """Start offset and lag of a share group in each of its partitions."""
    wanted = DescribeShareGroupOffsetsRequestGroup(group_id=GroupId(group), topics=None)
    request = DescribeShareGroupOffsetsRequest(groups=(wanted,))

    def request_offsets() -> list[ShareProgress]:
        response = cluster.group_coordinator(group).request(request, DescribeShareGroupOffsetsResponse)
        (found,) = response.groups
        if found.error_code is not ErrorCode.none:
            act = f"describe the offsets of the share group {group!r}"
            raise RequestRefused(act, found.error_code, found.error_message)
        return [
            ShareProgress(
                topic=topic.topic_name, partition=part.partition_index, start=part.start_offset, lag=part.lag
            )
            for topic in found.topics
            for part in topic.partitions
        ]

    return cluster.retry(request_offsets, COORDINATOR_RETRIABLE)


def group_settings(cluster: Cluster, group: str) -> dict[str, str]:
    """The settings of a group that are not defaults."""
    resource = DescribeConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=group, configuration_keys=None
    )
    request = DescribeConfigsRequest(
        resources=(resource,), include_synonyms=False, include_documentation=False
    )
    (found,) = cluster.any().request(request, DescribeConfigsResponse).results
    if found.error_code is not ErrorCode.none:
        raise RequestRefused(f"show the settings of {group!r}", found.error_code, found.error_message)
    return {
        config.name: config.value or "" for config in found.configs if config.config_source == GROUP_CONFIG
    }


def set_group_settings(cluster: Cluster, group: str, settings: Mapping[str, str]) -> None:
    """Change settings of a group, which need not exist yet."""
    configs = tuple(
        AlterableConfig(name=name, config_operation=SET, value=value) for name, value in settings.items()
    )
    resource = AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=group, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    (response,) = cluster.controller().request(request, IncrementalAlterConfigsResponse).responses
    if response.error_code is not ErrorCode.none:
        raise RequestRefused(f"change the settings of {group!r}", response.error_code, response.error_message)


class Acknowledgment(NamedTuple):
    """The acknowledgment of a record."""

    kind: int
    delay_ms: int = 0
    """The delay before a released message is delivered again; Apache Kafka ignores it."""


Acknowledgments = Mapping[TopicIdPartition, Mapping[int, Acknowledgment]]
"""Acknowledgments by partition and offset."""


class SharePartitionResponse(NamedTuple):
    """The response for one partition."""

    partition: TopicIdPartition
    error: ErrorCode
    acknowledge_error: ErrorCode
    records: memoryview
    acquired: tuple[tuple[int, int, int], ...]


class ShareResponse(NamedTuple):
    """The response to ShareFetch or ShareAcknowledge."""

    error: ErrorCode
    lock_ms: int
    partitions: tuple[SharePartitionResponse, ...]


def pack_share_fetch(
    group: str,
    member: str,
    epoch: int,
    *,
    max_wait_ms: int,
    max_bytes: int,
    max_records: int,
    partitions: Iterable[TopicIdPartition],
    acknowledged: Acknowledgments,
    forgotten: Sequence[TopicIdPartition] = (),
) -> list[bytes]:
    """The body of a ShareFetch; `partitions` are new to the session."""
    limits = _FETCH.pack(epoch, max_wait_ms, 1, max_bytes, max_records, max_records, STRICT, False)
    parts = [pack_string(group, flexible=True), pack_string(member, flexible=True), limits]
    _pack_partitions(parts, {partition: {} for partition in partitions} | dict(acknowledged))
    parts.append(pack_count(len(forgotten), flexible=True))
    for topic, index in forgotten:
        parts += [topic.bytes, b"\2", INT32.pack(index), b"\0"]
    parts.append(b"\0")
    return parts


def pack_share_acknowledge(group: str, member: str, epoch: int, acknowledged: Acknowledgments) -> list[bytes]:
    """The body of a ShareAcknowledge."""
    renews = any(
        each.kind == AcknowledgeType.RENEW for offsets in acknowledged.values() for each in offsets.values()
    )
    head = _ACKNOWLEDGE.pack(epoch, renews)
    parts = [pack_string(group, flexible=True), pack_string(member, flexible=True), head]
    _pack_partitions(parts, acknowledged)
    parts.append(b"\0")
    return parts


def _pack_partitions(parts: list[bytes], acknowledged: Acknowledgments) -> None:
    # One topic entry per partition, which the protocol allows: most queues have one partition.
    parts.append(pack_count(len(acknowledged), flexible=True))
    for (topic, index), offsets in acknowledged.items():
        ranges = _ranges(offsets)
        parts += [topic.bytes, b"\2", INT32.pack(index), pack_count(len(ranges), flexible=True)]
        for first, last, acknowledgment in ranges:
            parts += (_RANGE.pack(first, last, 2, acknowledgment.kind), pack_delay(acknowledgment.delay_ms))
        parts.append(b"\0\0")


def _ranges(offsets: Mapping[int, Acknowledgment]) -> list[tuple[int, int, Acknowledgment]]:
    """Merge consecutive offsets with the same acknowledgment."""
    ranges: list[tuple[int, int, Acknowledgment]] = []
    for offset, acknowledgment in sorted(offsets.items()):
        if ranges and ranges[-1][1] == offset - 1 and ranges[-1][2] == acknowledgment:
            ranges[-1] = (ranges[-1][0], offset, acknowledgment)
        else:
            ranges.append((offset, offset, acknowledgment))
    return ranges


def read_share_fetch(frame: memoryview) -> ShareResponse:
    """Decode a ShareFetch response."""
    return _read(frame, _read_fetched)


def read_share_acknowledge(frame: memoryview) -> ShareResponse:
    """Decode a ShareAcknowledge response."""
    return _read(frame, _read_acknowledged)


def _read(
    frame: memoryview, read_one: Callable[[FrameCursor, UUID], SharePartitionResponse]
) -> ShareResponse:
    cursor = FrameCursor(frame, INT32.size, flexible=True, max_items=UNLIMITED)
    try:
        cursor.tags()
        _throttle, error = cursor.take(_HEAD)
        cursor.string()
        (lock_ms,) = cursor.take(INT32)
        partitions: list[SharePartitionResponse] = []
        for _ in range(cursor.count()):
            topic = cursor.uuid()
            partitions += [read_one(cursor, topic) for _ in range(cursor.count())]
            cursor.tags()
    except ProtocolError as fault:
        raise BadResponse(f"the response for a share group cannot be decoded: {fault}") from fault
    return ShareResponse(ErrorCode(error), lock_ms, tuple(partitions))


def _read_fetched(cursor: FrameCursor, topic: UUID) -> SharePartitionResponse:
    index, error = cursor.take(_HEAD)
    cursor.string()
    (acknowledge_error,) = cursor.take(INT16)
    cursor.string()
    cursor.take(_LEADER)
    cursor.tags()
    records = cursor.blob()
    acquired = []
    for _ in range(cursor.count()):
        first, last, deliveries = cursor.take(_ACQUIRED)
        cursor.tags()
        acquired.append((first, last, deliveries))
    cursor.tags()
    none = cursor.frame[:0]
    return SharePartitionResponse(
        (topic, index),
        ErrorCode(error),
        ErrorCode(acknowledge_error),
        none if records is None else records,
        tuple(acquired),
    )


def _read_acknowledged(cursor: FrameCursor, topic: UUID) -> SharePartitionResponse:
    index, error = cursor.take(_HEAD)
    cursor.string()
    cursor.take(_LEADER)
    cursor.tags()
    cursor.tags()
    return SharePartitionResponse((topic, index), ErrorCode.none, ErrorCode(error), cursor.frame[:0], ())
