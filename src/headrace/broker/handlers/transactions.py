"""Transactions of producers, from InitProducerId to EndTxn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.groups.records import CommittedOffset
from headrace.broker.handlers.offsets import COMMITS_AT_ONCE
from headrace.broker.security.acls import Operation, ResourceType
from headrace.broker.state_log import Producer
from headrace.broker.transactions.coordinator import OFFSETS
from headrace.broker.transactions.transaction import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    ConcurrentTransactions,
    ProducerFenced,
    TopicPartition,
    TransactionError,
)
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext


INIT_FENCED_FROM: Final = 4
BATCHED_FROM: Final = 4
FENCED_FROM: Final = 2
ADD_ABORTABLE_FROM: Final = 5

PartitionCodes = dict[TopicPartition, ErrorCode]

BUMP_FROM: Final = 5
COMMIT_ABORTABLE_FROM: Final = 4
IMPLICIT_FROM: Final = 5

OffsetCodes = dict[tuple[str, int], ErrorCode]


async def init_producer_id(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """InitProducerId (key 22), versions 0–5: allocates producer ids and epochs.

    An idempotent producer gets a new producer id. A transactional producer gets the producer id of its
    transactional id with a new epoch, which fences older producers. From version 3 a producer may send its
    current id and epoch to recover from an error. Below version 4 a fenced producer gets
    INVALID_PRODUCER_EPOCH instead of PRODUCER_FENCED. Version 6 (two-phase commit) is unstable in Apache
    Kafka and not served.

    Apache Kafka responds CONCURRENT_TRANSACTIONS while it aborts the transaction of an older producer; here
    the response waits for the abort.
    """
    denial = _check_access(request.transactional_id, context)
    if denial is not None:
        return _init_error(denial)
    current = Producer(
        getattr(request, "producer_id", NO_PRODUCER_ID), getattr(request, "producer_epoch", NO_EPOCH)
    )
    if (current.producer_id == NO_PRODUCER_ID) != (current.epoch == NO_EPOCH):
        return _init_error(ErrorCode.invalid_request)
    timeout_ms = round(request.transaction_timeout.total_seconds() * 1000)
    try:
        producer = await broker.transactions.initialize(
            request.transactional_id, timeout_ms, None if current.epoch == NO_EPOCH else current
        )
    except TransactionError as fault:
        return _init_error(fault.code_in(context.version, fenced_from=INIT_FENCED_FROM))
    return {
        "error_code": ErrorCode.none,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
    }


def _check_access(transactional_id: str | None, context: RequestContext) -> ErrorCode | None:
    if transactional_id is not None:
        return context.denial((ResourceType.TRANSACTIONAL_ID, transactional_id))
    if context.allows(ResourceType.CLUSTER) or context.allows_any(Operation.WRITE, ResourceType.TOPIC):
        return None
    return ErrorCode.cluster_authorization_failed


def _init_error(code: ErrorCode) -> Mapping[str, Any]:
    return {"error_code": code, "producer_id": NO_PRODUCER_ID, "producer_epoch": NO_EPOCH}


async def add_partitions_to_txn(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """AddPartitionsToTxn (key 24), versions 0–5: adds partitions to a transaction before they are written.

    Up to version 3 a client adds partitions to its own transaction. Versions 4 and 5 are used between
    brokers, and need the right of one (ClusterAction): they add or only verify partitions of several
    transactions. If one partition of a transaction does not exist, none is added, and the others get
    OPERATION_NOT_ATTEMPTED.

    Below version 2 a fenced producer gets INVALID_PRODUCER_EPOCH. Verifying a partition that was not added
    gives TRANSACTION_ABORTABLE from version 5, and INVALID_TXN_STATE in version 4.
    """
    if context.version < BATCHED_FROM:
        codes = await _add(
            broker,
            request.v3_and_below_transactional_id,
            Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
            _added_partitions(request.v3_and_below_topics),
            context,
        )
        await context.time_slice.pause()
        return {"results_by_topic_v3_and_below": _results_by_topic(codes)}
    if not context.allows(ResourceType.CLUSTER):
        return {"error_code": ErrorCode.cluster_authorization_failed, "results_by_transaction": []}
    results = [await _add_or_verify(broker, transaction, context) for transaction in request.transactions]
    return {"error_code": ErrorCode.none, "results_by_transaction": results}


async def _add_or_verify(broker: Broker, transaction: Any, context: RequestContext) -> Mapping[str, Any]:
    producer = Producer(transaction.producer_id, transaction.producer_epoch)
    partitions = _added_partitions(transaction.topics)
    if transaction.verify_only:
        codes = await _verify(broker, transaction.transactional_id, producer, partitions, context)
    else:
        codes = await _add(broker, transaction.transactional_id, producer, partitions, context)
    await context.time_slice.pause()
    return {"transactional_id": transaction.transactional_id, "topic_results": _results_by_topic(codes)}


def _added_partitions(topics: Sequence[Any]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


async def _add(
    broker: Broker,
    transactional_id: str,
    producer: Producer,
    partitions: list[TopicPartition],
    context: RequestContext,
) -> PartitionCodes:
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
        code = fault.code_in(version, fenced_from=FENCED_FROM, abortable_from=ADD_ABORTABLE_FROM)
        return dict.fromkeys(partitions, code)
    return dict.fromkeys(partitions, ErrorCode.none)


async def _verify(
    broker: Broker,
    transactional_id: str,
    producer: Producer,
    partitions: list[TopicPartition],
    context: RequestContext,
) -> PartitionCodes:
    version = context.version
    codes: PartitionCodes = await _missing(broker, partitions, context)
    if codes:
        return codes
    async for partition in context.time_slice.over(partitions):
        try:
            broker.transactions.check_partition(transactional_id, producer, partition)
            codes[partition] = ErrorCode.none
        except TransactionError as fault:
            codes[partition] = fault.code_in(version, abortable_from=ADD_ABORTABLE_FROM)
    return codes


async def _missing(
    broker: Broker, partitions: list[TopicPartition], context: RequestContext
) -> PartitionCodes:
    """Error codes for all partitions if one of them cannot be added; empty if all can."""
    codes = {
        partition: _check_partition(broker, partition, context)
        async for partition in context.time_slice.over(partitions)
    }
    if not any(codes.values()):
        return {}
    return {partition: code or ErrorCode.operation_not_attempted for partition, code in codes.items()}


def _check_partition(broker: Broker, partition: TopicPartition, context: RequestContext) -> ErrorCode:
    if context.version < BATCHED_FROM and not context.allows(ResourceType.TOPIC, partition.topic):
        return ErrorCode.topic_authorization_failed
    topic = broker.topics.get(partition.topic)
    if topic is None or not 0 <= partition.partition < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.none


def _results_by_topic(codes: PartitionCodes) -> list[Mapping[str, Any]]:
    topics: dict[str, list[Mapping[str, Any]]] = {}
    for partition, code in codes.items():
        result = {"partition_index": partition.partition, "partition_error_code": code}
        topics.setdefault(partition.topic, []).append(result)
    return [{"name": name, "results_by_partition": results} for name, results in topics.items()]


async def add_offsets_to_txn(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """AddOffsetsToTxn (key 25), versions 0–4: adds the offsets of a group to a transaction.

    Clients send it before TxnOffsetCommit; with transaction version 2 (KIP-890) they skip it. Below version 2
    a fenced producer gets INVALID_PRODUCER_EPOCH. Apache Kafka adds the partition of `__consumer_offsets`
    that stores the group; here that topic has one partition.
    """
    denial = context.denial(
        (ResourceType.TRANSACTIONAL_ID, request.transactional_id), (ResourceType.GROUP, request.group_id)
    )
    if denial is not None:
        return {"error_code": denial}
    producer = Producer(request.producer_id, request.producer_epoch)
    try:
        await broker.transactions.add_partitions(request.transactional_id, producer, (OFFSETS,))
    except TransactionError as fault:
        return {"error_code": fault.code_in(context.version, fenced_from=FENCED_FROM)}
    return {"error_code": ErrorCode.none}


async def end_txn(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """EndTxn (key 26), versions 0–5: commits or aborts a transaction.

    Consumers see the outcome before the client gets the response. A retry after a lost response gets the same
    response. From version 5 (KIP-890) the response contains the new epoch of the producer, and a new producer
    id if the epochs are exhausted; an abort without a transaction is allowed. Below version 2 a fenced
    producer gets INVALID_PRODUCER_EPOCH.

    Apache Kafka responds before it writes the markers, so that the producer's next request may get
    CONCURRENT_TRANSACTIONS. Here that happens only if markers cannot be written in time.
    """
    denial = context.denial((ResourceType.TRANSACTIONAL_ID, request.transactional_id))
    if denial is not None:
        return {"error_code": denial, "producer_id": NO_PRODUCER_ID, "producer_epoch": NO_EPOCH}
    try:
        successor = await broker.transactions.end(
            request.transactional_id,
            Producer(request.producer_id, request.producer_epoch),
            committed=request.committed,
            bump=context.version >= BUMP_FROM,
        )
    except TransactionError as fault:
        code = fault.code_in(context.version, fenced_from=FENCED_FROM)
        return {"error_code": code, "producer_id": NO_PRODUCER_ID, "producer_epoch": NO_EPOCH}
    return {
        "error_code": ErrorCode.none,
        "producer_id": successor.producer_id,
        "producer_epoch": successor.epoch,
    }


async def txn_offset_commit(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """TxnOffsetCommit (key 28), versions 0–5: commits offsets of a group in a transaction.

    The offsets are pending until the transaction commits. Up to version 4 AddOffsetsToTxn has to be sent
    first; if not, the result is INVALID_TXN_STATE, or TRANSACTION_ABORTABLE in version 4. Version 5 adds the
    group itself. A fenced producer gets INVALID_PRODUCER_EPOCH in every version. From version 3 the member's
    generation is checked, so that a member of an older generation cannot commit. Share groups have no
    committed offsets and get GROUP_ID_NOT_FOUND.
    """
    denial = context.denial(
        (ResourceType.TRANSACTIONAL_ID, request.transactional_id), (ResourceType.GROUP, request.group_id)
    )
    if denial is not None:
        return {"topics": _codes_by_topic(dict.fromkeys(_committed_partitions(request), denial))}
    codes = await _check_partitions(broker, request, context)
    accepted = [where for where, code in codes.items() if not code]
    if accepted:
        code = await _commit_offsets(broker, request, context, accepted)
        codes.update(dict.fromkeys(accepted, code))
    return {"topics": _codes_by_topic(codes)}


def _committed_partitions(request: Any) -> list[tuple[str, int]]:
    return [(topic.name, sent.partition_index) for topic in request.topics for sent in topic.partitions]


async def _check_partitions(broker: Broker, request: Any, context: RequestContext) -> OffsetCodes:
    codes: OffsetCodes = {}
    for topic in request.topics:
        known = broker.topics.get(topic.name)
        denied = not context.allows(ResourceType.TOPIC, topic.name)
        async for sent in context.time_slice.over(topic.partitions):
            where = (topic.name, sent.partition_index)
            if denied:
                codes[where] = ErrorCode.topic_authorization_failed
            elif known is None or not 0 <= sent.partition_index < len(known.partitions):
                codes[where] = ErrorCode.unknown_topic_or_partition
            elif not broker.offsets.accepts_metadata(sent.committed_metadata):
                codes[where] = ErrorCode.offset_metadata_too_large
            else:
                codes[where] = ErrorCode.none
    return codes


async def _commit_offsets(
    broker: Broker, request: Any, context: RequestContext, partitions: list[tuple[str, int]]
) -> ErrorCode:
    version = context.version
    producer = Producer(request.producer_id, request.producer_epoch)
    try:
        broker.transactions.check_offsets(request.transactional_id, producer, add=version >= IMPLICIT_FROM)
        code = _check_member(broker, request)
        if code:
            return code
        entries = list(_entries(broker, request, partitions).items())
        for first in range(0, len(entries), COMMITS_AT_ONCE):
            broker.offsets.add_pending(
                producer, request.group_id, dict(entries[first : first + COMMITS_AT_ONCE])
            )
            await context.time_slice.pause()
        await broker.offsets.durable()
        await broker.transactions.durable()
    except TransactionError as fault:
        return _code_of(fault, version)
    except StorageError as fault:
        return error_code(fault)
    return ErrorCode.none


def _check_member(broker: Broker, request: Any) -> ErrorCode:
    if request.group_id in broker.shares:
        return ErrorCode.group_id_not_found
    return broker.offsets.check_transactional_commit(
        request.group_id,
        getattr(request, "member_id", ""),
        getattr(request, "generation_id", -1),
        getattr(request, "group_instance_id", None),
    )


def _entries(
    broker: Broker, request: Any, partitions: list[tuple[str, int]]
) -> dict[tuple[str, int], CommittedOffset]:
    now_ms = broker.clock.now_ms()
    wanted = set(partitions)
    return {
        (topic.name, sent.partition_index): CommittedOffset(
            offset=sent.committed_offset,
            leader_epoch=getattr(sent, "committed_leader_epoch", -1),
            metadata=sent.committed_metadata or "",
            committed_at_ms=now_ms,
        )
        for topic in request.topics
        for sent in topic.partitions
        if (topic.name, sent.partition_index) in wanted
    }


def _code_of(fault: TransactionError, version: int) -> ErrorCode:
    if isinstance(fault, ProducerFenced):
        return ErrorCode.invalid_producer_epoch
    if isinstance(fault, ConcurrentTransactions) and version < IMPLICIT_FROM:
        # Older clients do not retry on CONCURRENT_TRANSACTIONS here.
        return ErrorCode.coordinator_load_in_progress if version >= 2 else ErrorCode.coordinator_not_available
    return fault.code_in(version, abortable_from=COMMIT_ABORTABLE_FROM)


def _codes_by_topic(codes: OffsetCodes) -> list[Mapping[str, Any]]:
    topics: dict[str, list[Mapping[str, Any]]] = {}
    for (topic, index), code in codes.items():
        topics.setdefault(topic, []).append({"partition_index": index, "error_code": code})
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
