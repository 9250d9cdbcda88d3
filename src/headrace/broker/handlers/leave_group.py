"""LeaveGroup (13), versions 0–5: members go, and the others rebalance at once and not after a timeout.

From version 3 on several members leave with one request, each with its own result; an administrator removes a
static member by its instance id alone. The reason that version 5 carries is not kept.

As in Apache Kafka, except: a newcomer that leaves before it was a member causes no rebalance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.groups.messages import MemberIdentity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 5)
LEAVERS_AT_ONCE: Final = 1_000


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """What became of each member that wanted to leave."""
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
