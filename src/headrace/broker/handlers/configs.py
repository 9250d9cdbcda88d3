"""Settings of topics, groups and this broker: requests that describe, alter and list them.

DescribeConfigs (key 32), versions 1–4. Not in Kafka: a topic with `headrace.overflow` has a read-only setting
with its current backlog.

AlterConfigs (key 33), versions 0–2: replaces all settings of topics and groups.

IncrementalAlterConfigs (key 44), versions 0–1: sets and deletes settings, and edits lists.

ListConfigResources (key 74), versions 0–1: the resources that have settings (KIP-1142). As in Apache Kafka
these are all topics, this broker, and groups with settings that are not defaults. Version 0 lists only client
metrics, of which there are none. Broker loggers are a valid type but not listed, because DescribeConfigs does
not support them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.record_fields import fits_string
from headrace.broker.request import NOT_AUTHORIZED
from headrace.broker.security.acls import CLUSTER_NAME, ResourceType
from headrace.broker.shares.settings import GROUP_OPTIONS, ShareGroupConfig
from headrace.errors import HeadraceError
from headrace.protocol.responses import LazyArray
from headrace.storage.config import OPTIONS, TopicConfig, default_texts
from headrace.storage.errors import InvalidConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.topics import Topic
    from headrace.storage.config import Option


OVERFLOW_STATUS: Final = "headrace.overflow.status"

TOPIC: Final = 2
BROKER: Final = 4
GROUP: Final = 32
TOPIC_SOURCE: Final = 1
STATIC_SOURCE: Final = 4
GROUP_SOURCE: Final = 8
DEFAULT_SOURCE: Final = 5
TYPES: Final = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}


async def describe(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns the settings of each resource; duplicates in the request are ignored."""
    synonyms = request.include_synonyms
    documented = getattr(request, "include_documentation", False)

    unique = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    denials = {key: check_access(context, resource) for key, resource in unique.items()}
    statuses = {
        name: await _overflow_status(topic, context)
        for kind, name in unique
        if kind == TOPIC and not denials[kind, name] and (topic := broker.topics.get(name)) is not None
    }

    def result(resource: Any) -> Mapping[str, Any]:
        denial = denials[resource.resource_type, resource.resource_name]
        code, message, configs = (
            _describe(broker, resource, statuses) if denial is None else (denial, NOT_AUTHORIZED, ())
        )
        return {
            "error_code": code,
            "error_message": message,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            "configs": [
                _with_optional_fields(config, synonyms=synonyms, documented=documented) for config in configs
            ],
        }

    return {"results": LazyArray(unique.values(), result)}


def check_access(context: RequestContext, resource: Any) -> ErrorCode | None:
    """The error for a resource whose settings the client may not describe or alter."""
    if resource.resource_type == TOPIC:
        return context.denial((ResourceType.TOPIC, resource.resource_name))
    if resource.resource_type == GROUP:
        return context.denial((ResourceType.GROUP, resource.resource_name))
    return context.denial((ResourceType.CLUSTER, CLUSTER_NAME))


async def _overflow_status(topic: Topic, context: RequestContext) -> str | None:
    """The backlog of each partition as JSON; None for a topic without a backlog limit."""
    limiters = [partition.limiter for partition in topic.partitions if partition.limiter is not None]
    if not limiters:
        return None
    statuses = [json.dumps(limiter.status()) async for limiter in context.time_slice.over(limiters)]
    return f"[{', '.join(statuses)}]"


def _describe(
    broker: Broker, resource: Any, statuses: Mapping[str, str | None]
) -> tuple[int, str | None, Iterable[Mapping[str, Any]]]:
    wanted = set(resource.configuration_keys or ())
    if resource.resource_type == TOPIC:
        topic = broker.topics.get(resource.resource_name)
        if topic is None:
            return ErrorCode.unknown_topic_or_partition, "the topic does not exist", ()
        status = statuses.get(topic.name)
        configs = [*describe_topic_configs(topic.config), *([] if status is None else _status_config(status))]
    elif resource.resource_type == GROUP:
        if not resource.resource_name:
            return ErrorCode.invalid_request, "the group id is empty", ()
        config = broker.shares.config(resource.resource_name)
        configs = _describe_options(GROUP_OPTIONS, config.overrides, {}, GROUP_SOURCE)
    elif resource.resource_type == BROKER and resource.resource_name in (str(broker.node_id), ""):
        configs = describe_broker_configs(broker)
    else:
        return ErrorCode.invalid_request, "only topics, groups and this broker can be described", ()
    return 0, None, [config for config in configs if not wanted or config["name"] in wanted]


def describe_topic_configs(config: TopicConfig) -> list[Mapping[str, Any]]:
    """All settings of a topic with their values and sources."""
    return _describe_options(OPTIONS, config.overrides, default_texts(config.overrides), TOPIC_SOURCE)


def _describe_options(
    options: Mapping[str, Option], overrides: Mapping[str, str], defaults: Mapping[str, str], source: int
) -> list[Mapping[str, Any]]:
    return [
        {
            "name": option.name,
            "value": overrides.get(option.name, defaults.get(option.name, option.default)),
            "read_only": False,
            "config_source": source if option.name in overrides else DEFAULT_SOURCE,
            "is_sensitive": False,
            "config_type": TYPES[option.kind],
            "documentation": option.doc,
        }
        for option in options.values()
    ]


def _status_config(status: str) -> list[Mapping[str, Any]]:
    """The backlog as a read-only setting, because every Kafka tool can read settings."""
    return [
        {
            "name": OVERFLOW_STATUS,
            "value": status,
            "read_only": True,
            "config_source": DEFAULT_SOURCE,
            "is_sensitive": False,
            "config_type": TYPES["string"],
            "documentation": "The current backlog of each partition, and counts since the broker started.",
        }
    ]


def describe_broker_configs(broker: Broker) -> list[Mapping[str, Any]]:
    """The broker settings that Kafka tools read, by Kafka's names; all read-only."""
    config = broker.config
    known = {
        "advertised.listeners": (
            ",".join(f"{listener.protocol.value}://{endpoint}" for listener, endpoint in broker.endpoints),
            "string",
        ),
        "auto.create.topics.enable": (str(config.auto_create_topics).lower(), "boolean"),
        "broker.id": (str(broker.node_id), "int"),
        "connections.max.idle.ms": (str(config.idle_connection_ms), "long"),
        "default.replication.factor": ("1", "int"),
        "log.dirs": (str(config.data), "list"),
        "num.partitions": (str(config.default_partitions), "int"),
        "socket.request.max.bytes": (str(config.request_limit_bytes), "int"),
        "headrace.flush": (config.flush.value, "string"),
    }
    return [
        {
            "name": name,
            "value": value,
            "read_only": True,
            "config_source": STATIC_SOURCE,
            "is_sensitive": False,
            "config_type": TYPES[kind],
            "documentation": None,
        }
        for name, (value, kind) in known.items()
    ]


def _with_optional_fields(
    config: Mapping[str, Any], *, synonyms: bool, documented: bool
) -> Mapping[str, Any]:
    synonym = {"name": config["name"], "value": config["value"], "source": config["config_source"]}
    return {
        **config,
        "synonyms": [synonym] if synonyms else (),
        "documentation": config["documentation"] if documented else None,
    }


Options = Mapping[str, "Option"]
Changed = Callable[[Options, Mapping[str, str], Any], Mapping[str, str]]
"""Computes the new settings of a resource from its options, its current overrides and the request."""


async def alter(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
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


SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


async def alter_incrementally(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Change the given settings of each topic and group."""
    return await alter_resources(broker, request, context, _changed)


def _changed(options: Mapping[str, Option], given: Mapping[str, str], resource: Any) -> Mapping[str, str]:
    configs = dict(given)
    for change in resource.configs:
        option = options.get(change.name)
        if option is None:
            raise InvalidConfig(f"unknown setting {change.name!r}; the settings are {', '.join(options)}")
        if change.config_operation == DELETE:
            configs.pop(change.name, None)
        elif change.value is None:
            raise InvalidConfig(f"{change.name} has no value: set one, or delete the setting")
        elif change.config_operation == SET:
            configs[change.name] = change.value
        elif option.kind == "list" and change.config_operation in (APPEND, SUBTRACT):
            current = configs.get(change.name, option.default)
            configs[change.name] = _edit_list(current, change.value, adds=change.config_operation == APPEND)
        else:
            raise InvalidConfig(f"{change.name} is not a list: set its value instead")
    return configs


def _edit_list(current: str, value: str, *, adds: bool) -> str:
    values = value.split(",")
    changed = set(values)
    items = [item for item in current.split(",") if item and item not in changed]
    return ",".join(items + values if adds else items)


BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
KNOWN: Final = frozenset({TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP})


def list_resources(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns the resources of the requested types, or all."""
    if not context.allows(ResourceType.CLUSTER):
        return {"error_code": ErrorCode.cluster_authorization_failed, "config_resources": ()}
    requested = set(request.resource_types) if context.version > 0 else {CLIENT_METRICS}
    if not requested <= KNOWN:
        return {"error_code": ErrorCode.unsupported_version, "config_resources": ()}
    listed = [
        {"resource_name": name, "resource_type": kind}
        for kind, name in _resources(broker)
        if not requested or kind in requested
    ]
    return {"error_code": ErrorCode.none, "config_resources": listed}


def _resources(broker: Broker) -> Iterator[tuple[int, str]]:
    yield BROKER, str(broker.node_id)
    yield from ((TOPIC, topic.name) for topic in broker.topics)
    yield from ((GROUP, group_id) for group_id in broker.shares.configured())
