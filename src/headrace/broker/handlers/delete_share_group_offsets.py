"""DeleteShareGroupOffsets (key 92), version 0: a share group without members forgets topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.handlers.alter_share_group_offsets import check_idle
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 0)


async def handle(broker: Broker, request: Any, _context: RequestContext) -> Mapping[str, Any]:
    """What became of each topic."""
    error, message = check_idle(broker, request.group_id)
    if error is not ErrorCode.none:
        return {"error_code": error, "error_message": message, "responses": []}
    responses = [_delete(broker, request.group_id, asked.topic_name) for asked in request.topics]
    await broker.shares.durable()
    return {"error_code": ErrorCode.none, "error_message": None, "responses": responses}


def _delete(broker: Broker, group_id: str, name: str) -> Mapping[str, Any]:
    topic = broker.topics.get(name)
    code, message = ErrorCode.none, None
    if topic is None:
        code, message = ErrorCode.unknown_topic_or_partition, "there is no such topic"
    else:
        try:
            broker.shares.forget(group_id, topic.id)
        except StorageError as fault:
            code, message = error_code(fault), str(fault)
    return {
        "topic_name": name,
        "topic_id": None if topic is None else topic.id,
        "error_code": code,
        "error_message": message,
    }
