"""Heartbeat (key 12), versions 0–4: extends the session of a member.

As in Apache Kafka, REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION and, from version 3,
FENCED_INSTANCE_ID make the member rejoin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.security.acls import ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 4)


def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Extend the member's session."""
    denial = context.denial((ResourceType.GROUP, request.group_id))
    if denial is not None:
        return {"error_code": denial}
    if not request.group_id:
        return {"error_code": ErrorCode.invalid_group_id}
    instance_id = getattr(request, "group_instance_id", None)
    error = broker.groups.heartbeat(request.group_id, request.member_id, request.generation_id, instance_id)
    return {"error_code": error}
