"""OffsetCommit (8), versions 2–10: a group keeps where it goes on in each partition.

Members commit with their generation; clients that take no part in rebalances commit with generation −1 while
the group has no members, and bring it into being when it is missing. A commit counts as a heartbeat. Versions
2–4 may name a retention of their own; version 10 names topics by id.

A partition that is not there, a note that is too long and a group that refuses the client each have their
error; the other partitions are kept all the same. Under the name of a share group nothing is kept in any
version (GROUP_ID_NOT_FOUND): it has no offsets. As in Apache Kafka.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.groups.records import NO_TIME, CommittedOffset
from headrace.broker.record_fields import fits_string
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.topics import Topic

VERSIONS: Final = (2, 10)
COMMITS_AT_ONCE: Final = 200
"""Offsets that are written together; the loop has other work between two such batches."""


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """What became of the offset of each partition."""
    topics = [(asked, _find(broker, asked)) for asked in request.topics]
    group_error = ErrorCode.none
    if any(topic is not None for _, topic in topics):
        group_error = _check_group(broker, request, context.version)
    if group_error is ErrorCode.none:
        group_error = await _commit(broker, request, topics, context)
    bodies = []
    for asked, topic in topics:
        bodies.append(await _topic_body(broker, asked, topic, group_error, context))
    return {"topics": bodies}


def _find(broker: Broker, asked: Any) -> Topic | None:
    if not hasattr(asked, "topic_id"):
        return broker.topics.get(asked.name)
    return None if asked.topic_id is None else broker.topics.by_id(asked.topic_id)


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
    # Clients before version 9 know of no missing groups.
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
        for asked, topic in topics
        if topic is not None
        for partition in asked.partitions
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
    broker: Broker, asked: Any, topic: Topic | None, group_error: ErrorCode, context: RequestContext
) -> dict[str, Any]:
    partitions = [
        {
            "partition_index": partition.partition_index,
            "error_code": _result(broker, asked, topic, partition, group_error),
        }
        async for partition in context.time_slice.over(asked.partitions)
    ]
    return {
        "name": getattr(asked, "name", ""),
        "topic_id": getattr(asked, "topic_id", None),
        "partitions": partitions,
    }


def _result(
    broker: Broker, asked: Any, topic: Topic | None, partition: Any, group_error: ErrorCode
) -> ErrorCode:
    if topic is None:
        by_id = hasattr(asked, "topic_id")
        return ErrorCode.unknown_topic_id if by_id else ErrorCode.unknown_topic_or_partition
    error = _check_partition(broker, topic, partition)
    # A group that refuses the client says so before it looks at notes.
    if group_error is not ErrorCode.none and error is not ErrorCode.unknown_topic_or_partition:
        return group_error
    return error
