"""DescribeCluster (key 60), versions 0–2: the cluster has one node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.broker.request import OPERATIONS_NOT_ASKED
from headrace.broker.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 2)


def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns this broker as the only node and as the controller."""
    node = {"broker_id": broker.node_id, **context.endpoint._asdict(), "is_fenced": False}
    return {
        "error_code": 0,
        "error_message": None,
        "cluster_id": broker.cluster_id,
        "controller_id": broker.node_id,
        "brokers": [node],
        "cluster_authorized_operations": cluster_operations(
            context, requested=request.include_cluster_authorized_operations
        ),
    }


def cluster_operations(context: RequestContext, *, requested: bool) -> int:
    """What the client may do with the cluster, if it asks for that and may know it."""
    if not requested:
        return OPERATIONS_NOT_ASKED
    may_know = context.allows_operation(Operation.DESCRIBE, ResourceType.CLUSTER)
    return context.authorized_operations(ResourceType.CLUSTER) if may_know else 0
