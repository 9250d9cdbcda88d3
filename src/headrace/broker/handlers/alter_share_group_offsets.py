"""AlterShareGroupOffsets (key 91), version 0: sets the start offsets of a share group without members.

As in Apache Kafka, a missing group is created, so that its start offsets can be set before the first member
joins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.handlers.describe_configs import NOT_AUTHORIZED
from headrace.broker.handlers.share_group_offsets import change_offsets
from headrace.broker.security.acls import ResourceType
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.topics import Topic

VERSIONS: Final = (0, 0)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Set the start offset of each partition."""
    return await change_offsets(broker, request, context, _alter_topic, creates=True)


def _alter_topic(
    broker: Broker, context: RequestContext, group_id: str, requested: Any
) -> Generator[None, None, Mapping[str, Any]]:
    denial = context.denial((ResourceType.TOPIC, requested.topic_name))
    topic = broker.topics.get(requested.topic_name)
    partitions = []
    for item in requested.partitions:
        partitions.append(
            _alter(broker, group_id, topic, item) if denial is None else _result(item, denial, NOT_AUTHORIZED)
        )
        yield
    return {
        "topic_name": requested.topic_name,
        "topic_id": None if topic is None or denial else topic.id,
        "partitions": partitions,
    }


def _alter(broker: Broker, group_id: str, topic: Topic | None, item: Any) -> Mapping[str, Any]:
    if topic is None:
        return _result(item, ErrorCode.unknown_topic_or_partition, "the topic does not exist")
    if (error := broker.shares.check_empty(group_id)) is not ErrorCode.none:
        return _result(item, error, "the group has members: stop them first")
    try:
        error = broker.shares.alter_start_offset(group_id, topic.id, item.partition_index, item.start_offset)
    except StorageError as fault:
        return _result(item, error_code(fault), str(fault))
    return _result(item, error, "the partition does not exist" if error else None)


def _result(item: Any, code: int, message: str | None) -> Mapping[str, Any]:
    return {"partition_index": item.partition_index, "error_code": code, "error_message": message}
