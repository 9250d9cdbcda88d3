"""Requests of share groups: heartbeats, descriptions, offsets and settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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

from headrace.client.address import Address
from headrace.client.error_codes import COORDINATOR_RETRIABLE
from headrace.client.errors import RequestRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from kio.schema.share_group_describe.v1.response import DescribedGroup

    from headrace.client.cluster import Cluster

GROUP_RESOURCE: Final = i8(32)
SET: Final = i8(0)
OF_GROUP: Final = 8
"""The config source of a setting of a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareHeartbeatResponse:
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
) -> ShareHeartbeatResponse:
    """Send one heartbeat: epoch 0 joins, −1 leaves."""
    request = ShareGroupHeartbeatRequest(
        group_id=GroupId(group),
        member_id=member,
        member_epoch=i32(epoch),
        subscribed_topic_names=None if topics is None else tuple(TopicName(topic) for topic in topics),
    )
    response = cluster.group_coordinator(group).ask(request, ShareGroupHeartbeatResponse)
    assigned = response.assignment
    return ShareHeartbeatResponse(
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
    response = cluster.any().ask(request, MetadataResponse)
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
        response = cluster.connection(address).ask(request, ListGroupsResponse)
        if response.error_code is not ErrorCode.none:
            raise RequestRefused("list its share groups", response.error_code)
        names |= {group.group_id for group in response.groups}
    return sorted(names)


def describe_share_group(cluster: Cluster, group: str) -> DescribedGroup:
    """The members of a share group."""
    act = f"describe the share group {group!r}"
    request = ShareGroupDescribeRequest(group_ids=(GroupId(group),), include_authorized_operations=False)

    def ask() -> DescribedGroup:
        (found,) = cluster.group_coordinator(group).ask(request, ShareGroupDescribeResponse).groups
        if found.error_code is not ErrorCode.none:
            raise RequestRefused(act, found.error_code, found.error_message)
        return found

    return cluster.persist(ask, COORDINATOR_RETRIABLE)


def share_progress(cluster: Cluster, group: str) -> list[ShareProgress]:
    """How far a share group is with each of its partitions."""
    asked = DescribeShareGroupOffsetsRequestGroup(group_id=GroupId(group), topics=None)
    request = DescribeShareGroupOffsetsRequest(groups=(asked,))

    def ask() -> list[ShareProgress]:
        response = cluster.group_coordinator(group).ask(request, DescribeShareGroupOffsetsResponse)
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

    return cluster.persist(ask, COORDINATOR_RETRIABLE)


def group_settings(cluster: Cluster, group: str) -> dict[str, str]:
    """The settings of a group that are not defaults."""
    resource = DescribeConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=group, configuration_keys=None
    )
    request = DescribeConfigsRequest(
        resources=(resource,), include_synonyms=False, include_documentation=False
    )
    (found,) = cluster.any().ask(request, DescribeConfigsResponse).results
    if found.error_code is not ErrorCode.none:
        raise RequestRefused(f"show the settings of {group!r}", found.error_code, found.error_message)
    return {config.name: config.value or "" for config in found.configs if config.config_source == OF_GROUP}


def set_group_settings(cluster: Cluster, group: str, settings: Mapping[str, str]) -> None:
    """Change settings of a group, which need not exist yet."""
    configs = tuple(
        AlterableConfig(name=name, config_operation=SET, value=value) for name, value in settings.items()
    )
    resource = AlterConfigsResource(resource_type=GROUP_RESOURCE, resource_name=group, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=(resource,), validate_only=False)
    (response,) = cluster.controller().ask(request, IncrementalAlterConfigsResponse).responses
    if response.error_code is not ErrorCode.none:
        raise RequestRefused(f"change the settings of {group!r}", response.error_code, response.error_message)
