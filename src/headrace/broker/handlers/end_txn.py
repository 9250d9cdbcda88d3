"""EndTxn (key 26), versions 0–5.

Commits or aborts; readers see the outcome before the answer is sent. A request repeated because its answer
was lost gets the same answer. From version 5 on (KIP-890) the answer carries the epoch, and where the old one
was exhausted the producer id, with which the producer goes on, and an abort of nothing is legal.
Below version 2 a fenced producer gets INVALID_PRODUCER_EPOCH.

Apache Kafka answers before the markers are written, so that the next request of the same producer may meet
CONCURRENT_TRANSACTIONS; here it meets that only while the disk is slow or full.
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
FENCED_FROM: Final = 2
BUMP_FROM: Final = 5


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """The end of the transaction, and with what the producer goes on."""
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
