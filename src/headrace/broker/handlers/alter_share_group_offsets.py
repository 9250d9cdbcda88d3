"""AlterShareGroupOffsets (key 91), version 0: sets the start offsets of a share group without members.

A group that does not exist is created, as Apache Kafka does: so a queue is placed before its first consumer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.handlers.share_group_offsets import change_offsets
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.topics import Topic

VERSIONS: Final = (0, 0)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """What became of each partition."""
    return await change_offsets(broker, request, context, _alter_topic, creates=True)


def _alter_topic(broker: Broker, group_id: str, asked: Any) -> Generator[None, None, Mapping[str, Any]]:
    topic = broker.topics.get(asked.topic_name)
    partitions = []
    for item in asked.partitions:
        partitions.append(_alter(broker, group_id, topic, item))
        yield
    return {
        "topic_name": asked.topic_name,
        "topic_id": None if topic is None else topic.id,
        "partitions": partitions,
    }


def _alter(broker: Broker, group_id: str, topic: Topic | None, item: Any) -> Mapping[str, Any]:
    if topic is None:
        return _answer(item, ErrorCode.unknown_topic_or_partition, "there is no such topic")
    if (error := broker.shares.check_empty(group_id)) is not ErrorCode.none:
        return _answer(item, error, "the group has members: stop them first")
    try:
        error = broker.shares.alter_start_offset(group_id, topic.id, item.partition_index, item.start_offset)
    except StorageError as fault:
        return _answer(item, error_code(fault), str(fault))
    return _answer(item, error, "there is no such partition" if error else None)


def _answer(item: Any, code: int, message: str | None) -> Mapping[str, Any]:
    return {"partition_index": item.partition_index, "error_code": code, "error_message": message}
