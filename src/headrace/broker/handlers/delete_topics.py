"""DeleteTopics (key 20), versions 1–6: by name, and from version 6 by id. Internal topics stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from uuid import UUID

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.topics import Topic

VERSIONS: Final = (1, 6)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Remove each topic with its records and committed offsets; one that is named twice is removed once."""
    if context.version >= 6:
        asked = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        asked = [(name, None) for name in request.topic_names]
    once = dict.fromkeys(asked)
    responses = [
        await _delete(broker, name, topic_id, context)
        async for name, topic_id in context.time_slice.over(once)
    ]
    await broker.flusher.durable()
    return {"responses": responses}


async def _delete(
    broker: Broker, name: str | None, topic_id: UUID | None, context: RequestContext
) -> Mapping[str, Any]:
    topic = broker.topics.get(name) if name is not None else None
    if name is None and topic_id is not None:
        topic = broker.topics.by_id(topic_id)
    if topic is None:
        code = ErrorCode.unknown_topic_id if name is None else ErrorCode.unknown_topic_or_partition
        return _answer(name, topic_id, code, "there is no such topic")
    if topic.is_internal:
        return _answer(
            topic.name, topic.id, ErrorCode.invalid_request, "the broker needs its internal topics"
        )
    try:
        await context.time_slice.run(broker.topics.delete_steps(topic.name, _forget_steps(broker, topic)))
    except HeadraceError as fault:
        return _answer(topic.name, topic.id, error_code(fault), str(fault))
    return _answer(topic.name, topic.id, 0, None)


def _forget_steps(broker: Broker, topic: Topic) -> Generator[None, None, None]:
    """Forget what groups have done with a topic that is gone: its successor must not inherit it."""
    yield from broker.offsets.forget_topic_steps(topic.name)
    yield from broker.shares.remove_topic_steps(topic.id)


def _answer(name: str | None, topic_id: UUID | None, code: int, message: str | None) -> Mapping[str, Any]:
    return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": message}
