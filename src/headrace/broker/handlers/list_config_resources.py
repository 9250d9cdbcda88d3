"""ListConfigResources (key 74), versions 0–1: the resources that have settings (KIP-1142).

As in Apache Kafka these are all topics, this broker, and groups with settings that are not defaults. Version
0 lists only client metrics, of which there are none. Broker loggers are a valid type but not listed, because
DescribeConfigs does not support them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.handlers.describe_configs import BROKER, GROUP, TOPIC
from headrace.broker.security.acls import ResourceType

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 1)

BROKER_LOGGER: Final = 8
CLIENT_METRICS: Final = 16
KNOWN: Final = frozenset({TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP})


def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
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
