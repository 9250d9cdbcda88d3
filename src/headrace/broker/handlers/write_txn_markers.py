"""WriteTxnMarkers (key 27), versions 1–2: the abort of a hanging transaction, as an admin client sends it.

In a cluster brokers send this to one another; here only operators do, and only to abort. Where the
coordinator knows the transaction it is aborted as a whole; Apache Kafka would write the one marker and tear
it apart. A commit is refused with CLUSTER_AUTHORIZATION_FAILED, for only the coordinator may decide that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.state_log import Producer
from headrace.broker.transactions.transaction import ProducerFenced, TopicPartition, TransactionError
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (1, 2)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """A code for each partition of each marker."""
    return {"markers": [await _write(broker, marker, context) for marker in request.markers]}


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
