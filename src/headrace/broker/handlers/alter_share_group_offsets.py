"""AlterShareGroupOffsets (key 91), version 0: a share group without members begins anew at other offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.shares.share import Share
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.topics import Topic

VERSIONS: Final = (0, 0)


async def handle(broker: Broker, request: Any, _context: RequestContext) -> Mapping[str, Any]:
    """What became of each partition."""
    error, message = check_idle(broker, request.group_id)
    if error is not ErrorCode.none:
        return {"error_code": error, "error_message": message, "responses": []}
    responses = []
    for asked in request.topics:
        topic = broker.topics.get(asked.topic_name)
        responses.append(
            {
                "topic_name": asked.topic_name,
                "topic_id": None if topic is None else topic.id,
                "partitions": [_alter(broker, request.group_id, topic, item) for item in asked.partitions],
            }
        )
    await broker.shares.durable()
    return {"error_code": ErrorCode.none, "error_message": None, "responses": responses}


def check_idle(broker: Broker, group_id: str) -> tuple[ErrorCode, str | None]:
    """Whether the offsets of a group may be changed: it must be there, and have no members."""
    group = broker.shares.group(group_id)
    if group is None:
        return ErrorCode.group_id_not_found, f"Group {group_id} not found."
    if group.members:
        return ErrorCode.non_empty_group, "the group has members: stop them first"
    return ErrorCode.none, None


def _alter(broker: Broker, group_id: str, topic: Topic | None, item: Any) -> Mapping[str, Any]:
    if topic is None or topic.partition(item.partition_index) is None:
        return _answer(item, ErrorCode.unknown_topic_or_partition, "there is no such partition")
    share = broker.shares.open(group_id, topic.id, item.partition_index)
    if not isinstance(share, Share):
        return _answer(item, share, "the partition is not for share groups")
    log = share.partition.log
    start = min(max(item.start_offset, log.start_offset), log.high_watermark)
    try:
        broker.shares.move(share, start)
    except StorageError as fault:
        return _answer(item, error_code(fault), str(fault))
    return _answer(item, ErrorCode.none, None)


def _answer(item: Any, code: int, message: str | None) -> Mapping[str, Any]:
    return {"partition_index": item.partition_index, "error_code": code, "error_message": message}
