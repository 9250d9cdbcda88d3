"""JoinGroup (key 11), versions 0–9: a client joins the next generation of its group.

The response is sent when all members have joined or the rebalance timeout has passed. From version 4 a new
member first gets its member id (MEMBER_ID_REQUIRED) and joins again with it. A static member (version 5) that
rejoins a stable group keeps its assignment without a rebalance; from version 9, `skip_assignment` tells a
static leader not to compute new assignments.

The metadata of all members is stored as one record. A group with more than 2 MiB of metadata rejects further
members with GROUP_MAX_SIZE_REACHED; in Apache Kafka a record has at most 1 MB.

Differences from Apache Kafka:

- The first rebalance of an empty group does not wait for more members, unless
  `group.initial.rebalance.delay.ms` is set.
- If a member sends a second join, the first one gets REBALANCE_IN_PROGRESS instead of no response.
- A static member may rejoin a full group, and DescribeGroups shows its new host.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.groups.messages import JoinRequest, JoinResponse
from headrace.broker.record_fields import fits_string
from headrace.broker.security.acls import ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 9)

_MILLISECOND = timedelta(milliseconds=1)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns the generation that the client has joined."""
    join = _read(request, context)
    error = context.denial((ResourceType.GROUP, join.group_id)) or _check(broker, join)
    if error is ErrorCode.none:
        response = await broker.groups.join(join)
    else:
        response = JoinResponse(error=error, member_id=join.member_id)
    return _body(response, context.version)


def _read(request: Any, context: RequestContext) -> JoinRequest:
    session_timeout = request.session_timeout
    # Version 0 has one timeout for both.
    rebalance_timeout = getattr(request, "rebalance_timeout", session_timeout)
    return JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        client_id=context.client_id,
        client_host=f"/{context.client_host}",  # Kafka's tools expect the format of Java's InetAddress
        session_timeout_ms=session_timeout // _MILLISECOND,
        rebalance_timeout_ms=max(rebalance_timeout // _MILLISECOND, 0),
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        requires_known_member_id=context.version >= 4,
        supports_skip_assignment=context.version >= 9,
    )


def _check(broker: Broker, join: JoinRequest) -> ErrorCode:
    if not join.group_id or not fits_string(join.group_id):
        return ErrorCode.invalid_group_id
    if join.group_id in broker.shares:
        return ErrorCode.inconsistent_group_protocol
    if not broker.groups.settings.allows_session_timeout(join.session_timeout_ms):
        return ErrorCode.invalid_session_timeout
    texts = (join.instance_id, join.client_id, join.protocol_type, *(name for name, _ in join.protocols))
    return ErrorCode.none if all(map(fits_string, texts)) else ErrorCode.invalid_request


def _body(response: JoinResponse, version: int) -> dict[str, Any]:
    return {
        "error_code": response.error,
        "generation_id": response.generation,
        "protocol_type": response.protocol_type,
        # Not nullable before version 7.
        "protocol_name": response.protocol if version >= 7 else response.protocol or "",
        "leader": response.leader,
        "skip_assignment": response.skip_assignment,
        "member_id": response.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "metadata": member.metadata,
            }
            for member in response.members
        ],
    }
