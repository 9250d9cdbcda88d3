"""DeleteShareGroupOffsets (key 92), version 0: deletes the offsets of topics in a group without members."""

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

VERSIONS: Final = (0, 0)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Delete the offsets of each topic."""
    return await change_offsets(broker, request, context, _delete)


def _delete(
    broker: Broker, context: RequestContext, group_id: str, requested: Any
) -> Generator[None, None, Mapping[str, Any]]:
    denial = context.denial((ResourceType.TOPIC, requested.topic_name))
    topic = None if denial else broker.topics.get(requested.topic_name)
    code, message = ErrorCode.none, None
    if denial is not None:
        code, message = denial, NOT_AUTHORIZED
    elif topic is None:
        code, message = ErrorCode.unknown_topic_or_partition, "the topic does not exist"
    elif (code := broker.shares.check_empty(group_id)) is ErrorCode.none:
        try:
            yield from broker.shares.delete_offsets_steps(group_id, topic.id)
        except StorageError as fault:
            code, message = error_code(fault), str(fault)
    yield
    return {
        "topic_name": requested.topic_name,
        "topic_id": None if topic is None else topic.id,
        "error_code": code,
        "error_message": message,
    }
