"""DeleteRecords (key 21), versions 0–2: advances the start offset of partitions.

The new start offset is durable before the response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.security.acls import ResourceType
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 2)
TO_THE_END: Final = -1


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Advance the start offset of each partition."""
    topics = []
    for topic in request.topics:
        partitions = [
            _delete(broker, topic.name, item, context)
            async for item in context.time_slice.over(topic.partitions)
        ]
        topics.append({"name": topic.name, "partitions": partitions})
    try:
        await broker.save_checkpoint()
    except StorageError as fault:
        # The start offset has moved, but a crash would undo that: the client should retry.
        return {"topics": [_unsaved(topic, error_code(fault)) for topic in request.topics]}
    return {"topics": topics}


def _unsaved(topic: Any, code: int) -> Mapping[str, Any]:
    return {"name": topic.name, "partitions": [_result(item, code) for item in topic.partitions]}


def _delete(broker: Broker, name: str, item: Any, context: RequestContext) -> Mapping[str, Any]:
    if not context.allows(ResourceType.TOPIC, name):
        return _result(item, ErrorCode.topic_authorization_failed)
    topic = broker.topics.get(name)
    partition = topic.partition(item.partition_index) if topic is not None else None
    if topic is None or partition is None:
        return _result(item, ErrorCode.unknown_topic_or_partition)
    if topic.is_internal:
        return _result(item, ErrorCode.invalid_topic_exception)
    if topic.config.is_compacted and not topic.config.is_deleted:
        return _result(item, ErrorCode.policy_violation)
    log = partition.log
    try:
        log.move_start(log.high_watermark if item.offset == TO_THE_END else item.offset)
    except StorageError as fault:
        return _result(item, error_code(fault))
    partition.notify()
    broker.overflow.start_moved(partition)
    return _result(item, 0, log.start_offset)


def _result(item: Any, code: int, low_watermark: int = -1) -> Mapping[str, Any]:
    return {"partition_index": item.partition_index, "error_code": code, "low_watermark": low_watermark}
