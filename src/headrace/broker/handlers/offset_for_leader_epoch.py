"""OffsetForLeaderEpoch (key 23), versions 2–4: the end of leader epochs.

The only leader epoch is 0, which ends at the high watermark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.security.acls import Operation, ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (2, 4)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns the end offset of each requested epoch."""
    topics = []
    for topic in request.topics:
        partitions = [
            _look_up(broker, topic.topic, p, context) async for p in context.time_slice.over(topic.partitions)
        ]
        topics.append({"topic": topic.topic, "partitions": partitions})
    return {"topics": topics}


def _look_up(broker: Broker, name: str, item: Any, context: RequestContext) -> Mapping[str, Any]:
    if not context.allows(ResourceType.TOPIC, name) and not context.allows_operation(
        Operation.CLUSTER_ACTION, ResourceType.CLUSTER
    ):
        return {"error_code": ErrorCode.topic_authorization_failed, "partition": item.partition}
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
