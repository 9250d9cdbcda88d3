"""DescribeTransactions (key 65), version 0: state, producer, start time and partitions of transactional ids.

An unknown id gets TRANSACTIONAL_ID_NOT_FOUND, an empty one INVALID_REQUEST. Without a transaction the start
time is −1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.security.acls import ResourceType

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.transactions.transaction import TransactionMetadata

VERSIONS: Final = (0, 0)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns the state of each transactional id; duplicates in the request are ignored."""
    unique = dict.fromkeys(request.transactional_ids)
    return {
        "transaction_states": [
            _describe(broker, name, context) async for name in context.time_slice.over(unique)
        ]
    }


def _describe(broker: Broker, transactional_id: str, context: RequestContext) -> Mapping[str, Any]:
    denial = context.denial((ResourceType.TRANSACTIONAL_ID, transactional_id))
    if denial is not None:
        return _refused(transactional_id, denial)
    transaction = broker.transactions.describe(transactional_id)
    if transaction is not None:
        return _known(transaction, context)
    code = ErrorCode.transactional_id_not_found if transactional_id else ErrorCode.invalid_request
    return _refused(transactional_id, code)


def _refused(transactional_id: str, code: ErrorCode) -> Mapping[str, Any]:
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
