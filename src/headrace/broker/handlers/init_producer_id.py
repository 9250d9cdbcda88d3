"""InitProducerId (key 22), versions 0–5: allocates producer ids and epochs.

An idempotent producer gets a new producer id. A transactional producer gets the producer id of its
transactional id with a new epoch, which fences older producers. From version 3 a producer may send its
current id and epoch to recover from an error. Below version 4 a fenced producer gets INVALID_PRODUCER_EPOCH
instead of PRODUCER_FENCED. Version 6 (two-phase commit) is unstable in Apache Kafka and not served.

Apache Kafka responds CONCURRENT_TRANSACTIONS while it aborts the transaction of an older producer; here the
response waits for the abort.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.security.acls import Operation, ResourceType
from headrace.broker.state_log import Producer
from headrace.broker.transactions.transaction import NO_EPOCH, NO_PRODUCER_ID, TransactionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 5)
FENCED_FROM: Final = 4


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns a producer id and epoch."""
    denial = _check_access(request.transactional_id, context)
    if denial is not None:
        return _error(denial)
    current = Producer(
        getattr(request, "producer_id", NO_PRODUCER_ID), getattr(request, "producer_epoch", NO_EPOCH)
    )
    if (current.producer_id == NO_PRODUCER_ID) != (current.epoch == NO_EPOCH):
        return _error(ErrorCode.invalid_request)
    timeout_ms = round(request.transaction_timeout.total_seconds() * 1000)
    try:
        producer = await broker.transactions.initialize(
            request.transactional_id, timeout_ms, None if current.epoch == NO_EPOCH else current
        )
    except TransactionError as fault:
        return _error(fault.code_in(context.version, fenced_from=FENCED_FROM))
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


def _error(code: ErrorCode) -> Mapping[str, Any]:
    return {"error_code": code, "producer_id": NO_PRODUCER_ID, "producer_epoch": NO_EPOCH}
