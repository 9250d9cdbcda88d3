"""DescribeTopicPartitions (key 75), version 0: topics and partitions in pages, with a cursor.

A page has at most 2,000 partitions, the default of `max.request.partition.size.limit` in Apache Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.handlers.metadata import describe, describe_partitions
from headrace.broker.security.acls import ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 0)
MAX_PARTITIONS: Final = 2_000


def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns up to `response_partition_limit` partitions, starting at the cursor."""
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
        shown = _describe(broker, name, skip, room, context)
        topics.append(shown)
        room -= len(shown["partitions"])
        end = skip + len(shown["partitions"])
        topic = broker.topics.get(name)
        if not shown["error_code"] and topic is not None and end < len(topic.partitions):
            return {"topics": topics, "next_cursor": {"topic_name": name, "partition_index": end}}
    return {"topics": topics, "next_cursor": None}


def _describe(broker: Broker, name: str, skip: int, room: int, context: RequestContext) -> Mapping[str, Any]:
    if not context.allows(ResourceType.TOPIC, name):
        denied = ErrorCode.topic_authorization_failed
        return {"error_code": denied, "name": name, "topic_id": None, "partitions": ()}
    topic = broker.topics.get(name)
    if topic is None:
        unknown = ErrorCode.unknown_topic_or_partition
        return {"error_code": unknown, "name": name, "topic_id": None, "partitions": ()}
    end = min(len(topic.partitions), skip + room)
    return {
        **describe(broker, topic),
        "partitions": describe_partitions(broker, range(max(skip, 0), end)),
        "topic_authorized_operations": context.authorized_operations(ResourceType.TOPIC, name),
    }
