"""DescribeProducers (key 61), version 0.

The producers that a partition knows: epoch, last sequence, last use, and where an open transaction begins. A
producer that is shown here with an open transaction, and whose id no transactional id has, is hanging.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.storage.producers import ProducerDescription

VERSIONS: Final = (0, 0)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """The producers of each partition that was asked for; one that is named twice is described once."""
    indexes: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        indexes.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = []
    for name, once in indexes.items():
        partitions = [_describe(broker, name, index) async for index in context.time_slice.over(once)]
        topics.append({"name": name, "partitions": partitions})
    return {"topics": topics}


def _describe(broker: Broker, topic: str, index: int) -> Mapping[str, Any]:
    known = broker.topics.get(topic)
    partition = None if known is None else known.partition(index)
    if partition is None:
        return {
            "partition_index": index,
            "error_code": ErrorCode.unknown_topic_or_partition,
            "error_message": f"there is no partition {index} of topic {topic!r}",
            "active_producers": [],
        }
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "error_message": None,
        "active_producers": [_active(producer) for producer in partition.log.producers.describe()],
    }


def _active(producer: ProducerDescription) -> Mapping[str, Any]:
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "last_sequence": producer.last_sequence,
        "last_timestamp": producer.last_used_ms,
        "coordinator_epoch": producer.coordinator_epoch,
        "current_txn_start_offset": producer.first_open_offset,
    }
