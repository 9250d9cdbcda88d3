"""OffsetFetch (9), versions 1–10: where groups go on reading.

Up to version 7 one group is asked for, from 8 on several; no list of topics means all of the group's (version
2). From version 7 on a client may insist on stable offsets: a partition whose offset waits for the end of a
transaction is then UNSTABLE_OFFSET_COMMIT. Version 10 names topics by id. A group or partition without an
offset has −1 and no error. Member id and epoch of version 9 belong to groups of the newer protocol, and are
not looked at. As in Apache Kafka.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (1, 10)

NO_OFFSET: Final = -1


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """The offsets of each group that was asked for; one that is named twice is answered once."""
    only_stable = getattr(request, "require_stable", False)
    if context.version < 8:
        return await _group_body(broker, request, context, only_stable=only_stable)
    once = {group.group_id: group for group in request.groups}
    groups = [await _group_body(broker, each, context, only_stable=only_stable) for each in once.values()]
    return {"groups": groups}


async def _group_body(
    broker: Broker, asked: Any, context: RequestContext, *, only_stable: bool
) -> dict[str, Any]:
    topics = _everything(broker, asked.group_id) if asked.topics is None else _asked(broker, asked.topics)
    bodies = [
        await _topic_body(broker, asked.group_id, *topic, context, only_stable=only_stable)
        for topic in topics
    ]
    # What is left of a topic that is gone has no id to be named by.
    by_id = context.version >= 10
    kept = [body for body in bodies if asked.topics is not None or not by_id or body["topic_id"] is not None]
    return {"group_id": asked.group_id, "error_code": ErrorCode.none, "topics": kept}


Asked = tuple[str | None, Any, "Iterable[int]"]
"""A topic's name, if it has one, its id, and the partitions."""


def _everything(broker: Broker, group_id: str) -> Iterator[Asked]:
    committed = sorted(broker.offsets.of_group(group_id))
    for name, partitions in groupby(committed, key=lambda where: where[0]):
        topic = broker.topics.get(name)
        yield name, None if topic is None else topic.id, [partition for _, partition in partitions]


def _asked(broker: Broker, topics: Iterable[Any]) -> Iterator[Asked]:
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
