"""DescribeShareGroupOffsets (key 90), versions 0–1: where share groups start, and how much is left to do.

The lag (version 1) counts records that are not done; what members hold is not done. A partition that the
group has not begun has the start −1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.protocol.responses import LazyArray

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 1)
NOT_BEGUN: Final = -1


def handle(broker: Broker, request: Any, _context: RequestContext) -> Mapping[str, Any]:
    """Each group that was asked for, in that order; one that is named twice is described once."""
    once = {asked.group_id: asked for asked in request.groups}
    return {"groups": LazyArray(once.values(), lambda asked: _describe(broker, asked))}


def _describe(broker: Broker, asked: Any) -> Mapping[str, Any]:
    if asked.group_id not in broker.shares:
        message = f"Group {asked.group_id} not found."
        return _group(asked, [], ErrorCode.group_id_not_found, message)
    wanted = _all(broker, asked.group_id) if asked.topics is None else _asked(asked)
    topics = [_topic(broker, asked.group_id, name, indexes) for name, indexes in wanted.items()]
    return _group(asked, topics, ErrorCode.none, None)


def _group(asked: Any, topics: list[Mapping[str, Any]], code: int, message: str | None) -> Mapping[str, Any]:
    return {"group_id": asked.group_id, "topics": topics, "error_code": code, "error_message": message}


def _asked(asked: Any) -> dict[str, list[int]]:
    return {topic.topic_name: list(topic.partitions) for topic in asked.topics}


def _all(broker: Broker, group_id: str) -> dict[str, list[int]]:
    wanted: dict[str, list[int]] = {}
    for share in broker.shares.of_group(group_id):
        wanted.setdefault(share.partition.topic, []).append(share.key.partition)
    return {name: sorted(indexes) for name, indexes in sorted(wanted.items())}


def _topic(broker: Broker, group_id: str, name: str, indexes: list[int]) -> Mapping[str, Any]:
    topic = broker.topics.get(name)
    partitions = []
    for index in indexes:
        if topic is None or topic.partition(index) is None:
            code, message = ErrorCode.unknown_topic_or_partition, "there is no such partition"
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
