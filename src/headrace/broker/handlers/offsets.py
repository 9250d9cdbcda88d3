"""Committed offsets of groups: OffsetCommit, OffsetFetch and OffsetDelete."""

from __future__ import annotations

from datetime import timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.groups.records import NO_TIME, CommittedOffset
from headrace.broker.record_fields import fits_string
from headrace.broker.security.acls import ResourceType
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.topics import Topic


TOPIC_DENIED: Final = ErrorCode.topic_authorization_failed
COMMITS_AT_ONCE: Final = 200
"""Offsets that are appended in one batch; other connections are served between batches."""

NO_OFFSET: Final = -1
DELETES_AT_ONCE: Final = 200


async def offset_commit(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """OffsetCommit (key 8), versions 2–10: commits the offsets of a group.

    Members commit with their generation. Clients without a membership commit with generation −1, which is
    allowed while the group has no members, and creates a missing group. A commit counts as a heartbeat.
    Versions 2–4 may set a retention time; version 10 identifies topics by id.

    As in Apache Kafka, each partition has its own error: if one does not exist, or its metadata is too long,
    the other offsets are committed. Share groups have no committed offsets and get GROUP_ID_NOT_FOUND.
    """
    denial = context.denial((ResourceType.GROUP, request.group_id))
    if denial is not None:
        return {"topics": [_commit_error(requested, denial) for requested in request.topics]}
    topics = [(requested, _find_topic(broker, requested)) for requested in request.topics]
    denied = [
        _commit_error(requested, TOPIC_DENIED)
        for requested, topic in topics
        if _is_denied(requested, topic, context)
    ]
    topics = [(requested, topic) for requested, topic in topics if not _is_denied(requested, topic, context)]
    group_error = ErrorCode.none
    if any(topic is not None for _, topic in topics):
        group_error = _check_group(broker, request, context.version)
    if group_error is ErrorCode.none:
        group_error = await _commit(broker, request, topics, context)
    bodies = []
    for requested, topic in topics:
        bodies.append(await _commit_topic_body(broker, requested, topic, group_error, context))
    return {"topics": [*bodies, *denied]}


def _is_denied(requested: Any, topic: Topic | None, context: RequestContext) -> bool:
    name = getattr(requested, "name", None) if topic is None else topic.name
    return name is not None and not context.allows(ResourceType.TOPIC, name)


def _commit_error(requested: Any, code: ErrorCode) -> dict[str, Any]:
    partitions = [
        {"partition_index": partition.partition_index, "error_code": code}
        for partition in requested.partitions
    ]
    return {
        "name": getattr(requested, "name", ""),
        "topic_id": getattr(requested, "topic_id", None),
        "partitions": partitions,
    }


def _find_topic(broker: Broker, requested: Any) -> Topic | None:
    if not hasattr(requested, "topic_id"):
        return broker.topics.get(requested.name)
    return None if requested.topic_id is None else broker.topics.by_id(requested.topic_id)


def _check_group(broker: Broker, request: Any, version: int) -> ErrorCode:
    if not fits_string(request.group_id):
        return ErrorCode.invalid_group_id
    if request.group_id in broker.shares:
        return ErrorCode.group_id_not_found
    error = broker.groups.check_commit(
        request.group_id,
        request.member_id,
        request.generation_id_or_member_epoch,
        getattr(request, "group_instance_id", None),
        transactional=False,
    )
    # Clients before version 9 do not know GROUP_ID_NOT_FOUND.
    if error is ErrorCode.group_id_not_found and version < 9:
        return ErrorCode.illegal_generation
    return error


async def _commit(
    broker: Broker, request: Any, topics: list[tuple[Any, Topic | None]], context: RequestContext
) -> ErrorCode:
    now_ms = broker.clock.now_ms()
    expires_at_ms = _expiry_ms(request, now_ms)
    accepted = [
        (topic, partition)
        for requested, topic in topics
        if topic is not None
        for partition in requested.partitions
        if _check_partition(broker, topic, partition) is ErrorCode.none
    ]
    try:
        for first in range(0, len(accepted), COMMITS_AT_ONCE):
            entries = {
                (topic.name, partition.partition_index): CommittedOffset(
                    offset=partition.committed_offset,
                    leader_epoch=getattr(partition, "committed_leader_epoch", -1),
                    metadata=partition.committed_metadata or "",
                    committed_at_ms=now_ms,
                    expires_at_ms=expires_at_ms,
                )
                for topic, partition in accepted[first : first + COMMITS_AT_ONCE]
            }
            broker.offsets.commit(request.group_id, entries)
            await context.time_slice.pause()
        await broker.offsets.durable()
    except StorageError:
        return ErrorCode.coordinator_not_available
    return ErrorCode.none


def _expiry_ms(request: Any, now_ms: int) -> int:
    retention: timedelta = getattr(request, "retention_time", timedelta(milliseconds=-1))
    return NO_TIME if retention < timedelta(0) else now_ms + retention // timedelta(milliseconds=1)


def _check_partition(broker: Broker, topic: Topic, partition: Any) -> ErrorCode:
    if not 0 <= partition.partition_index < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition
    if not broker.offsets.accepts_metadata(partition.committed_metadata):
        return ErrorCode.offset_metadata_too_large
    return ErrorCode.none


async def _commit_topic_body(
    broker: Broker, requested: Any, topic: Topic | None, group_error: ErrorCode, context: RequestContext
) -> dict[str, Any]:
    partitions = [
        {
            "partition_index": partition.partition_index,
            "error_code": _commit_result(broker, requested, topic, partition, group_error),
        }
        async for partition in context.time_slice.over(requested.partitions)
    ]
    return {
        "name": getattr(requested, "name", ""),
        "topic_id": getattr(requested, "topic_id", None),
        "partitions": partitions,
    }


def _commit_result(
    broker: Broker, requested: Any, topic: Topic | None, partition: Any, group_error: ErrorCode
) -> ErrorCode:
    if topic is None:
        by_id = hasattr(requested, "topic_id")
        return ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
    error = _check_partition(broker, topic, partition)
    # An error of the group has precedence over metadata that is too long.
    if group_error is not ErrorCode.none and error is not ErrorCode.unknown_topic_or_partition:
        return group_error
    return error


async def offset_fetch(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """OffsetFetch (key 9), versions 1–10: the committed offsets of groups.

    Up to version 7 a request has one group, from version 8 several. Without a list of topics (version 2) the
    response contains all offsets of the group. With `require_stable` (version 7) a partition with a pending
    transactional offset gets UNSTABLE_OFFSET_COMMIT. Version 10 identifies topics by id. As in Apache Kafka,
    a group or partition without an offset gets −1 without an error. Member id and epoch (version 9) belong to
    the newer group protocol and are ignored.
    """
    only_stable = getattr(request, "require_stable", False)
    if context.version < 8:
        return await _group_body(broker, request, context, only_stable=only_stable)
    unique = {group.group_id: group for group in request.groups}
    groups = [await _group_body(broker, each, context, only_stable=only_stable) for each in unique.values()]
    return {"groups": groups}


async def _group_body(
    broker: Broker, requested: Any, context: RequestContext, *, only_stable: bool
) -> dict[str, Any]:
    denial = context.denial((ResourceType.GROUP, requested.group_id))
    if denial is not None:
        return _group_error(requested, denial, context)
    topics = (
        _everything(broker, requested.group_id)
        if requested.topics is None
        else _requested(broker, requested.topics)
    )
    bodies = [
        await _fetch_topic_body(broker, requested.group_id, *topic, context, only_stable=only_stable)
        for topic in topics
        if requested.topics is not None or _is_visible(topic[0], context)
    ]
    # Offsets of a deleted topic cannot be returned by id.
    by_id = context.version >= 10
    kept = [
        body for body in bodies if requested.topics is not None or not by_id or body["topic_id"] is not None
    ]
    return {"group_id": requested.group_id, "error_code": ErrorCode.none, "topics": kept}


def _is_visible(name: str | None, context: RequestContext) -> bool:
    return name is None or context.allows(ResourceType.TOPIC, name)


def _group_error(requested: Any, code: ErrorCode, context: RequestContext) -> dict[str, Any]:
    topics = []
    if context.version < 2:  # which has no error of the group
        topics = [
            {
                "name": topic.name,
                "partitions": [_without_offset(index, code) for index in topic.partition_indexes],
            }
            for topic in requested.topics
        ]
    return {"group_id": requested.group_id, "error_code": code, "topics": topics}


RequestedTopic = tuple[str | None, Any, "Iterable[int]"]
"""The topic's name, if it exists, its id, and partitions."""


def _everything(broker: Broker, group_id: str) -> Iterator[RequestedTopic]:
    committed = sorted(broker.offsets.of_group(group_id))
    for name, partitions in groupby(committed, key=lambda where: where[0]):
        topic = broker.topics.get(name)
        yield name, None if topic is None else topic.id, [partition for _, partition in partitions]


def _requested(broker: Broker, topics: Iterable[Any]) -> Iterator[RequestedTopic]:
    for topic in topics:
        if hasattr(topic, "name"):
            yield topic.name, None, topic.partition_indexes
        else:
            known = None if topic.topic_id is None else broker.topics.by_id(topic.topic_id)
            yield None if known is None else known.name, topic.topic_id, topic.partition_indexes


async def _fetch_topic_body(
    broker: Broker,
    group_id: str,
    name: str | None,
    topic_id: Any,
    partitions: Iterable[int],
    context: RequestContext,
    *,
    only_stable: bool,
) -> dict[str, Any]:
    if not _is_visible(name, context):
        denied = ErrorCode.topic_authorization_failed
        refused = [_without_offset(partition, denied) for partition in partitions]
        return {"name": name if topic_id is None else "", "topic_id": topic_id, "partitions": refused}
    bodies = [
        _without_offset(partition, ErrorCode.unknown_topic_id)
        if name is None
        else _partition_body(broker, group_id, name, partition, only_stable=only_stable)
        async for partition in context.time_slice.over(partitions)
    ]
    return {"name": name or "", "topic_id": topic_id, "partitions": bodies}


def _partition_body(
    broker: Broker, group_id: str, topic: str, partition: int, *, only_stable: bool
) -> dict[str, Any]:
    if only_stable and broker.offsets.is_pending(group_id, topic, partition):
        return _without_offset(partition, ErrorCode.unstable_offset_commit)
    committed = broker.offsets.get(group_id, topic, partition)
    if committed is None:
        return _without_offset(partition, ErrorCode.none)
    return {
        "partition_index": partition,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": ErrorCode.none,
    }


def _without_offset(partition: int, error: ErrorCode) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "committed_offset": NO_OFFSET,
        "committed_leader_epoch": -1,
        "metadata": "",
        "error_code": error,
    }


async def offset_delete(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """OffsetDelete (key 47), version 0: deletes committed offsets of a group.

    As in Apache Kafka, topics that a member subscribes to get GROUP_SUBSCRIBED_TO_TOPIC, and a group gets
    NON_EMPTY_GROUP if its members are not consumers, because the broker cannot read their subscriptions.
    """
    denial = context.denial((ResourceType.GROUP, request.group_id))
    if denial is not None:
        return _delete_error(denial)
    if not request.group_id:
        return _delete_error(ErrorCode.invalid_group_id)
    error = broker.groups.check_offset_delete(request.group_id)
    if error is not ErrorCode.none:
        return _delete_error(error)
    results = {
        (topic.name, index): context.denial((ResourceType.TOPIC, topic.name))
        or _check_delete(broker, request.group_id, topic.name, index)
        for topic in request.topics
        async for index in context.time_slice.over(_indexes(topic))
    }
    try:
        accepted = [where for where, result in results.items() if result is ErrorCode.none]
        for first in range(0, len(accepted), DELETES_AT_ONCE):
            broker.offsets.delete(request.group_id, accepted[first : first + DELETES_AT_ONCE])
            await context.time_slice.pause()
        await broker.offsets.durable()
    except StorageError:
        return _delete_error(ErrorCode.coordinator_not_available)
    return {
        "error_code": ErrorCode.none,
        "topics": [_delete_topic_body(topic, results) for topic in request.topics],
    }


def _indexes(topic: Any) -> list[int]:
    return [partition.partition_index for partition in topic.partitions]


def _check_delete(broker: Broker, group_id: str, name: str, index: int) -> ErrorCode:
    topic = broker.topics.get(name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition
    is_read = broker.groups.is_subscribed(group_id, name)
    return ErrorCode.group_subscribed_to_topic if is_read else ErrorCode.none


def _delete_topic_body(topic: Any, results: Mapping[tuple[str, int], ErrorCode]) -> dict[str, Any]:
    partitions = [
        {"partition_index": index, "error_code": results[topic.name, index]} for index in _indexes(topic)
    ]
    return {"name": topic.name, "partitions": partitions}


def _delete_error(error: ErrorCode) -> dict[str, Any]:
    return {"error_code": error, "topics": []}
