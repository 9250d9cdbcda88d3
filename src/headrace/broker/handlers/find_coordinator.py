"""FindCoordinator (10), versions 0–6: which broker keeps a group, a transactional id or a share group.

There is one node, so it is always this one, at once; Apache Kafka answers COORDINATOR_NOT_AVAILABLE while it
still makes its internal topics. Versions 4 and later ask for several keys of one type. Share groups are known
from version 6 on; any other type is an INVALID_REQUEST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 6)

GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2


def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """This node for every key, or an error for a type that has no coordinator."""
    node = _coordinator(broker, getattr(request, "key_type", GROUP), context.version)
    if context.version < 4:
        return node
    return {"coordinators": [{"key": key, **node} for key in dict.fromkeys(request.coordinator_keys)]}


def _coordinator(broker: Broker, key_type: int, version: int) -> dict[str, Any]:
    if key_type in {GROUP, TRANSACTION} or (key_type == SHARE and version >= 6):
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "node_id": broker.node_id,
            "host": broker.host,
            "port": broker.port,
        }
    return {
        "error_code": ErrorCode.invalid_request,
        "error_message": f"no coordinator for key type {key_type}: ask for a group (0) or a transaction (1)",
        "node_id": -1,
        "host": "",
        "port": -1,
    }
