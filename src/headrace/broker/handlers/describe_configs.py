"""DescribeConfigs (key 32), versions 1–4: settings of topics and groups, and some of the broker's.

Beyond Kafka: a topic with `headrace.overflow` also shows how full it is, as a read-only setting.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.shares.settings import GROUP_OPTIONS
from headrace.protocol.responses import LazyArray
from headrace.storage.config import OPTIONS, TopicConfig, default_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.topics import Topic
    from headrace.storage.options import Option

VERSIONS: Final = (1, 4)
OVERFLOW_STATUS: Final = "headrace.overflow.status"

TOPIC: Final = 2
BROKER: Final = 4
GROUP: Final = 32
TOPIC_SOURCE: Final = 1
STATIC_SOURCE: Final = 4
GROUP_SOURCE: Final = 8
DEFAULT_SOURCE: Final = 5
TYPES: Final = {"boolean": 1, "string": 2, "int": 3, "long": 5, "double": 6, "list": 7}


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """The settings of each resource; one that the request names twice is described once."""
    synonyms = request.include_synonyms
    documented = getattr(request, "include_documentation", False)

    once = {(resource.resource_type, resource.resource_name): resource for resource in request.resources}
    statuses = {
        name: await _overflow_status(topic, context)
        for kind, name in once
        if kind == TOPIC and (topic := broker.topics.get(name)) is not None
    }

    def result(resource: Any) -> Mapping[str, Any]:
        code, message, configs = _describe(broker, resource, statuses)
        return {
            "error_code": code,
            "error_message": message,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
            "configs": [_shown(config, synonyms=synonyms, documented=documented) for config in configs],
        }

    return {"results": LazyArray(once.values(), result)}


async def _overflow_status(topic: Topic, context: RequestContext) -> str | None:
    """How full each partition of a topic with a bound is, as JSON; None for a topic without one."""
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
            return ErrorCode.unknown_topic_or_partition, "there is no such topic", ()
        status = statuses.get(topic.name)
        configs = [*describe_topic_configs(topic.config), *([] if status is None else _status_config(status))]
    elif resource.resource_type == GROUP:
        if not resource.resource_name:
            return ErrorCode.invalid_request, "the name of a group must not be empty", ()
        config = broker.shares.config(resource.resource_name)
        configs = _describe_options(GROUP_OPTIONS, config.overrides, {}, GROUP_SOURCE)
    elif resource.resource_type == BROKER and resource.resource_name in (str(broker.node_id), ""):
        configs = describe_broker_configs(broker)
    else:
        return ErrorCode.invalid_request, "only topics, groups and this broker have settings", ()
    return 0, None, [config for config in configs if not wanted or config["name"] in wanted]


def describe_topic_configs(config: TopicConfig) -> list[Mapping[str, Any]]:
    """Every setting of a topic with its value and where that comes from."""
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
    """How full a topic with a bound is: a setting that is only read, because every tool can read settings."""
    return [
        {
            "name": OVERFLOW_STATUS,
            "value": status,
            "read_only": True,
            "config_source": DEFAULT_SOURCE,
            "is_sensitive": False,
            "config_type": TYPES["string"],
            "documentation": "By partition: how full it is now, and counts since the broker started.",
        }
    ]


def describe_broker_configs(broker: Broker) -> list[Mapping[str, Any]]:
    """What tools ask a broker for, under Kafka's names; it changes only with a restart."""
    config = broker.config
    known = {
        "advertised.listeners": (f"PLAINTEXT://{broker.host}:{broker.port}", "string"),
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


def _shown(config: Mapping[str, Any], *, synonyms: bool, documented: bool) -> Mapping[str, Any]:
    same = {"name": config["name"], "value": config["value"], "source": config["config_source"]}
    return {
        **config,
        "synonyms": [same] if synonyms else (),
        "documentation": config["documentation"] if documented else None,
    }
