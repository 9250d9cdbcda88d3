"""DeleteRecords (key 21), versions 0–2: the start of a partition moves up, for good before the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 2)
TO_THE_END: Final = -1


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Move the start of each partition to the offset given."""
    topics = []
    for topic in request.topics:
        partitions = [
            _delete(broker, topic.name, item) async for item in context.time_slice.over(topic.partitions)
        ]
        topics.append({"name": topic.name, "partitions": partitions})
    try:
        await broker.save_checkpoint()
    except StorageError as fault:
        # The start has moved, and might be back after a crash: the client is to try again.
        return {"topics": [_unsaved(topic, error_code(fault)) for topic in request.topics]}
    return {"topics": topics}


def _unsaved(topic: Any, code: int) -> Mapping[str, Any]:
    return {"name": topic.name, "partitions": [_answer(item, code) for item in topic.partitions]}


def _delete(broker: Broker, name: str, item: Any) -> Mapping[str, Any]:
    topic = broker.topics.get(name)
    partition = topic.partition(item.partition_index) if topic is not None else None
    if topic is None or partition is None:
        return _answer(item, ErrorCode.unknown_topic_or_partition)
    if topic.is_internal:
        return _answer(item, ErrorCode.invalid_topic_exception)
    if topic.config.is_compacted and not topic.config.is_deleted:
        return _answer(item, ErrorCode.policy_violation)
    log = partition.log
    try:
        log.move_start(log.high_watermark if item.offset == TO_THE_END else item.offset)
    except StorageError as fault:
        return _answer(item, error_code(fault))
    partition.notify()
    broker.overflow.start_moved(partition)
    return _answer(item, 0, log.start_offset)


def _answer(item: Any, code: int, low_watermark: int = -1) -> Mapping[str, Any]:
    return {"partition_index": item.partition_index, "error_code": code, "low_watermark": low_watermark}
