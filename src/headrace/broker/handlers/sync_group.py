"""SyncGroup (14), versions 0–5: a member asks for its assignment, and the leader brings everybody's.

Followers wait until the leader has come. From version 5 on the request names the protocol type and the
protocol, and INCONSISTENT_GROUP_PROTOCOL is the answer to others than the group's, or to none at all. The
group is in the log, as durable as the broker's flush setting promises, before the first member hears of it.
More than 2 MiB of assignments are an INVALID_REQUEST; Apache Kafka stores 1 MB for a group.

As in Apache Kafka, except: of two syncs of one member the first is answered with REBALANCE_IN_PROGRESS, and
the sync of a member that leaves meanwhile with UNKNOWN_MEMBER_ID, instead of never.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.groups.messages import MAX_METADATA_BYTES, SyncRequest, SyncResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 5)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """The member's assignment, or why it has none."""
    sync = _read(request)
    error = _check(sync, context.version)
    reply = await broker.groups.sync(sync) if error is ErrorCode.none else SyncResponse(error=error)
    return {
        "error_code": reply.error,
        "protocol_type": reply.protocol_type,
        "protocol_name": reply.protocol,
        "assignment": reply.assignment,
    }


def _read(request: Any) -> SyncRequest:
    return SyncRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        generation=request.generation_id,
        protocol_type=getattr(request, "protocol_type", None),
        protocol=getattr(request, "protocol_name", None),
        assignments=tuple((each.member_id, each.assignment) for each in request.assignments),
    )


def _check(sync: SyncRequest, version: int) -> ErrorCode:
    if not sync.group_id:
        return ErrorCode.invalid_group_id
    if version >= 5 and (sync.protocol_type is None or sync.protocol is None):
        return ErrorCode.inconsistent_group_protocol
    if sum(len(assignment) for _, assignment in sync.assignments) > MAX_METADATA_BYTES:
        return ErrorCode.invalid_request
    return ErrorCode.none
