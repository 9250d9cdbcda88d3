"""AlterConfigs (key 33), versions 0–2: replaces all settings of a topic at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.handlers.describe_configs import TOPIC
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.topics import Topic

VERSIONS: Final = (0, 2)


async def handle(broker: Broker, request: Any, _context: RequestContext) -> Mapping[str, Any]:
    """Replace the settings of each topic."""

    def replaced(_topic: Topic, resource: Any) -> Mapping[str, str]:
        return {config.name: config.value for config in resource.configs if config.value is not None}

    return await alter_topics(broker, request, replaced)


async def alter_topics(
    broker: Broker, request: Any, changed: Callable[[Topic, Any], Mapping[str, str]]
) -> Mapping[str, Any]:
    """Give each topic of the request the settings that `changed` makes for it, or say why not."""
    responses = []
    for resource in request.resources:
        code, message = _alter(broker, resource, changed, validate_only=request.validate_only)
        responses.append(
            {
                "error_code": code,
                "error_message": message,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
            }
        )
    await broker.flusher.durable()
    return {"responses": responses}


def _alter(
    broker: Broker, resource: Any, changed: Callable[[Topic, Any], Mapping[str, str]], *, validate_only: bool
) -> tuple[int, str | None]:
    if resource.resource_type != TOPIC:
        return (
            ErrorCode.invalid_request,
            "only topics can be changed; the broker's settings are its arguments",
        )
    topic = broker.topics.get(resource.resource_name)
    if topic is None:
        return ErrorCode.unknown_topic_or_partition, "there is no such topic"
    if topic.is_internal:
        return ErrorCode.invalid_request, "the settings of internal topics are the broker's own"
    try:
        configs = changed(topic, resource)
        broker.topics.check_configs(topic.name, configs)
        if not validate_only:
            broker.topics.configure(topic.name, configs)
    except HeadraceError as fault:
        return error_code(fault), str(fault)
    return 0, None
