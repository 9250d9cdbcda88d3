"""DeleteShareGroupOffsets (key 92), version 0: a share group without members forgets topics."""

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

VERSIONS: Final = (0, 0)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """What became of each topic."""
    return await change_offsets(broker, request, context, _delete)


def _delete(broker: Broker, group_id: str, asked: Any) -> Generator[None, None, Mapping[str, Any]]:
    topic = broker.topics.get(asked.topic_name)
    code, message = ErrorCode.none, None
    if topic is None:
        code, message = ErrorCode.unknown_topic_or_partition, "there is no such topic"
    elif (code := broker.shares.check_empty(group_id)) is ErrorCode.none:
        try:
            yield from broker.shares.delete_offsets_steps(group_id, topic.id)
        except StorageError as fault:
            code, message = error_code(fault), str(fault)
    yield
    return {
        "topic_name": asked.topic_name,
        "topic_id": None if topic is None else topic.id,
        "error_code": code,
        "error_message": message,
    }
