"""AddPartitionsToTxn (key 24), versions 0–5.

Up to version 3 a client adds the partitions that it is about to write. From version 4 on the form is the one
that brokers use among themselves: several transactions at once, to be added or only verified. It is all or
nothing: when one partition of a transaction does not exist, the others get OPERATION_NOT_ATTEMPTED.
Below version 2 a fenced producer gets INVALID_PRODUCER_EPOCH. A partition that is verified and was not
added gets TRANSACTION_ABORTABLE from version 5 on, and INVALID_TXN_STATE in version 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

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
    """A code for each partition of each transaction."""
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
    results = [await _answer(broker, transaction, context) for transaction in request.transactions]
    return {"error_code": ErrorCode.none, "results_by_transaction": results}


async def _answer(broker: Broker, transaction: Any, context: RequestContext) -> Mapping[str, Any]:
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
    """A code for every partition when one of them does not exist; nothing when they all do."""
    known = {
        partition async for partition in context.time_slice.over(partitions) if _exists(broker, partition)
    }
    if len(known) == len(set(partitions)):
        return {}
    return {
        partition: ErrorCode.operation_not_attempted
        if partition in known
        else ErrorCode.unknown_topic_or_partition
        async for partition in context.time_slice.over(partitions)
    }


def _exists(broker: Broker, partition: TopicPartition) -> bool:
    topic = broker.topics.get(partition.topic)
    return topic is not None and 0 <= partition.partition < len(topic.partitions)


def _by_topic(codes: Codes) -> list[Mapping[str, Any]]:
    topics: dict[str, list[Mapping[str, Any]]] = {}
    for partition, code in codes.items():
        result = {"partition_index": partition.partition, "partition_error_code": code}
        topics.setdefault(partition.topic, []).append(result)
    return [{"name": name, "results_by_partition": results} for name, results in topics.items()]
