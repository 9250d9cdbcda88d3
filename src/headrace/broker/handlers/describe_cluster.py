"""DescribeCluster (key 60), versions 0–2: the one node that there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 2)


def handle(broker: Broker, _request: Any, _context: RequestContext) -> Mapping[str, Any]:
    """The cluster of one."""
    node = {"broker_id": broker.node_id, "host": broker.host, "port": broker.port, "is_fenced": False}
    return {
        "error_code": 0,
        "error_message": None,
        "cluster_id": broker.cluster_id,
        "controller_id": broker.node_id,
        "brokers": [node],
    }
