"""OffsetFetch (key 9), versions 1–10: the committed offsets of groups.

Up to version 7 a request has one group, from version 8 several. Without a list of topics (version 2) the
response contains all offsets of the group. With `require_stable` (version 7) a partition with a pending
transactional offset gets UNSTABLE_OFFSET_COMMIT. Version 10 identifies topics by id. As in Apache Kafka, a
group or partition without an offset gets −1 without an error. Member id and epoch (version 9) belong to the
newer group protocol and are ignored.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.security.acls import ResourceType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (1, 10)

NO_OFFSET: Final = -1


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns the offsets of each group; duplicates in the request are ignored."""
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
        await _topic_body(broker, requested.group_id, *topic, context, only_stable=only_stable)
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


async def _topic_body(
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
