"""SyncGroup (key 14), versions 0–5: a member gets its assignment; the leader sends the assignments of all.

Followers wait for the leader. From version 5 the request contains protocol type and protocol;
INCONSISTENT_GROUP_PROTOCOL if they are missing or not those of the group. The group is as durable as the
flush setting promises before the first response is sent. More than 2 MiB of assignments get INVALID_REQUEST;
Apache Kafka stores at most 1 MB per group.

Unlike in Apache Kafka, every sync gets a response: REBALANCE_IN_PROGRESS if the member sends another one, and
UNKNOWN_MEMBER_ID if the member leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.groups.messages import MAX_METADATA_BYTES, SyncRequest, SyncResponse
from headrace.broker.security.acls import ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 5)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns the member's assignment."""
    sync = _read(request)
    error = context.denial((ResourceType.GROUP, sync.group_id)) or _check(sync, context.version)
    response = await broker.groups.sync(sync) if error is ErrorCode.none else SyncResponse(error=error)
    return {
        "error_code": response.error,
        "protocol_type": response.protocol_type,
        "protocol_name": response.protocol,
        "assignment": response.assignment,
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
