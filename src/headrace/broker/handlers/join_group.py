"""JoinGroup (11), versions 0–9: a client wants to be in the next generation of its group.

The answer comes when the group is ready: when all members have joined, or the rebalance timeout is over. From
version 4 on a newcomer is first told its member id (MEMBER_ID_REQUIRED) and joins again with it. A static
member (version 5) that comes back to a stable group keeps its assignment without a rebalance; from version 9
on a returning leader is told so with `skip_assignment`.

A group holds at most 2 MiB of its members' metadata, and refuses more with GROUP_MAX_SIZE_REACHED: all of it
is stored as one record, which has at most 1 MB in Apache Kafka.

As in Apache Kafka, except: the first rebalance of an empty group waits for no more members unless
`group.initial.rebalance.delay.ms` says so; of two joins of one member the first is answered with
REBALANCE_IN_PROGRESS instead of never; a returning static member is let into a full group, for it has a place
there, and is shown with its new host.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.groups.messages import JoinRequest, JoinResponse
from headrace.broker.record_fields import fits_string

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 9)

_MILLISECOND = timedelta(milliseconds=1)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """The generation that the client is in, or why it is in none."""
    join = _read(request, context)
    error = _check(broker, join)
    if error is ErrorCode.none:
        reply = await broker.groups.join(join)
    else:
        reply = JoinResponse(error=error, member_id=join.member_id)
    return _body(reply, context.version)


def _read(request: Any, context: RequestContext) -> JoinRequest:
    session_timeout = request.session_timeout
    # Version 0 knows one timeout for both.
    rebalance_timeout = getattr(request, "rebalance_timeout", session_timeout)
    return JoinRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        client_id=context.client_id,
        client_host=f"/{context.client_host}",  # as Java prints an address, and Kafka's tools expect it
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


def _body(reply: JoinResponse, version: int) -> dict[str, Any]:
    return {
        "error_code": reply.error,
        "generation_id": reply.generation,
        "protocol_type": reply.protocol_type,
        # Absent before version 7 meant empty.
        "protocol_name": reply.protocol if version >= 7 else reply.protocol or "",
        "leader": reply.leader,
        "skip_assignment": reply.skip_assignment,
        "member_id": reply.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "metadata": member.metadata,
            }
            for member in reply.members
        ],
    }
