"""DescribeConfigs (key 32), versions 1–4: settings of topics, groups and this broker.

Not in Kafka: a topic with `headrace.overflow` has a read-only setting with its current backlog.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.security.acls import CLUSTER_NAME, ResourceType
from headrace.broker.shares.settings import GROUP_OPTIONS
from headrace.protocol.responses import LazyArray
from headrace.storage.config import OPTIONS, TopicConfig, default_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.topics import Topic
    from headrace.storage.config import Option

VERSIONS: Final = (1, 4)
OVERFLOW_STATUS: Final = "headrace.overflow.status"

TOPIC: Final = 2
BROKER: Final = 4
GROUP: Final = 32
TOPIC_SOURCE: Final = 1
STATIC_SOURCE: Final = 4
GROUP_SOURCE: Final = 8
DEFAULT_SOURCE: Final = 5
NOT_AUTHORIZED: Final = "the user has no right to this"
TYPES: Final = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
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
