"""Heartbeat (12), versions 0–4: a member says that it is alive, and hears whether a rebalance wants it.

REBALANCE_IN_PROGRESS while the group prepares the next generation; UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION and
FENCED_INSTANCE_ID (version 3) send the member back to JoinGroup. As in Apache Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 4)


def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:  # noqa: ARG001
    """Whether the member is still one."""
    if not request.group_id:
        return {"error_code": ErrorCode.invalid_group_id}
    instance_id = getattr(request, "group_instance_id", None)
    error = broker.groups.heartbeat(request.group_id, request.member_id, request.generation_id, instance_id)
    return {"error_code": error}
