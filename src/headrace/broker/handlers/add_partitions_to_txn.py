"""AddPartitionsToTxn (key 24), versions 0–5: adds partitions to a transaction before they are written.

Up to version 3 a client adds partitions to its own transaction. Versions 4 and 5 are used between brokers,
and need the right of one (ClusterAction): they add or only verify partitions of several transactions. If one
partition of a transaction does not exist, none is added, and the others get OPERATION_NOT_ATTEMPTED.

Below version 2 a fenced producer gets INVALID_PRODUCER_EPOCH. Verifying a partition that was not added gives
TRANSACTION_ABORTABLE from version 5, and INVALID_TXN_STATE in version 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.security.acls import ResourceType
from headrace.broker.state_log import Producer
from headrace.broker.transactions.transaction import TopicPartition, TransactionError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 5)
BATCHED_FROM: Final = 4
FENCED_FROM: Final = 2
ABORTABLE_FROM: Final = 5

Codes = dict[TopicPartition, ErrorCode]


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns an error code for each partition of each transaction."""
    if context.version < BATCHED_FROM:
        codes = await _add(
            broker,
            request.v3_and_below_transactional_id,
            Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
            _partitions(request.v3_and_below_topics),
            context,
        )
        await context.time_slice.pause()
        return {"results_by_topic_v3_and_below": _by_topic(codes)}
    if not context.allows(ResourceType.CLUSTER):
        return {"error_code": ErrorCode.cluster_authorization_failed, "results_by_transaction": []}
    results = [await _process(broker, transaction, context) for transaction in request.transactions]
    return {"error_code": ErrorCode.none, "results_by_transaction": results}


async def _process(broker: Broker, transaction: Any, context: RequestContext) -> Mapping[str, Any]:
    producer = Producer(transaction.producer_id, transaction.producer_epoch)
    partitions = _partitions(transaction.topics)
    if transaction.verify_only:
        codes = await _verify(broker, transaction.transactional_id, producer, partitions, context)
    else:
        codes = await _add(broker, transaction.transactional_id, producer, partitions, context)
    await context.time_slice.pause()
    return {"transactional_id": transaction.transactional_id, "topic_results": _by_topic(codes)}


def _partitions(topics: Sequence[Any]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


async def _add(
    broker: Broker,
    transactional_id: str,
    producer: Producer,
    partitions: list[TopicPartition],
    context: RequestContext,
) -> Codes:
    version = context.version
    if version < BATCHED_FROM:
        denial = context.denial((ResourceType.TRANSACTIONAL_ID, transactional_id))
        if denial is not None:
            return dict.fromkeys(partitions, denial)
    missing = await _missing(broker, partitions, context)
    if missing:
        return missing
    try:
        await broker.transactions.add_partitions(transactional_id, producer, partitions)
    except TransactionError as fault:
        code = fault.code_in(version, fenced_from=FENCED_FROM, abortable_from=ABORTABLE_FROM)
        return dict.fromkeys(partitions, code)
    return dict.fromkeys(partitions, ErrorCode.none)


async def _verify(
    broker: Broker,
    transactional_id: str,
    producer: Producer,
    partitions: list[TopicPartition],
    context: RequestContext,
) -> Codes:
    version = context.version
    codes: Codes = await _missing(broker, partitions, context)
    if codes:
        return codes
    async for partition in context.time_slice.over(partitions):
        try:
            broker.transactions.check_partition(transactional_id, producer, partition)
            codes[partition] = ErrorCode.none
        except TransactionError as fault:
            codes[partition] = fault.code_in(version, abortable_from=ABORTABLE_FROM)
    return codes


async def _missing(broker: Broker, partitions: list[TopicPartition], context: RequestContext) -> Codes:
    """Error codes for all partitions if one of them cannot be added; empty if all can."""
    codes = {
        partition: _check(broker, partition, context)
        async for partition in context.time_slice.over(partitions)
    }
    if not any(codes.values()):
        return {}
    return {partition: code or ErrorCode.operation_not_attempted for partition, code in codes.items()}


def _check(broker: Broker, partition: TopicPartition, context: RequestContext) -> ErrorCode:
    if context.version < BATCHED_FROM and not context.allows(ResourceType.TOPIC, partition.topic):
        return ErrorCode.topic_authorization_failed
    topic = broker.topics.get(partition.topic)
    if topic is None or not 0 <= partition.partition < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.none


def _by_topic(codes: Codes) -> list[Mapping[str, Any]]:
    topics: dict[str, list[Mapping[str, Any]]] = {}
    for partition, code in codes.items():
        result = {"partition_index": partition.partition, "partition_error_code": code}
        topics.setdefault(partition.topic, []).append(result)
    return [{"name": name, "results_by_partition": results} for name, results in topics.items()]
