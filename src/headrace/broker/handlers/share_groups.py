"""Share groups: their members' heartbeats, their descriptions, and their start offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.handlers.group_admin import group_operations
from headrace.broker.record_fields import fits_string
from headrace.broker.request import NOT_AUTHORIZED
from headrace.broker.security.acls import ResourceType
from headrace.broker.shares.groups import ShareHeartbeat, ShareHeartbeatResult
from headrace.protocol.responses import LazyArray
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.shares.groups import ShareGroup, ShareGroupMember
    from headrace.broker.topics import Topic

    Change = Callable[[Broker, RequestContext, str, Any], Generator[None, None, Mapping[str, Any]]]

HIDDEN_TOPICS: Final = "The group has described topic(s) that the client is not authorized to describe."

NOT_BEGUN: Final = -1


async def share_group_heartbeat(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """ShareGroupHeartbeat (key 76), version 1: a member joins (epoch 0), continues, or leaves (epoch −1).

    Members generate their own ids. Each member is assigned all partitions of its subscribed topics; a
    response contains the assignment only if it has changed. As in Apache Kafka, the id of a consumer group
    gets GROUP_ID_NOT_FOUND.
    """
    response = _check_heartbeat_access(request, context) or _check_heartbeat(broker, request)
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
            response = ShareHeartbeatResult(error=ErrorCode.coordinator_not_available, message=str(fault))
    assignment = response.assignment
    return {
        "error_code": response.error,
        "error_message": response.message,
        "member_id": request.member_id,
        "member_epoch": response.epoch,
        "heartbeat_interval": broker.shares.config(request.group_id).heartbeat_interval_ms,
        "assignment": None if assignment is None else {"topic_partitions": _assigned_topics(assignment)},
    }


def _check_heartbeat_access(request: Any, context: RequestContext) -> ShareHeartbeatResult | None:
    topics = request.subscribed_topic_names or ()
    denial = context.denial(
        (ResourceType.GROUP, request.group_id), *((ResourceType.TOPIC, name) for name in topics)
    )
    return None if denial is None else ShareHeartbeatResult(error=denial, message=NOT_AUTHORIZED)


def _check_heartbeat(broker: Broker, request: Any) -> ShareHeartbeatResult | None:
    if not request.group_id or not request.member_id:
        return ShareHeartbeatResult(
            error=ErrorCode.invalid_request, message="the group id or the member id is empty"
        )
    if not fits_string(request.group_id):
        return ShareHeartbeatResult(
            error=ErrorCode.invalid_group_id, message="the group id has more than 32767 bytes"
        )
    if request.member_epoch < -1:
        return ShareHeartbeatResult(
            error=ErrorCode.invalid_request, message="the member epoch is less than -1"
        )
    if request.group_id not in broker.shares and broker.groups.describe(request.group_id) is not None:
        return ShareHeartbeatResult(
            error=ErrorCode.group_id_not_found, message=f"Group {request.group_id} is not a share group."
        )
    return None


def _assigned_topics(assignment: Any) -> list[Mapping[str, Any]]:
    return [{"topic_id": topic, "partitions": partitions} for topic, partitions in assignment]


def share_group_describe(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """ShareGroupDescribe (key 77), version 1: the members of share groups and their assignments.

    As in Apache Kafka, a missing group and a consumer group get GROUP_ID_NOT_FOUND.
    """
    requested = request.include_authorized_operations

    def described(group_id: str) -> Mapping[str, Any]:
        operations = group_operations(context, group_id, requested=requested)
        return _describe_group(broker, group_id, context) | {"authorized_operations": operations}

    return {"groups": LazyArray(dict.fromkeys(request.group_ids), described)}


def _describe_group(broker: Broker, group_id: str, context: RequestContext) -> dict[str, Any]:
    denial = context.denial((ResourceType.GROUP, group_id))
    if denial is not None:
        return _missing(group_id) | {"error_code": denial, "error_message": None}
    group = broker.shares.group(group_id)
    if group is None:
        return _missing(group_id)
    body = _present(broker, group)
    names = {name for member in group.members.values() for name in member.subscription}
    denial = context.denial(*((ResourceType.TOPIC, name) for name in sorted(names)))
    if denial is not None:
        return body | {"error_code": denial, "error_message": HIDDEN_TOPICS, "members": []}
    return body


def _missing(group_id: str) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.group_id_not_found,
        "error_message": f"Group {group_id} not found.",
        "group_id": group_id,
        "group_state": "Dead",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": [],
    }


def _present(broker: Broker, group: ShareGroup) -> dict[str, Any]:
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "group_id": group.id,
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.epoch,
        "assignor_name": "simple",
        "members": [_member(broker, member) for member in group.members.values()],
    }


def _member(broker: Broker, member: ShareGroupMember) -> dict[str, Any]:
    topics = [(broker.topics.by_id(topic), partitions) for topic, partitions in member.assignment]
    return {
        "member_id": member.id,
        "rack_id": member.rack,
        "member_epoch": member.epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": member.subscription,
        "assignment": {
            "topic_partitions": [
                {"topic_id": topic.id, "topic_name": topic.name, "partitions": partitions}
                for topic, partitions in topics
                if topic is not None
            ]
        },
    }


def describe_offsets(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """DescribeShareGroupOffsets (key 90), versions 0–1: start offsets and lag.

    The lag (version 1) counts records that are not acknowledged, including acquired ones. A partition that
    the group has not started to read has start offset −1.
    """
    unique = {requested.group_id: requested for requested in request.groups}
    return {
        "groups": LazyArray(unique.values(), lambda requested: _describe_offsets(broker, requested, context))
    }


def _describe_offsets(broker: Broker, requested: Any, context: RequestContext) -> Mapping[str, Any]:
    denial = context.denial((ResourceType.GROUP, requested.group_id))
    if denial is not None:
        return _offsets_body(requested, [], denial, NOT_AUTHORIZED)
    if requested.group_id not in broker.shares:
        message = f"Group {requested.group_id} not found."
        return _offsets_body(requested, [], ErrorCode.group_id_not_found, message)
    wanted = _all(broker, requested.group_id) if requested.topics is None else _requested(requested)
    topics = [
        _topic(broker, requested.group_id, name, indexes)
        if context.allows(ResourceType.TOPIC, name)
        else _denied_topic(name, indexes)
        for name, indexes in wanted.items()
        if requested.topics is not None or context.allows(ResourceType.TOPIC, name)
    ]
    return _offsets_body(requested, topics, ErrorCode.none, None)


def _offsets_body(
    requested: Any, topics: list[Mapping[str, Any]], code: int, message: str | None
) -> Mapping[str, Any]:
    return {"group_id": requested.group_id, "topics": topics, "error_code": code, "error_message": message}


def _requested(requested: Any) -> dict[str, list[int]]:
    return {topic.topic_name: list(topic.partitions) for topic in requested.topics}


def _all(broker: Broker, group_id: str) -> dict[str, list[int]]:
    wanted: dict[str, list[int]] = {}
    for share in broker.shares.of_group(group_id):
        wanted.setdefault(share.partition.topic, []).append(share.key.partition)
    return {name: sorted(indexes) for name, indexes in sorted(wanted.items())}


def _denied_topic(name: str, indexes: list[int]) -> Mapping[str, Any]:
    denied = ErrorCode.topic_authorization_failed
    partitions = [_partition(index, NOT_BEGUN, -1, denied, NOT_AUTHORIZED) for index in indexes]
    return {"topic_name": name, "topic_id": None, "partitions": partitions}


def _topic(broker: Broker, group_id: str, name: str, indexes: list[int]) -> Mapping[str, Any]:
    topic = broker.topics.get(name)
    partitions = []
    for index in indexes:
        if topic is None or topic.partition(index) is None:
            code, message = ErrorCode.unknown_topic_or_partition, "the partition does not exist"
            partitions.append(_partition(index, NOT_BEGUN, -1, code, message))
            continue
        share = broker.shares.get(group_id, topic.id, index)
        start, lag = (NOT_BEGUN, -1) if share is None else (share.state.start_offset, share.lag)
        partitions.append(_partition(index, start, lag, ErrorCode.none, None))
    return {
        "topic_name": name,
        "topic_id": None if topic is None else topic.id,
        "partitions": partitions,
    }


def _partition(index: int, start: int, lag: int, code: int, message: str | None) -> Mapping[str, Any]:
    return {
        "partition_index": index,
        "start_offset": start,
        "leader_epoch": 0,
        "lag": lag,
        "error_code": code,
        "error_message": message,
    }


async def change_offsets(
    broker: Broker, request: Any, context: RequestContext, change: Change, *, creates: bool = False
) -> Mapping[str, Any]:
    """Apply `change` to each topic of a request, if the group has no members.

    `change` is a generator that yields where other requests may run; a member may join in the meantime.
    """
    denial = context.denial((ResourceType.GROUP, request.group_id))
    if denial is not None:
        return {"error_code": denial, "error_message": NOT_AUTHORIZED, "responses": []}
    error = broker.shares.check_empty(request.group_id)
    if creates and error is ErrorCode.group_id_not_found and _may_create(broker, request.group_id):
        error = broker.shares.create(request.group_id)
    responses = []
    if error is ErrorCode.none:
        responses = [
            await context.time_slice.run(change(broker, context, request.group_id, requested))
            for requested in request.topics
        ]
        await broker.shares.durable()
    return {
        "error_code": error,
        "error_message": _reason(error, request.group_id),
        "responses": responses,
    }


def _may_create(broker: Broker, group_id: str) -> bool:
    """Whether a share group with this id may be created: the id is valid, and no consumer group has it."""
    return bool(group_id) and fits_string(group_id) and broker.groups.describe(group_id) is None


def _reason(error: ErrorCode, group_id: str) -> str | None:
    if error is ErrorCode.group_id_not_found:
        return f"Group {group_id} not found."
    return "the group has members: stop them first" if error is ErrorCode.non_empty_group else None


async def alter_offsets(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """AlterShareGroupOffsets (key 91), version 0: sets the start offsets of a group without members.

    As in Apache Kafka, a missing group is created, so that its start offsets can be set before the first
    member joins.
    """
    return await change_offsets(broker, request, context, _alter_topic, creates=True)


def _alter_topic(
    broker: Broker, context: RequestContext, group_id: str, requested: Any
) -> Generator[None, None, Mapping[str, Any]]:
    denial = context.denial((ResourceType.TOPIC, requested.topic_name))
    topic = broker.topics.get(requested.topic_name)
    partitions = []
    for item in requested.partitions:
        partitions.append(
            _alter(broker, group_id, topic, item) if denial is None else _result(item, denial, NOT_AUTHORIZED)
        )
        yield
    return {
        "topic_name": requested.topic_name,
        "topic_id": None if topic is None or denial else topic.id,
        "partitions": partitions,
    }


def _alter(broker: Broker, group_id: str, topic: Topic | None, item: Any) -> Mapping[str, Any]:
    if topic is None:
        return _result(item, ErrorCode.unknown_topic_or_partition, "the topic does not exist")
    if (error := broker.shares.check_empty(group_id)) is not ErrorCode.none:
        return _result(item, error, "the group has members: stop them first")
    try:
        error = broker.shares.alter_start_offset(group_id, topic.id, item.partition_index, item.start_offset)
    except StorageError as fault:
        return _result(item, error_code(fault), str(fault))
    return _result(item, error, "the partition does not exist" if error else None)


def _result(item: Any, code: int, message: str | None) -> Mapping[str, Any]:
    return {"partition_index": item.partition_index, "error_code": code, "error_message": message}


async def delete_offsets(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """DeleteShareGroupOffsets (key 92), version 0: deletes offsets of a group without members."""
    return await change_offsets(broker, request, context, _delete_topic_offsets)


def _delete_topic_offsets(
    broker: Broker, context: RequestContext, group_id: str, requested: Any
) -> Generator[None, None, Mapping[str, Any]]:
    denial = context.denial((ResourceType.TOPIC, requested.topic_name))
    topic = None if denial else broker.topics.get(requested.topic_name)
    code, message = ErrorCode.none, None
    if denial is not None:
        code, message = denial, NOT_AUTHORIZED
    elif topic is None:
        code, message = ErrorCode.unknown_topic_or_partition, "the topic does not exist"
    elif (code := broker.shares.check_empty(group_id)) is ErrorCode.none:
        try:
            yield from broker.shares.delete_offsets_steps(group_id, topic.id)
        except StorageError as fault:
            code, message = error_code(fault), str(fault)
    yield
    return {
        "topic_name": requested.topic_name,
        "topic_id": None if topic is None else topic.id,
        "error_code": code,
        "error_message": message,
    }
