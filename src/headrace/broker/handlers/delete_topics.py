"""DeleteTopics (key 20), versions 1–6: deletes topics by name, or by id from version 6.

Internal topics cannot be deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.request import NOT_AUTHORIZED
from headrace.broker.security.acls import Operation, ResourceType
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from uuid import UUID

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.topics import Topic

VERSIONS: Final = (1, 6)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Delete each topic with its records and offsets; duplicates in the request are ignored."""
    if context.version >= 6:
        requested = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        requested = [(name, None) for name in request.topic_names]
    unique = dict.fromkeys(requested)
    responses = [
        await _delete(broker, name, topic_id, context)
        async for name, topic_id in context.time_slice.over(unique)
    ]
    await broker.flusher.durable()
    return {"responses": responses}


async def _delete(
    broker: Broker, name: str | None, topic_id: UUID | None, context: RequestContext
) -> Mapping[str, Any]:
    topic = broker.topics.get(name) if name is not None else None
    if name is None and topic_id is not None:
        topic = broker.topics.by_id(topic_id)
    denial = _check_access(name, topic_id, topic, context)
    if denial is not None:
        return denial
    if topic is None:
        code = ErrorCode.unknown_topic_id if name is None else ErrorCode.unknown_topic_or_partition
        return _result(name, topic_id, code, "the topic does not exist")
    if topic.is_internal:
        return _result(topic.name, topic.id, ErrorCode.invalid_request, "internal topics cannot be deleted")
    try:
        await context.time_slice.run(
            broker.topics.delete_steps(topic.name, _delete_offsets_steps(broker, topic))
        )
    except HeadraceError as fault:
        return _result(topic.name, topic.id, error_code(fault), str(fault))
    return _result(topic.name, topic.id, 0, None)


def _check_access(
    name: str | None, topic_id: UUID | None, topic: Topic | None, context: RequestContext
) -> Mapping[str, Any] | None:
    known = name if topic is None else topic.name
    if known is None or context.allows(ResourceType.TOPIC, known):
        return None
    if name is None and not context.allows_operation(Operation.DESCRIBE, ResourceType.TOPIC, known):
        known = None
    return _result(known, topic_id, ErrorCode.topic_authorization_failed, NOT_AUTHORIZED)


def _delete_offsets_steps(broker: Broker, topic: Topic) -> Generator[None, None, None]:
    """Delete the topic's offsets, so that a new topic with the same name starts without any."""
    yield from broker.offsets.delete_topic_steps(topic.name)
    yield from broker.shares.remove_topic_steps(topic.id)


def _result(name: str | None, topic_id: UUID | None, code: int, message: str | None) -> Mapping[str, Any]:
    return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}
