"""OffsetForLeaderEpoch (key 23), versions 2–4. There is one leader epoch: 0 ends at the log end offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (2, 4)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """The end of each epoch that was asked about."""
    topics = []
    for topic in request.topics:
        partitions = [
            _look_up(broker, topic.topic, p) async for p in context.time_slice.over(topic.partitions)
        ]
        topics.append({"topic": topic.topic, "partitions": partitions})
    return {"topics": topics}


def _look_up(broker: Broker, name: str, item: Any) -> Mapping[str, Any]:
    topic = broker.topics.get(name)
    partition = topic.partition(item.partition) if topic is not None else None
    if partition is None:
        return {"error_code": ErrorCode.unknown_topic_or_partition, "partition": item.partition}
    if item.current_leader_epoch > 0:
        return {"error_code": ErrorCode.unknown_leader_epoch, "partition": item.partition}
    if item.leader_epoch != 0:
        return {"error_code": 0, "partition": item.partition, "leader_epoch": -1, "end_offset": -1}
    end = partition.log.high_watermark
    return {"error_code": 0, "partition": item.partition, "leader_epoch": 0, "end_offset": end}
