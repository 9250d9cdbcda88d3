"""AddOffsetsToTxn (key 25), versions 0–4: adds the offsets of a group to a transaction.

Clients send it before TxnOffsetCommit; with transaction version 2 (KIP-890) they skip it. Below version 2 a
fenced producer gets INVALID_PRODUCER_EPOCH. Apache Kafka adds the partition of `__consumer_offsets` that
stores the group; here that topic has one partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.security.acls import ResourceType
from headrace.broker.state_log import Producer
from headrace.broker.transactions.coordinator import OFFSETS
from headrace.broker.transactions.transaction import TransactionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext

VERSIONS: Final = (0, 4)
FENCED_FROM: Final = 2


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Add the partition of the offsets to the transaction."""
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
