"""InitProducerId (key 22), versions 0–5; 6 (two-phase commit) is unstable in Kafka and not served.

Gives an idempotent producer its id, and a transactional one the next epoch of its id, which fences every
older instance. From version 3 on a producer may name its id and epoch to go on after an error. Below version
4 a fenced producer gets INVALID_PRODUCER_EPOCH, since it does not know PRODUCER_FENCED.

Unlike Apache Kafka, which answers CONCURRENT_TRANSACTIONS and lets the client ask again, the answer waits
until the transaction that an older instance left open is aborted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.state_log import Producer
from headrace.broker.transactions.transaction import NO_EPOCH, NO_PRODUCER_ID, TransactionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 5)
FENCED_FROM: Final = 4


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """A producer id and epoch, or why there is none."""
    claim = Producer(
        getattr(request, "producer_id", NO_PRODUCER_ID), getattr(request, "producer_epoch", NO_EPOCH)
    )
    if (claim.producer_id == NO_PRODUCER_ID) != (claim.epoch == NO_EPOCH):
        return _refusal(ErrorCode.invalid_request)
    timeout_ms = round(request.transaction_timeout.total_seconds() * 1000)
    try:
        producer = await broker.transactions.initialize(
            request.transactional_id, timeout_ms, None if claim.epoch == NO_EPOCH else claim
        )
    except TransactionError as fault:
        return _refusal(fault.code_in(context.version, fenced_from=FENCED_FROM))
    return {
        "error_code": ErrorCode.none,
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
    }


def _refusal(code: ErrorCode) -> Mapping[str, Any]:
    return {"error_code": code, "producer_id": NO_PRODUCER_ID, "producer_epoch": NO_EPOCH}
