"""ListTransactions (key 66), versions 0–2: the transactional ids that match all filters.

Filters: states, producer ids, a minimum duration in milliseconds (version 1), and a regular expression for
the transactional id (version 2). Unknown state names are returned in `unknown_state_filters`.

As with RE2 in Apache Kafka, matching takes linear time. `headrace.broker.regex` lists the expressions that
get INVALID_REGULAR_EXPRESSION.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.regex import InvalidExpression, Regex
from headrace.broker.security.acls import ResourceType
from headrace.broker.transactions.transaction import TransactionState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.transactions.transaction import TransactionMetadata

VERSIONS: Final = (0, 2)


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """Returns the transactional ids that match the filters."""
    text = getattr(request, "transactional_id_pattern", None)
    try:
        pattern = Regex(text) if text else None
    except InvalidExpression:
        return {
            "error_code": ErrorCode.invalid_regular_expression,
            "unknown_state_filters": [],
            "transaction_states": [],
        }
    labels = {state.label for state in TransactionState}
    states, producers = set(request.state_filters), set(request.producer_id_filters)
    longer_than_ms = getattr(request, "duration_filter", -1)
    now_ms = broker.clock.now_ms()
    chosen = [
        transaction
        async for transaction in context.time_slice.over(broker.transactions.list_all())
        if context.allows(ResourceType.TRANSACTIONAL_ID, transaction.transactional_id)
        and (not states or transaction.state.label in states)
        and (not producers or transaction.producer_id in producers)
        and (longer_than_ms < 0 or now_ms - transaction.started_ms > longer_than_ms)
        and (
            pattern is None or await context.time_slice.run(pattern.match_steps(transaction.transactional_id))
        )
    ]
    return {
        "error_code": ErrorCode.none,
        "unknown_state_filters": [name for name in request.state_filters if name not in labels],
        "transaction_states": [_listed(transaction) for transaction in chosen],
    }


def _listed(transaction: TransactionMetadata) -> Mapping[str, Any]:
    return {
        "transactional_id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "transaction_state": transaction.state.label,
    }
