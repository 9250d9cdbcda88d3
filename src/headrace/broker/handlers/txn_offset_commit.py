"""TxnOffsetCommit (key 28), versions 0–5: commits offsets of a group in a transaction.

The offsets are pending until the transaction commits. Up to version 4 AddOffsetsToTxn has to be sent first;
if not, the result is INVALID_TXN_STATE, or TRANSACTION_ABORTABLE in version 4. Version 5 adds the group
itself. A fenced producer gets INVALID_PRODUCER_EPOCH in every version. From version 3 the member's generation
is checked, so that a member of an older generation cannot commit. Share groups have no committed offsets and
get GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.groups.records import CommittedOffset
from headrace.broker.handlers.offset_commit import COMMITS_AT_ONCE
from headrace.broker.security.acls import ResourceType
from headrace.broker.state_log import Producer
from headrace.broker.transactions.transaction import ConcurrentTransactions, ProducerFenced, TransactionError
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 5)
ABORTABLE_FROM: Final = 4
IMPLICIT_FROM: Final = 5

Codes = dict[tuple[str, int], ErrorCode]


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Add the offsets to the transaction; returns an error code for each partition."""
    denial = context.denial(
        (ResourceType.TRANSACTIONAL_ID, request.transactional_id), (ResourceType.GROUP, request.group_id)
    )
    if denial is not None:
        return {"topics": _by_topic(dict.fromkeys(_partitions(request), denial))}
    codes = await _check_partitions(broker, request, context)
    accepted = [where for where, code in codes.items() if not code]
    if accepted:
        code = await _commit(broker, request, context, accepted)
        codes.update(dict.fromkeys(accepted, code))
    return {"topics": _by_topic(codes)}


def _partitions(request: Any) -> list[tuple[str, int]]:
    return [(topic.name, sent.partition_index) for topic in request.topics for sent in topic.partitions]


async def _check_partitions(broker: Broker, request: Any, context: RequestContext) -> Codes:
    codes: Codes = {}
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


async def _commit(
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
    return fault.code_in(version, abortable_from=ABORTABLE_FROM)


def _by_topic(codes: Codes) -> list[Mapping[str, Any]]:
    topics: dict[str, list[Mapping[str, Any]]] = {}
    for (topic, index), code in codes.items():
        topics.setdefault(topic, []).append({"partition_index": index, "error_code": code})
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
