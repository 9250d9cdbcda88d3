"""DescribeTransactions (key 65), version 0.

What `kafka-transactions.sh describe` shows of transactional ids: state, producer, start and partitions. An id
that is unknown gets TRANSACTIONAL_ID_NOT_FOUND, an empty one INVALID_REQUEST. The start time of an id without
a transaction is −1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.transactions.transaction import TransactionMetadata

VERSIONS: Final = (0, 0)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """The state of each id that was asked for; one that is named twice is described once."""
    once = dict.fromkeys(request.transactional_ids)
    return {"transaction_states": [_describe(broker, name) async for name in context.time_slice.over(once)]}


def _describe(broker: Broker, transactional_id: str) -> Mapping[str, Any]:
    transaction = broker.transactions.describe(transactional_id)
    if transaction is not None:
        return _known(transaction)
    code = ErrorCode.transactional_id_not_found if transactional_id else ErrorCode.invalid_request
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


def _known(transaction: TransactionMetadata) -> Mapping[str, Any]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(transaction.partitions):
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
