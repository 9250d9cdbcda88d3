"""AddOffsetsToTxn (key 25), versions 0–4.

Makes the offsets of groups part of a transaction, before TxnOffsetCommit brings them. Clients of the second
protocol skip this call. Below version 2 a fenced producer gets INVALID_PRODUCER_EPOCH.
Kafka adds the partition of `__consumer_offsets` that holds the group; here there is one for all groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

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
    """Whether the transaction may now carry offsets."""
    producer = Producer(request.producer_id, request.producer_epoch)
    try:
        await broker.transactions.add_partitions(request.transactional_id, producer, (OFFSETS,))
    except TransactionError as fault:
        return {"error_code": fault.code_in(context.version, fenced_from=FENCED_FROM)}
    return {"error_code": ErrorCode.none}
