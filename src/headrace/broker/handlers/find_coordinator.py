"""FindCoordinator (key 10), versions 0–6: the coordinator of groups, transactional ids and share groups.

It is always this broker. Apache Kafka responds COORDINATOR_NOT_AVAILABLE while it creates its internal
topics. From version 4 a request has several keys of one type. Share groups exist from version 6; other types
get INVALID_REQUEST.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.request import NOT_AUTHORIZED
from headrace.broker.security.acls import CLUSTER_NAME, ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 6)

GROUP: Final = 0
TRANSACTION: Final = 1
SHARE: Final = 2


def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns this broker for every key, or an error for an unknown key type."""
    key_type = getattr(request, "key_type", GROUP)
    node = _coordinator(broker, key_type, context)
    if context.version < 4:
        return _denial(key_type, request.key, context) or node
    return {
        "coordinators": [
            {"key": key, **(_denial(key_type, key, context) or node)}
            for key in dict.fromkeys(request.coordinator_keys)
        ]
    }


def _denial(key_type: int, key: str, context: RequestContext) -> dict[str, Any] | None:
    if key_type == SHARE:
        code = context.denial((ResourceType.CLUSTER, CLUSTER_NAME))
    elif key_type == TRANSACTION:
        code = context.denial((ResourceType.TRANSACTIONAL_ID, key))
    else:
        code = context.denial((ResourceType.GROUP, key))
    if code is None:
        return None
    return {"error_code": code, "error_message": NOT_AUTHORIZED, "node_id": -1, "host": "", "port": -1}


def _coordinator(broker: Broker, key_type: int, context: RequestContext) -> dict[str, Any]:
    if key_type in {GROUP, TRANSACTION} or (key_type == SHARE and context.version >= 6):
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "node_id": broker.node_id,
            **context.endpoint._asdict(),
        }
    return {
        "error_code": ErrorCode.invalid_request,
        "error_message": f"unknown key type {key_type}: use 0 for a group or 1 for a transactional id",
        "node_id": -1,
        "host": "",
        "port": -1,
    }
