"""Administration of transactions: describing and listing them, and aborting one with WriteTxnMarkers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.regex import InvalidExpression, Regex
from headrace.broker.request import NOT_AUTHORIZED
from headrace.broker.security.acls import Operation, ResourceType
from headrace.broker.state_log import Producer
from headrace.broker.transactions.transaction import (
    ProducerFenced,
    TopicPartition,
    TransactionError,
    TransactionState,
)
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.transactions.transaction import TransactionMetadata
    from headrace.storage.producers import ProducerDescription


async def describe_producers(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """DescribeProducers (key 61), version 0: the producer state of partitions.

    The response contains epoch, last sequence, last timestamp and the start of an open transaction. A
    producer with an open transaction whose producer id belongs to no transactional id is hanging.
    """
    indexes: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        indexes.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = []
    for name, unique in indexes.items():
        partitions = [
            _describe_partition(broker, name, index, context)
            async for index in context.time_slice.over(unique)
        ]
        topics.append({"name": name, "partitions": partitions})
    return {"topics": topics}


def _describe_partition(broker: Broker, topic: str, index: int, context: RequestContext) -> Mapping[str, Any]:
    if not context.allows(ResourceType.TOPIC, topic):
        return _refused_partition(index, ErrorCode.topic_authorization_failed, NOT_AUTHORIZED)
    known = broker.topics.get(topic)
    partition = None if known is None else known.partition(index)
    if partition is None:
        message = f"partition {index} of topic {topic!r} does not exist"
        return _refused_partition(index, ErrorCode.unknown_topic_or_partition, message)
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "error_message": None,
        "active_producers": [_active(producer) for producer in partition.log.producers.describe()],
    }


def _refused_partition(index: int, code: ErrorCode, message: str) -> Mapping[str, Any]:
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


async def describe_transactions(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """DescribeTransactions (key 65), version 0: the state and partitions of transactional ids.

    An unknown id gets TRANSACTIONAL_ID_NOT_FOUND, an empty one INVALID_REQUEST. Without a transaction the
    start time is −1.
    """
    unique = dict.fromkeys(request.transactional_ids)
    return {
        "transaction_states": [
            _describe_transaction(broker, name, context) async for name in context.time_slice.over(unique)
        ]
    }


def _describe_transaction(
    broker: Broker, transactional_id: str, context: RequestContext
) -> Mapping[str, Any]:
    denial = context.denial((ResourceType.TRANSACTIONAL_ID, transactional_id))
    if denial is not None:
        return _refused_transaction(transactional_id, denial)
    transaction = broker.transactions.describe(transactional_id)
    if transaction is not None:
        return _known(transaction, context)
    code = ErrorCode.transactional_id_not_found if transactional_id else ErrorCode.invalid_request
    return _refused_transaction(transactional_id, code)


def _refused_transaction(transactional_id: str, code: ErrorCode) -> Mapping[str, Any]:
    return {
        "error_code": code,
        "transactional_id": transactional_id,
        "transaction_state": "",
        "transaction_timeout": 0,
        "transaction_start_time": 0,
        "producer_id": 0,
        "producer_epoch": 0,
        "topics": [],
    }


def _known(transaction: TransactionMetadata, context: RequestContext) -> Mapping[str, Any]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
        if not context.allows(ResourceType.TOPIC, topic):
            continue
        topics.setdefault(topic, []).append(partition)
    return {
        "error_code": ErrorCode.none,
        "transactional_id": transaction.transactional_id,
        "transaction_state": transaction.state.label,
        "transaction_timeout": transaction.timeout_ms,
        "transaction_start_time": transaction.started_ms,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.epoch,
        "topics": [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()],
    }


async def list_transactions(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """ListTransactions (key 66), versions 0–2: the transactional ids that match all filters.

    Filters: states, producer ids, a minimum duration in milliseconds (version 1), and a regular expression
    for the transactional id (version 2). Unknown state names are returned in `unknown_state_filters`.

    As with RE2 in Apache Kafka, matching takes linear time. `headrace.broker.regex` lists the expressions
    that get INVALID_REGULAR_EXPRESSION.
    """
    text = getattr(request, "transactional_id_pattern", None)
    try:
        pattern = Regex(text) if text else None
    except InvalidExpression:
        return {
            "error_code": ErrorCode.invalid_regular_expression,
            "unknown_state_filters": [],
            "transaction_states": [],
        }
    labels = {state.label for state in TransactionState}
    states, producers = set(request.state_filters), set(request.producer_id_filters)
    longer_than_ms = getattr(request, "duration_filter", -1)
    now_ms = broker.clock.now_ms()
    chosen = [
        transaction
        async for transaction in context.time_slice.over(broker.transactions.list_all())
        if context.allows(ResourceType.TRANSACTIONAL_ID, transaction.transactional_id)
        and (not states or transaction.state.label in states)
        and (not producers or transaction.producer_id in producers)
        and (longer_than_ms < 0 or now_ms - transaction.started_ms > longer_than_ms)
        and (
            pattern is None or await context.time_slice.run(pattern.match_steps(transaction.transactional_id))
        )
    ]
    return {
        "error_code": ErrorCode.none,
        "unknown_state_filters": [name for name in request.state_filters if name not in labels],
        "transaction_states": [_listed(transaction) for transaction in chosen],
    }


def _listed(transaction: TransactionMetadata) -> Mapping[str, Any]:
    return {
        "transactional_id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "transaction_state": transaction.state.label,
    }


async def write_txn_markers(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """WriteTxnMarkers (key 27), versions 1–2: aborts a hanging transaction for an administrator.

    In a cluster, brokers send this request to each other. Here only admin clients do, and only to abort: a
    commit gets CLUSTER_AUTHORIZATION_FAILED. If the coordinator knows the transaction, it is aborted in all
    partitions; Apache Kafka writes only the one marker, which leaves the transaction inconsistent.
    """
    if not context.allows(ResourceType.CLUSTER) and not context.allows_operation(
        Operation.CLUSTER_ACTION, ResourceType.CLUSTER
    ):
        return {"markers": [_denied(marker) for marker in request.markers]}
    return {"markers": [await _abort_transaction(broker, marker, context) for marker in request.markers]}


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


async def _abort_transaction(broker: Broker, marker: Any, context: RequestContext) -> Mapping[str, Any]:
    topics = []
    for topic in marker.topics:
        partitions = [
            {
                "partition_index": index,
                "error_code": await _abort_partition(broker, marker, topic.name, index),
            }
            async for index in context.time_slice.over(topic.partition_indexes)
        ]
        topics.append({"name": topic.name, "partitions": partitions})
    return {"producer_id": marker.producer_id, "topics": topics}


async def _abort_partition(broker: Broker, marker: Any, topic: str, index: int) -> ErrorCode:
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
