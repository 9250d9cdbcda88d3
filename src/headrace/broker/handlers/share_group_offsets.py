"""Start offsets of share groups: requests that describe, alter and delete them.

DescribeShareGroupOffsets (key 90), versions 0–1: start offsets and lag. The lag (version 1) counts records
that are not acknowledged, including acquired ones. A partition that the group has not started to read has
start offset −1.

AlterShareGroupOffsets (key 91), version 0: sets the start offsets of a group without members. As in Apache
Kafka, a missing group is created, so that its start offsets can be set before the first member joins.

DeleteShareGroupOffsets (key 92), version 0: deletes the offsets of topics in a group without members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.record_fields import fits_string
from headrace.broker.request import NOT_AUTHORIZED
from headrace.broker.security.acls import ResourceType
from headrace.protocol.responses import LazyArray
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.topics import Topic

    Change = Callable[[Broker, RequestContext, str, Any], Generator[None, None, Mapping[str, Any]]]

DESCRIBE_VERSIONS: Final = (0, 1)
NOT_BEGUN: Final = -1


def describe(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns each group in the order of the request; duplicates are ignored."""
    unique = {requested.group_id: requested for requested in request.groups}
    return {"groups": LazyArray(unique.values(), lambda requested: _describe(broker, requested, context))}


def _describe(broker: Broker, requested: Any, context: RequestContext) -> Mapping[str, Any]:
    denial = context.denial((ResourceType.GROUP, requested.group_id))
    if denial is not None:
        return _group(requested, [], denial, NOT_AUTHORIZED)
    if requested.group_id not in broker.shares:
        message = f"Group {requested.group_id} not found."
        return _group(requested, [], ErrorCode.group_id_not_found, message)
    wanted = _all(broker, requested.group_id) if requested.topics is None else _requested(requested)
    topics = [
        _topic(broker, requested.group_id, name, indexes)
        if context.allows(ResourceType.TOPIC, name)
        else _denied_topic(name, indexes)
        for name, indexes in wanted.items()
        if requested.topics is not None or context.allows(ResourceType.TOPIC, name)
    ]
    return _group(requested, topics, ErrorCode.none, None)


def _group(
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


ALTER_VERSIONS: Final = (0, 0)


async def alter(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Set the start offset of each partition."""
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


DELETE_VERSIONS: Final = (0, 0)


async def delete(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Delete the offsets of each topic."""
    return await change_offsets(broker, request, context, _delete)


def _delete(
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
