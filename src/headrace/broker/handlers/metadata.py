"""Metadata (key 3), versions 0–13: the broker, and the topics with their partitions.

A topic that does not exist is made when both the client and the broker's settings allow it; unlike Apache
Kafka, it is there in the same answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.topics import check_name
from headrace.errors import HeadraceError
from headrace.protocol.responses import LazyArray

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.topics import Topic

VERSIONS: Final = (0, 13)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """The topics that were asked for; one that the request names twice is answered once."""
    wanted = request.topics
    if wanted is None or (context.version == 0 and not wanted):
        topics = [describe(broker, topic) async for topic in context.time_slice.over(broker.topics)]
    else:
        may_create = getattr(request, "allow_auto_topic_creation", True) and broker.config.auto_create_topics
        once = {(item.name, getattr(item, "topic_id", None)): item for item in wanted}
        topics = [
            _find(broker, item, may_create=may_create)
            async for item in context.time_slice.over(once.values())
        ]
        await broker.flusher.durable()
    return {
        "brokers": [{"node_id": broker.node_id, "host": broker.host, "port": broker.port, "rack": None}],
        "cluster_id": broker.cluster_id,
        "controller_id": broker.node_id,
        "topics": topics,
        "cluster_authorized_operations": -(2**31),
        "error_code": 0,
    }


def _find(broker: Broker, item: Any, *, may_create: bool) -> Mapping[str, Any]:
    topic_id = getattr(item, "topic_id", None)
    if item.name is None:
        topic = broker.topics.by_id(topic_id) if topic_id is not None else None
        return (
            _missing(None, topic_id, ErrorCode.unknown_topic_id) if topic is None else describe(broker, topic)
        )
    topic = broker.topics.get(item.name)
    if topic is not None:
        return describe(broker, topic)
    try:
        check_name(item.name)
        if may_create:
            return describe(broker, broker.topics.create(item.name, broker.config.default_partitions, {}))
    except HeadraceError as fault:
        return _missing(item.name, None, error_code(fault))
    return _missing(item.name, None, ErrorCode.unknown_topic_or_partition)


def _missing(name: str | None, topic_id: Any, code: ErrorCode) -> Mapping[str, Any]:
    return {
        "error_code": code,
        # Versions that cannot leave the name out get an empty one.
        "name": name or "",
        "topic_id": topic_id,
        "is_internal": False,
        "partitions": (),
        "topic_authorized_operations": -(2**31),
    }


def describe(broker: Broker, topic: Topic) -> Mapping[str, Any]:
    """A topic as this answer and DescribeTopicPartitions show it."""
    return {
        "error_code": 0,
        "name": topic.name,
        "topic_id": topic.id,
        "is_internal": topic.is_internal,
        "partitions": describe_partitions(broker, range(len(topic.partitions))),
        "topic_authorized_operations": -(2**31),
    }


def describe_partitions(broker: Broker, indexes: range) -> LazyArray:
    """Some partitions of a topic."""
    return LazyArray(indexes, lambda index: describe_partition(broker, index))


def describe_partition(broker: Broker, index: int) -> Mapping[str, Any]:
    """A partition, led and replicated by the one node there is."""
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
