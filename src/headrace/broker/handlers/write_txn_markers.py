"""WriteTxnMarkers (key 27), versions 1–2: aborts a hanging transaction for an administrator.

In a cluster, brokers send this request to each other. Here only admin clients do, and only to abort: a commit
gets CLUSTER_AUTHORIZATION_FAILED. If the coordinator knows the transaction, it is aborted in all partitions;
Apache Kafka writes only the one marker, which leaves the transaction inconsistent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.security.acls import Operation, ResourceType
from headrace.broker.state_log import Producer
from headrace.broker.transactions.transaction import ProducerFenced, TopicPartition, TransactionError
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (1, 2)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Abort the transactions; returns an error code for each partition of each marker."""
    if not context.allows(ResourceType.CLUSTER) and not context.allows_operation(
        Operation.CLUSTER_ACTION, ResourceType.CLUSTER
    ):
        return {"markers": [_denied(marker) for marker in request.markers]}
    return {"markers": [await _write(broker, marker, context) for marker in request.markers]}


def _denied(marker: Any) -> Mapping[str, Any]:
    denied = ErrorCode.cluster_authorization_failed
    topics = [
        {
            "name": topic.name,
            "partitions": [
                {"partition_index": index, "error_code": denied} for index in topic.partition_indexes
            ],
        }
        for topic in marker.topics
    ]
    return {"producer_id": marker.producer_id, "topics": topics}


async def _write(broker: Broker, marker: Any, context: RequestContext) -> Mapping[str, Any]:
    topics = []
    for topic in marker.topics:
        partitions = [
            {"partition_index": index, "error_code": await _abort(broker, marker, topic.name, index)}
            async for index in context.time_slice.over(topic.partition_indexes)
        ]
        topics.append({"name": topic.name, "partitions": partitions})
    return {"producer_id": marker.producer_id, "topics": topics}


async def _abort(broker: Broker, marker: Any, topic: str, index: int) -> ErrorCode:
    known = broker.topics.get(topic)
    if known is None or known.partition(index) is None:
        return ErrorCode.unknown_topic_or_partition
    if marker.transaction_result:
        return ErrorCode.cluster_authorization_failed
    producer = Producer(marker.producer_id, marker.producer_epoch)
    try:
        await broker.transactions.abort_partition(TopicPartition(topic, index), producer)
    except ProducerFenced:
        return ErrorCode.invalid_producer_epoch
    except TransactionError as fault:
        return fault.code
    except HeadraceError as fault:
        return error_code(fault)
    return ErrorCode.none
