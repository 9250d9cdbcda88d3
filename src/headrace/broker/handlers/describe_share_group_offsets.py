"""DescribeShareGroupOffsets (key 90), versions 0–1: start offsets and lag of share groups.

The lag (version 1) counts records that are not acknowledged, including acquired ones. A partition that the
group has not started to read has start offset −1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.handlers.describe_configs import NOT_AUTHORIZED
from headrace.broker.security.acls import ResourceType
from headrace.protocol.responses import LazyArray

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 1)
NOT_BEGUN: Final = -1


def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
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
