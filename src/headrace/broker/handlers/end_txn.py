"""EndTxn (key 26), versions 0–5: commits or aborts a transaction.

Consumers see the outcome before the client gets the response. A retry after a lost response gets the same
response. From version 5 (KIP-890) the response contains the new epoch of the producer, and a new producer id
if the epochs are exhausted; an abort without a transaction is allowed. Below version 2 a fenced producer gets
INVALID_PRODUCER_EPOCH.

Apache Kafka responds before it writes the markers, so that the producer's next request may get
CONCURRENT_TRANSACTIONS. Here that happens only if markers cannot be written in time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.security.acls import ResourceType
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
    """End the transaction; returns the producer id and epoch to continue with."""
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
