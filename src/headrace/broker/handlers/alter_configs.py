"""AlterConfigs (key 33), versions 0–2: replaces all settings of topics and groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.handlers.describe_configs import GROUP, NOT_AUTHORIZED, TOPIC, check_access
from headrace.broker.record_fields import fits_string
from headrace.broker.shares.settings import GROUP_OPTIONS, ShareGroupConfig
from headrace.errors import HeadraceError
from headrace.storage.config import OPTIONS

if TYPE_CHECKING:
    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.storage.config import Option

VERSIONS: Final = (0, 2)

Options = Mapping[str, "Option"]
Changed = Callable[[Options, Mapping[str, str], Any], Mapping[str, str]]
"""Computes the new settings of a resource from its options, its current overrides and the request."""


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Replace the settings of each resource."""

    def replaced(_options: Options, _configs: Mapping[str, str], resource: Any) -> Mapping[str, str]:
        return {config.name: config.value for config in resource.configs if config.value is not None}

    return await alter_resources(broker, request, context, replaced)


async def alter_resources(
    broker: Broker, request: Any, context: RequestContext, changed: Changed
) -> Mapping[str, Any]:
    """Set the settings of each topic and group to the result of `changed`.

    A request may contain each resource, and each setting of a resource, only once.
    """
    responses = []
    code: int
    message: str | None
    counts = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    unique = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    async for resource in context.time_slice.over(unique.values()):
        if counts[resource.resource_type, resource.resource_name] > 1:
            code, message = ErrorCode.invalid_request, "the request contains the resource twice"
        elif len({config.name for config in resource.configs}) < len(resource.configs):
            code, message = ErrorCode.invalid_request, "the request contains a setting twice"
        elif (denial := check_access(context, resource)) is not None:
            code, message = denial, NOT_AUTHORIZED
        else:
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


def _alter(broker: Broker, resource: Any, changed: Changed, *, validate_only: bool) -> tuple[int, str | None]:
    try:
        if resource.resource_type == GROUP:
            return _alter_group(broker, resource, changed, validate_only=validate_only)
        if resource.resource_type == TOPIC:
            return _alter_topic(broker, resource, changed, validate_only=validate_only)
    except HeadraceError as fault:
        return error_code(fault), str(fault)
    return (
        ErrorCode.invalid_request,
        "only topics and groups can be altered; the broker's settings are command line options",
    )


def _alter_topic(
    broker: Broker, resource: Any, changed: Changed, *, validate_only: bool
) -> tuple[int, str | None]:
    topic = broker.topics.get(resource.resource_name)
    if topic is None:
        return ErrorCode.unknown_topic_or_partition, "the topic does not exist"
    if topic.is_internal:
        return ErrorCode.invalid_request, "the settings of internal topics cannot be altered"
    configs = changed(OPTIONS, topic.config.overrides, resource)
    broker.topics.check_configs(topic.name, configs)
    if not validate_only:
        broker.topics.configure(topic.name, configs)
    return 0, None


def _alter_group(
    broker: Broker, resource: Any, changed: Changed, *, validate_only: bool
) -> tuple[int, str | None]:
    name = resource.resource_name
    if not name or not fits_string(name):
        return ErrorCode.invalid_request, "a group id must have 1 to 32767 bytes"
    configs = changed(GROUP_OPTIONS, broker.shares.config(name).overrides, resource)
    ShareGroupConfig.parse(configs)
    if not validate_only:
        broker.shares.configure(name, configs)
    return 0, None
