"""ShareGroupHeartbeat (key 76), version 1: a member joins (epoch 0), goes on, or leaves (epoch −1).

Members make their ids themselves. Each is assigned all partitions of the topics that it names; the assignment
is told when it is news. A name that a consumer group has is refused as Apache Kafka does, GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.record_fields import fits_string
from headrace.broker.shares.groups import ShareHeartbeat, ShareHeartbeatResponse
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (1, 1)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """The member's epoch and, when it is news, what it may read."""
    response = _check(broker, request)
    if response is None:
        names = request.subscribed_topic_names
        heartbeat = ShareHeartbeat(
            member_id=request.member_id,
            epoch=request.member_epoch,
            subscription=None if names is None else tuple(names),
            rack=request.rack_id,
            client_id=context.client_id,
            client_host=context.client_host,
        )
        try:
            response = await context.time_slice.run(
                broker.shares.heartbeat_steps(request.group_id, heartbeat)
            )
            context.time_slice.release()
            await broker.shares.started(request.group_id)
            await broker.shares.durable()
        except StorageError as fault:
            response = ShareHeartbeatResponse(error=ErrorCode.coordinator_not_available, message=str(fault))
    assignment = response.assignment
    return {
        "error_code": response.error,
        "error_message": response.message,
        "member_id": request.member_id,
        "member_epoch": response.epoch,
        "heartbeat_interval": broker.shares.config(request.group_id).heartbeat_interval_ms,
        "assignment": None if assignment is None else {"topic_partitions": _topics(assignment)},
    }


def _check(broker: Broker, request: Any) -> ShareHeartbeatResponse | None:
    if not request.group_id or not request.member_id:
        return ShareHeartbeatResponse(
            error=ErrorCode.invalid_request, message="a group and a member have names"
        )
    if not fits_string(request.group_id):
        return ShareHeartbeatResponse(
            error=ErrorCode.invalid_group_id, message="the name of the group is too long"
        )
    if request.member_epoch < -1:
        return ShareHeartbeatResponse(error=ErrorCode.invalid_request, message="an epoch is -1 or more")
    if request.group_id not in broker.shares and broker.groups.describe(request.group_id) is not None:
        return ShareHeartbeatResponse(
            error=ErrorCode.group_id_not_found, message=f"Group {request.group_id} is not a share group."
        )
    return None


def _topics(assignment: Any) -> list[Mapping[str, Any]]:
    return [{"topic_id": topic, "partitions": partitions} for topic, partitions in assignment]
