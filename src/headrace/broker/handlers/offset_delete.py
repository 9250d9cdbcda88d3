"""OffsetDelete (key 47), version 0: deletes committed offsets of a group.

As in Apache Kafka, topics that a member subscribes to get GROUP_SUBSCRIBED_TO_TOPIC, and a group gets
NON_EMPTY_GROUP if its members are not consumers, because the broker cannot read their subscriptions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.security.acls import ResourceType
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 0)
DELETES_AT_ONCE: Final = 200


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Delete the offset of each partition; returns an error code for each."""
    denial = context.denial((ResourceType.GROUP, request.group_id))
    if denial is not None:
        return _error(denial)
    if not request.group_id:
        return _error(ErrorCode.invalid_group_id)
    error = broker.groups.check_offset_delete(request.group_id)
    if error is not ErrorCode.none:
        return _error(error)
    results = {
        (topic.name, index): context.denial((ResourceType.TOPIC, topic.name))
        or _check(broker, request.group_id, topic.name, index)
        for topic in request.topics
        async for index in context.time_slice.over(_indexes(topic))
    }
    try:
        accepted = [where for where, result in results.items() if result is ErrorCode.none]
        for first in range(0, len(accepted), DELETES_AT_ONCE):
            broker.offsets.delete(request.group_id, accepted[first : first + DELETES_AT_ONCE])
            await context.time_slice.pause()
        await broker.offsets.durable()
    except StorageError:
        return _error(ErrorCode.coordinator_not_available)
    return {"error_code": ErrorCode.none, "topics": [_topic_body(topic, results) for topic in request.topics]}


def _indexes(topic: Any) -> list[int]:
    return [partition.partition_index for partition in topic.partitions]


def _check(broker: Broker, group_id: str, name: str, index: int) -> ErrorCode:
    topic = broker.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition
    is_read = broker.groups.is_subscribed(group_id, name)
    return ErrorCode.group_subscribed_to_topic if is_read else ErrorCode.none


def _topic_body(topic: Any, results: Mapping[tuple[str, int], ErrorCode]) -> dict[str, Any]:
    partitions = [
        {"partition_index": index, "error_code": results[topic.name, index]} for index in _indexes(topic)
    ]
    return {"name": topic.name, "partitions": partitions}


def _error(error: ErrorCode) -> dict[str, Any]:
    return {"error_code": error, "topics": []}
