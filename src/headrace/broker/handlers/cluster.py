"""The cluster and its topics, as clients see them: ApiVersions, Metadata, DescribeCluster and others."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.request import NOT_AUTHORIZED, OPERATIONS_NOT_ASKED
from headrace.broker.security.acls import CLUSTER_NAME, Operation, ResourceType
from headrace.broker.topics import check_name
from headrace.errors import HeadraceError
from headrace.protocol.responses import LazyArray

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.topics import Topic


FEATURES: Final = {"transaction.version": 2, "share.version": 1}
NULLABLE_NAMES_FROM: Final = 12
MAX_PARTITIONS: Final = 2_000
GROUP_KEY: Final = 0
TRANSACTION_KEY: Final = 1
SHARE_KEY: Final = 2


def api_versions(broker: Broker, _request: Any, context: RequestContext) -> Mapping[str, Any]:
    """ApiVersions (key 18), versions 0–4: the served APIs and their versions.

    The finalized feature `transaction.version` 2 makes Java clients use the transactions of KIP-890, and
    `share.version` 1 enables share groups (KIP-932). As in Apache Kafka, responses below version 4 omit
    features whose minimum version is 0: older clients cannot read them.
    """
    features = [{"name": name, "min_version": 0, "max_version": level} for name, level in FEATURES.items()]
    finalized = [
        {"name": name, "max_version_level": level, "min_version_level": level}
        for name, level in FEATURES.items()
    ]
    return {
        "error_code": 0,
        "api_keys": _ranges(broker),
        "supported_features": features if context.version >= 4 else (),
        "finalized_features_epoch": 0,
        "finalized_features": finalized,
    }


def unsupported_api_versions(broker: Broker) -> Mapping[str, Any]:
    """The response to an unsupported version: the client retries with a version that both know."""
    return {"error_code": ErrorCode.unsupported_version, "api_keys": _ranges(broker)}


def _ranges(broker: Broker) -> list[Mapping[str, int]]:
    return [
        {"api_key": key, "min_version": low, "max_version": high}
        for key, (low, high) in broker.served.items()
    ]


async def metadata(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Metadata (key 3), versions 0–13: the broker, its topics and their partitions.

    A missing topic is created if the request and the broker's settings allow that. Unlike in Apache Kafka,
    the same response contains the new topic. Topics that the client may not describe are left out of a list
    of all topics, and refused when they are named; none is created without the right to.
    """
    wanted = request.topics
    if wanted is None or (context.version == 0 and not wanted):
        topics = [
            describe_topic(broker, topic)
            async for topic in context.time_slice.over(broker.topics)
            if context.allows(ResourceType.TOPIC, topic.name)
        ]
    else:
        may_create = getattr(request, "allow_auto_topic_creation", True) and broker.config.auto_create_topics
        unique = {(item.name, getattr(item, "topic_id", None)): item for item in wanted}
        topics = [
            _find_topic(broker, item, context, may_create=may_create)
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


def _find_topic(broker: Broker, item: Any, context: RequestContext, *, may_create: bool) -> Mapping[str, Any]:
    topic_id = getattr(item, "topic_id", None)
    if item.name is None:
        topic = broker.topics.by_id(topic_id) if topic_id is not None else None
        no_name = None if context.version >= NULLABLE_NAMES_FROM else ""
        if topic is None:
            return _missing_topic(no_name, topic_id, ErrorCode.unknown_topic_id)
        if not context.allows(ResourceType.TOPIC, topic.name):  # an id is no secret, and a name is
            return _missing_topic(no_name, topic_id, ErrorCode.topic_authorization_failed)
        return describe_topic(broker, topic)
    if not context.allows(ResourceType.TOPIC, item.name):
        return _missing_topic(item.name, None, ErrorCode.topic_authorization_failed)
    topic = broker.topics.get(item.name)
    return (
        _create_topic(broker, item.name, context, may_create=may_create)
        if topic is None
        else describe_topic(broker, topic)
    )


def _create_topic(
    broker: Broker, name: str, context: RequestContext, *, may_create: bool
) -> Mapping[str, Any]:
    try:
        check_name(name)
        if not may_create:
            return _missing_topic(name, None, ErrorCode.unknown_topic_or_partition)
        if not _allows_creation(name, context):
            return _missing_topic(name, None, ErrorCode.topic_authorization_failed)
        return describe_topic(broker, broker.topics.create(name, broker.config.default_partitions, {}))
    except HeadraceError as fault:
        return _missing_topic(name, None, error_code(fault))


def _allows_creation(name: str, context: RequestContext) -> bool:
    return context.allows_operation(Operation.CREATE, ResourceType.CLUSTER) or context.allows_operation(
        Operation.CREATE, ResourceType.TOPIC, name
    )


def _missing_topic(name: str | None, topic_id: Any, code: ErrorCode) -> Mapping[str, Any]:
    return {
        "error_code": code,
        "name": name,
        "topic_id": topic_id,
        "is_internal": False,
        "partitions": (),
        "topic_authorized_operations": -(2**31),
    }


def describe_topic(broker: Broker, topic: Topic) -> Mapping[str, Any]:
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


def describe_topic_partitions(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """DescribeTopicPartitions (key 75), version 0: topics and partitions in pages, with a cursor.

    A page has at most 2,000 partitions, the default of `max.request.partition.size.limit` in Apache Kafka.
    """
    names = sorted({item.name for item in request.topics}) or sorted(
        topic.name for topic in broker.topics if context.allows(ResourceType.TOPIC, topic.name)
    )
    first_topic, first_index = "", 0
    if request.cursor is not None:
        first_topic, first_index = request.cursor.topic_name, request.cursor.partition_index
    room = min(max(request.response_partition_limit, 1), MAX_PARTITIONS)
    topics: list[Mapping[str, Any]] = []
    for name in names:
        if name < first_topic:
            continue
        skip = first_index if name == first_topic else 0
        if room == 0 or len(topics) >= MAX_PARTITIONS:
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": skip}}
        shown = _describe_page(broker, name, skip, room, context)
        topics.append(shown)
        room -= len(shown["partitions"])
        end = skip + len(shown["partitions"])
        topic = broker.topics.get(name)
        if not shown["error_code"] and topic is not None and end < len(topic.partitions):
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": end}}
    return {"topics": topics, "next_cursor": None}


def _describe_page(
    broker: Broker, name: str, skip: int, room: int, context: RequestContext
) -> Mapping[str, Any]:
    if not context.allows(ResourceType.TOPIC, name):
        denied = ErrorCode.topic_authorization_failed
        return {"error_code": denied, "name": name, "topic_id": None, "partitions": ()}
    topic = broker.topics.get(name)
    if topic is None:
        unknown = ErrorCode.unknown_topic_or_partition
        return {"error_code": unknown, "name": name, "topic_id": None, "partitions": ()}
    end = min(len(topic.partitions), skip + room)
    return {
        **describe_topic(broker, topic),
        "partitions": describe_partitions(broker, range(max(skip, 0), end)),
        "topic_authorized_operations": context.authorized_operations(ResourceType.TOPIC, name),
    }


def describe_cluster(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """DescribeCluster (key 60), versions 0–2: the cluster has one node."""
    node = {"broker_id": broker.node_id, **context.endpoint._asdict(), "is_fenced": False}
    return {
        "error_code": 0,
        "error_message": None,
        "cluster_id": broker.cluster_id,
        "controller_id": broker.node_id,
        "brokers": [node],
        "cluster_authorized_operations": cluster_operations(
            context, requested=request.include_cluster_authorized_operations
        ),
    }


def cluster_operations(context: RequestContext, *, requested: bool) -> int:
    """What the client may do with the cluster, if it asks for that and may know it."""
    if not requested:
        return OPERATIONS_NOT_ASKED
    may_know = context.allows_operation(Operation.DESCRIBE, ResourceType.CLUSTER)
    return context.authorized_operations(ResourceType.CLUSTER) if may_know else 0


async def describe_log_dirs(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """DescribeLogDirs (key 35), versions 1–5: the size of each partition, and the free disk space.

    The size of a tiered partition includes its archived segments: clients estimate the size of records by it.
    """
    if not context.allows(ResourceType.CLUSTER):
        return {"error_code": ErrorCode.cluster_authorization_failed, "results": []}
    wanted = None
    if request.topics is not None:
        wanted = {topic.topic: set(topic.partitions) for topic in request.topics}
    topics = [topic for topic in broker.topics if wanted is None or topic.name in wanted]
    disk = shutil.disk_usage(broker.config.data)
    folder = {
        "error_code": 0,
        "log_dir": str(broker.config.data),
        "topics": [
            await _partition_sizes(topic, None if wanted is None else wanted[topic.name], context)
            for topic in topics
        ],
        "total_bytes": disk.total,
        "usable_bytes": disk.free,
    }
    return {"error_code": 0, "results": [folder]}


async def _partition_sizes(
    topic: Topic, wanted: set[int] | None, context: RequestContext
) -> Mapping[str, Any]:
    return {
        "name": topic.name,
        "partitions": [
            {
                "partition_index": partition.index,
                "partition_size": partition.log.size,
                "offset_lag": 0,
                "is_future_key": False,
            }
            async for partition in context.time_slice.over(topic.partitions)
            if not wanted or partition.index in wanted
        ],
    }


def find_coordinator(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """FindCoordinator (key 10), versions 0–6: the coordinator of groups, transactional ids and share groups.

    It is always this broker. Apache Kafka responds COORDINATOR_NOT_AVAILABLE while it creates its internal
    topics. From version 4 a request has several keys of one type. Share groups exist from version 6; other
    types get INVALID_REQUEST.
    """
    key_type = getattr(request, "key_type", GROUP_KEY)
    node = _coordinator(broker, key_type, context)
    if context.version < 4:
        return _coordinator_denial(key_type, request.key, context) or node
    return {
        "coordinators": [
            {"key": key, **(_coordinator_denial(key_type, key, context) or node)}
            for key in dict.fromkeys(request.coordinator_keys)
        ]
    }


def _coordinator_denial(key_type: int, key: str, context: RequestContext) -> dict[str, Any] | None:
    if key_type == SHARE_KEY:
        code = context.denial((ResourceType.CLUSTER, CLUSTER_NAME))
    elif key_type == TRANSACTION_KEY:
        code = context.denial((ResourceType.TRANSACTIONAL_ID, key))
    else:
        code = context.denial((ResourceType.GROUP, key))
    if code is None:
        return None
    return {"error_code": code, "error_message": NOT_AUTHORIZED, "node_id": -1, "host": "", "port": -1}


def _coordinator(broker: Broker, key_type: int, context: RequestContext) -> dict[str, Any]:
    if key_type in {GROUP_KEY, TRANSACTION_KEY} or (key_type == SHARE_KEY and context.version >= 6):
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "node_id": broker.node_id,
            **context.endpoint._asdict(),
        }
    return {
        "error_code": ErrorCode.invalid_request,
        "error_message": f"unknown key type {key_type}: use 0 for a group or 1 for a transactional id",
        "node_id": -1,
        "host": "",
        "port": -1,
    }
