"""ListConfigResources (key 74), versions 0–1: which topics, groups and brokers have settings (KIP-1142).

Version 0 lists client metrics subscriptions, of which there are none here. As in Apache Kafka all topics are
listed, this broker, and those groups that were given settings. Loggers are accepted as a type and not listed:
DescribeConfigs does not describe them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.handlers.describe_configs import BROKER, GROUP, TOPIC

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 1)

BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
KNOWN: Final = frozenset({TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP})


def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """The resources of the types that are asked for, or of all."""
    asked = set(request.resource_types) if context.version > 0 else {CLIENT_METRICS}
    if not asked <= KNOWN:
        return {"error_code": ErrorCode.unsupported_version, "config_resources": ()}
    listed = [
        {"resource_name": name, "resource_type": kind}
        for kind, name in _resources(broker)
        if not asked or kind in asked
    ]
    return {"error_code": ErrorCode.none, "config_resources": listed}


def _resources(broker: Broker) -> Iterator[tuple[int, str]]:
    yield BROKER, str(broker.node_id)
    yield from ((TOPIC, topic.name) for topic in broker.topics)
    yield from ((GROUP, group_id) for group_id in broker.shares.configured())
