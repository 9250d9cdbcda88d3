"""DescribeProducers (key 61), version 0: the producer state of partitions.

The response contains epoch, last sequence, last timestamp and the start of an open transaction. A producer
with an open transaction whose producer id belongs to no transactional id is hanging.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.request import NOT_AUTHORIZED
from headrace.broker.security.acls import ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.storage.producers import ProducerDescription

VERSIONS: Final = (0, 0)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns the producers of each partition; duplicates in the request are ignored."""
    indexes: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        indexes.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = []
    for name, unique in indexes.items():
        partitions = [
            _describe(broker, name, index, context) async for index in context.time_slice.over(unique)
        ]
        topics.append({"name": name, "partitions": partitions})
    return {"topics": topics}


def _describe(broker: Broker, topic: str, index: int, context: RequestContext) -> Mapping[str, Any]:
    if not context.allows(ResourceType.TOPIC, topic):
        return _refused(index, ErrorCode.topic_authorization_failed, NOT_AUTHORIZED)
    known = broker.topics.get(topic)
    partition = None if known is None else known.partition(index)
    if partition is None:
        message = f"partition {index} of topic {topic!r} does not exist"
        return _refused(index, ErrorCode.unknown_topic_or_partition, message)
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "error_message": None,
        "active_producers": [_active(producer) for producer in partition.log.producers.describe()],
    }


def _refused(index: int, code: ErrorCode, message: str) -> Mapping[str, Any]:
    return {
        "partition_index": index,
        "error_code": code,
        "error_message": message,
        "active_producers": [],
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
