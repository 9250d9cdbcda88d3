"""OffsetCommit (key 8), versions 2–10: commits the offsets of a group.

Members commit with their generation. Clients without a membership commit with generation −1, which is allowed
while the group has no members, and creates a missing group. A commit counts as a heartbeat. Versions 2–4 may
set a retention time; version 10 identifies topics by id.

As in Apache Kafka, each partition has its own error: if one does not exist, or its metadata is too long, the
other offsets are committed. Share groups have no committed offsets and get GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.groups.records import NO_TIME, CommittedOffset
from headrace.broker.record_fields import fits_string
from headrace.broker.security.acls import ResourceType
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.topics import Topic

VERSIONS: Final = (2, 10)
TOPIC_DENIED: Final = ErrorCode.topic_authorization_failed
COMMITS_AT_ONCE: Final = 200
"""Offsets that are appended in one batch; other connections are served between batches."""


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Commit the offset of each partition; returns an error code for each."""
    denial = context.denial((ResourceType.GROUP, request.group_id))
    if denial is not None:
        return {"topics": [_error(requested, denial) for requested in request.topics]}
    topics = [(requested, _find(broker, requested)) for requested in request.topics]
    denied = [
        _error(requested, TOPIC_DENIED)
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
        bodies.append(await _topic_body(broker, requested, topic, group_error, context))
    return {"topics": [*bodies, *denied]}


def _is_denied(requested: Any, topic: Topic | None, context: RequestContext) -> bool:
    name = getattr(requested, "name", None) if topic is None else topic.name
    return name is not None and not context.allows(ResourceType.TOPIC, name)


def _error(requested: Any, code: ErrorCode) -> dict[str, Any]:
    partitions = [
        {"partition_index": partition.partition_index, "error_code": code}
        for partition in requested.partitions
    ]
    return {
        "name": getattr(requested, "name", ""),
        "topic_id": getattr(requested, "topic_id", None),
        "partitions": partitions,
    }


def _find(broker: Broker, requested: Any) -> Topic | None:
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


async def _topic_body(
    broker: Broker, requested: Any, topic: Topic | None, group_error: ErrorCode, context: RequestContext
) -> dict[str, Any]:
    partitions = [
        {
            "partition_index": partition.partition_index,
            "error_code": _result(broker, requested, topic, partition, group_error),
        }
        async for partition in context.time_slice.over(requested.partitions)
    ]
    return {
        "name": getattr(requested, "name", ""),
        "topic_id": getattr(requested, "topic_id", None),
        "partitions": partitions,
    }


def _result(
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
