"""Metadata (key 3), versions 0–13: the broker, its topics and their partitions.

A missing topic is created if the request and the broker's settings allow that. Unlike in Apache Kafka, the
same response contains the new topic. Topics that the client may not describe are left out of a list
of all topics, and refused when they are named; none is created without the right to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.handlers.describe_cluster import cluster_operations
from headrace.broker.security.acls import Operation, ResourceType
from headrace.broker.topics import check_name
from headrace.errors import HeadraceError
from headrace.protocol.responses import LazyArray

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.topics import Topic

VERSIONS: Final = (0, 13)
NULLABLE_NAMES_FROM: Final = 12


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns the requested topics; duplicates in the request are ignored."""
    wanted = request.topics
    if wanted is None or (context.version == 0 and not wanted):
        topics = [
            describe(broker, topic)
            async for topic in context.time_slice.over(broker.topics)
            if context.allows(ResourceType.TOPIC, topic.name)
        ]
    else:
        may_create = getattr(request, "allow_auto_topic_creation", True) and broker.config.auto_create_topics
        unique = {(item.name, getattr(item, "topic_id", None)): item for item in wanted}
        topics = [
            _find(broker, item, context, may_create=may_create)
            async for item in context.time_slice.over(unique.values())
        ]
        await broker.flusher.durable()
    if getattr(request, "include_topic_authorized_operations", False):
        topics = [_with_operations(topic, context) for topic in topics]
    return {
        "brokers": [{"node_id": broker.node_id, **context.endpoint._asdict(), "rack": None}],
        "cluster_id": broker.cluster_id,
        "controller_id": broker.node_id,
        "topics": topics,
        "cluster_authorized_operations": cluster_operations(
            context, requested=getattr(request, "include_cluster_authorized_operations", False)
        ),
        "error_code": 0,
    }


def _with_operations(topic: Mapping[str, Any], context: RequestContext) -> Mapping[str, Any]:
    if topic["error_code"]:
        return topic
    operations = context.authorized_operations(ResourceType.TOPIC, topic["name"])
    return {**topic, "topic_authorized_operations": operations}


def _find(broker: Broker, item: Any, context: RequestContext, *, may_create: bool) -> Mapping[str, Any]:
    topic_id = getattr(item, "topic_id", None)
    if item.name is None:
        topic = broker.topics.by_id(topic_id) if topic_id is not None else None
        no_name = None if context.version >= NULLABLE_NAMES_FROM else ""
        if topic is None:
            return _missing(no_name, topic_id, ErrorCode.unknown_topic_id)
        if not context.allows(ResourceType.TOPIC, topic.name):  # an id is no secret, and a name is
            return _missing(no_name, topic_id, ErrorCode.topic_authorization_failed)
        return describe(broker, topic)
    if not context.allows(ResourceType.TOPIC, item.name):
        return _missing(item.name, None, ErrorCode.topic_authorization_failed)
    topic = broker.topics.get(item.name)
    return (
        _create(broker, item.name, context, may_create=may_create)
        if topic is None
        else describe(broker, topic)
    )


def _create(broker: Broker, name: str, context: RequestContext, *, may_create: bool) -> Mapping[str, Any]:
    try:
        check_name(name)
        if not may_create:
            return _missing(name, None, ErrorCode.unknown_topic_or_partition)
        if not _allows_creation(name, context):
            return _missing(name, None, ErrorCode.topic_authorization_failed)
        return describe(broker, broker.topics.create(name, broker.config.default_partitions, {}))
    except HeadraceError as fault:
        return _missing(name, None, error_code(fault))


def _allows_creation(name: str, context: RequestContext) -> bool:
    return context.allows_operation(Operation.CREATE, ResourceType.CLUSTER) or context.allows_operation(
        Operation.CREATE, ResourceType.TOPIC, name
    )


def _missing(name: str | None, topic_id: Any, code: ErrorCode) -> Mapping[str, Any]:
    return {
        "error_code": code,
        "name": name,
        "topic_id": topic_id,
        "is_internal": False,
        "partitions": (),
        "topic_authorized_operations": -(2**31),
    }


def describe(broker: Broker, topic: Topic) -> Mapping[str, Any]:
    """A topic as in the responses to Metadata and DescribeTopicPartitions."""
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.is_internal,
        "partitions": describe_partitions(broker, range(len(topic.partitions))),
        "topic_authorized_operations": -(2**31),
    }


def describe_partitions(broker: Broker, indexes: range) -> LazyArray:
    """The given partitions of a topic."""
    return LazyArray(indexes, lambda index: describe_partition(broker, index))


def describe_partition(broker: Broker, index: int) -> Mapping[str, Any]:
    """A partition; this broker is its leader and only replica."""
    nodes = (broker.node_id,)
    return {
        "error_code": 0,
        "partition_index": index,
        "leader_id": broker.node_id,
        "leader_epoch": 0,
        "replica_nodes": nodes,
        "isr_nodes": nodes,
        "offline_replicas": (),
        "eligible_leader_replicas": (),
        "last_known_elr": (),
    }
