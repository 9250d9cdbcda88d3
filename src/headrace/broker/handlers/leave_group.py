"""LeaveGroup (key 13), versions 0–5: members leave, and the others rebalance without waiting for a timeout.

From version 3 one request removes several members, with a result for each; an administrator can remove a
static member by its instance id. The reason (version 5) is ignored.

Unlike in Apache Kafka, a pending member that leaves causes no rebalance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.groups.messages import MemberIdentity
from headrace.broker.security.acls import ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 5)
LEAVERS_AT_ONCE: Final = 1_000


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Remove the members; returns a result for each."""
    denial = context.denial((ResourceType.GROUP, request.group_id))
    if denial is not None:
        return {"error_code": denial, "members": []}
    if not request.group_id:
        return {"error_code": ErrorCode.invalid_group_id, "members": []}
    leavers = _leavers(request, context.version)
    results: list[ErrorCode] = []
    for first in range(0, len(leavers), LEAVERS_AT_ONCE):
        results += broker.groups.leave(request.group_id, leavers[first : first + LEAVERS_AT_ONCE])
        await context.time_slice.pause()
    if context.version < 3:
        return {"error_code": results[0]}
    members = [
        {"member_id": leaver.member_id, "group_instance_id": leaver.instance_id, "error_code": result}
        for leaver, result in zip(leavers, results, strict=True)
    ]
    return {"error_code": ErrorCode.none, "members": members}


def _leavers(request: Any, version: int) -> list[MemberIdentity]:
    if version < 3:
        return [MemberIdentity(member_id=request.member_id)]
    return [
        MemberIdentity(member_id=member.member_id, instance_id=member.group_instance_id)
        for member in request.members
    ]
