"""Membership of classic consumer groups: JoinGroup, SyncGroup, Heartbeat and LeaveGroup."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.groups.messages import (
    MAX_METADATA_BYTES,
    JoinRequest,
    JoinResponse,
    MemberIdentity,
    SyncRequest,
    SyncResponse,
)
from headrace.broker.record_fields import fits_string
from headrace.broker.security.acls import ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext


_MILLISECOND = timedelta(milliseconds=1)

LEAVERS_AT_ONCE: Final = 1_000


async def join_group(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """JoinGroup (key 11), versions 0–9: a client joins the next generation of its group.

    The response is sent when all members have joined or the rebalance timeout has passed. From version 4 a
    new member first gets its member id (MEMBER_ID_REQUIRED) and joins again with it. A static member (version
    5) that rejoins a stable group keeps its assignment without a rebalance; from version 9, `skip_assignment`
    tells a static leader not to compute new assignments.

    The metadata of all members is stored as one record. A group with more than 2 MiB of metadata rejects
    further members with GROUP_MAX_SIZE_REACHED; in Apache Kafka a record has at most 1 MB.

    Differences from Apache Kafka:

    - The first rebalance of an empty group does not wait for more members, unless
      `group.initial.rebalance.delay.ms` is set.
    - If a member sends a second join, the first one gets REBALANCE_IN_PROGRESS instead of no response.
    - A static member may rejoin a full group, and DescribeGroups shows its new host.
    """
    join = _read_join(request, context)
    error = context.denial((ResourceType.GROUP, join.group_id)) or _check_join(broker, join)
    if error is ErrorCode.none:
        response = await broker.groups.join(join)
    else:
        response = JoinResponse(error=error, member_id=join.member_id)
    return _join_body(response, context.version)


def _read_join(request: Any, context: RequestContext) -> JoinRequest:
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


def _check_join(broker: Broker, join: JoinRequest) -> ErrorCode:
    if not join.group_id or not fits_string(join.group_id):
        return ErrorCode.invalid_group_id
    if join.group_id in broker.shares:
        return ErrorCode.inconsistent_group_protocol
    if not broker.groups.settings.allows_session_timeout(join.session_timeout_ms):
        return ErrorCode.invalid_session_timeout
    texts = (join.instance_id, join.client_id, join.protocol_type, *(name for name, _ in join.protocols))
    return ErrorCode.none if all(map(fits_string, texts)) else ErrorCode.invalid_request


def _join_body(response: JoinResponse, version: int) -> dict[str, Any]:
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


async def sync_group(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """SyncGroup (key 14), versions 0–5: a member gets its assignment; the leader sends those of all.

    Followers wait for the leader. From version 5 the request contains protocol type and protocol;
    INCONSISTENT_GROUP_PROTOCOL if they are missing or not those of the group. The group is as durable as the
    flush setting promises before the first response is sent. More than 2 MiB of assignments get
    INVALID_REQUEST; Apache Kafka stores at most 1 MB per group.

    Unlike in Apache Kafka, every sync gets a response: REBALANCE_IN_PROGRESS if the member sends another one,
    and UNKNOWN_MEMBER_ID if the member leaves.
    """
    sync = _read_sync(request)
    error = context.denial((ResourceType.GROUP, sync.group_id)) or _check_sync(sync, context.version)
    response = await broker.groups.sync(sync) if error is ErrorCode.none else SyncResponse(error=error)
    return {
        "error_code": response.error,
        "protocol_type": response.protocol_type,
        "protocol_name": response.protocol,
        "assignment": response.assignment,
    }


def _read_sync(request: Any) -> SyncRequest:
    return SyncRequest(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=getattr(request, "group_instance_id", None),
        generation=request.generation_id,
        protocol_type=getattr(request, "protocol_type", None),
        protocol=getattr(request, "protocol_name", None),
        assignments=tuple((each.member_id, each.assignment) for each in request.assignments),
    )


def _check_sync(sync: SyncRequest, version: int) -> ErrorCode:
    if not sync.group_id:
        return ErrorCode.invalid_group_id
    if version >= 5 and (sync.protocol_type is None or sync.protocol is None):
        return ErrorCode.inconsistent_group_protocol
    if sum(len(assignment) for _, assignment in sync.assignments) > MAX_METADATA_BYTES:
        return ErrorCode.invalid_request
    return ErrorCode.none


def heartbeat(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Heartbeat (key 12), versions 0–4: extends the session of a member.

    As in Apache Kafka, REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION and, from version 3,
    FENCED_INSTANCE_ID make the member rejoin.
    """
    denial = context.denial((ResourceType.GROUP, request.group_id))
    if denial is not None:
        return {"error_code": denial}
    if not request.group_id:
        return {"error_code": ErrorCode.invalid_group_id}
    instance_id = getattr(request, "group_instance_id", None)
    error = broker.groups.heartbeat(request.group_id, request.member_id, request.generation_id, instance_id)
    return {"error_code": error}


async def leave_group(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """LeaveGroup (key 13), versions 0–5: members leave, and the others rebalance at once.

    From version 3 one request removes several members, with a result for each; an administrator can remove a
    static member by its instance id. The reason (version 5) is ignored.

    Unlike in Apache Kafka, a pending member that leaves causes no rebalance.
    """
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
