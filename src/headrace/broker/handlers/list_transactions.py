"""ListTransactions (key 66), versions 0–2.

The transactional ids that pass every filter: states and producer ids, from version 1 on a duration in
milliseconds that the transaction must exceed, from version 2 on a regular expression for the whole id. State
names that Kafka does not know come back as unknown filters.

Apache Kafka uses RE2, which takes time proportional to the text. Python's expressions can take exponential
time, so those that could are refused with INVALID_REGULAR_EXPRESSION: a repetition of something that itself
repeats or branches, and what RE2 does not know either (back-references, look-around).
"""

from __future__ import annotations

import re
from re import _constants as opcodes  # type: ignore[attr-defined]  # the parser is typed nowhere
from re import _parser as parser  # type: ignore[attr-defined]  # the parser is typed nowhere
from typing import TYPE_CHECKING, Any, Final

from kio.schema.errors import ErrorCode

from headrace.broker.transactions.transaction import TransactionState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.broker.broker import Broker
    from headrace.broker.request import RequestContext
    from headrace.broker.transactions.transaction import TransactionMetadata

VERSIONS: Final = (0, 2)
PATTERN_LIMIT: Final = 249
"""Characters of a pattern; with few repetitions in it, matching stays quick."""

_REPETITIONS: Final = {opcodes.MAX_REPEAT, opcodes.MIN_REPEAT, opcodes.POSSESSIVE_REPEAT}
_REFUSED: Final = {opcodes.ASSERT, opcodes.ASSERT_NOT, opcodes.GROUPREF, opcodes.GROUPREF_EXISTS}
_REPETITION_LIMIT: Final = 4


async def handle(broker: Broker, request: Any, context: RequestContext) -> Mapping[str, Any]:
    """The transactions that the filters let through."""
    try:
        pattern = read_pattern(getattr(request, "transactional_id_pattern", None))
    except ValueError:
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
        async for transaction in context.turn.over(broker.transactions.list_all())
        if (not states or transaction.state.label in states)
        and (not producers or transaction.producer_id in producers)
        and (longer_than_ms < 0 or now_ms - transaction.started_ms > longer_than_ms)
        and (pattern is None or pattern.fullmatch(transaction.transactional_id))
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


def read_pattern(text: str | None) -> re.Pattern[str] | None:
    """The expression, None when there is none, or ValueError when it is wrong or could take for ever."""
    if not text:
        return None
    try:
        parsed = parser.parse(text)
        compiled = re.compile(text)
    except (re.error, RecursionError, OverflowError) as fault:
        raise ValueError(f"{text!r} is no regular expression: {fault}") from fault
    if len(text) > PATTERN_LIMIT or _count_repetitions(parsed, inside=False) > _REPETITION_LIMIT:
        raise ValueError(f"{text!r} has too many repetitions: at most {_REPETITION_LIMIT}")
    return compiled


def _count_repetitions(parsed: Any, *, inside: bool) -> int:
    count = 0
    for code, argument in parsed:
        if code in _REFUSED or (inside and (code in _REPETITIONS or code is opcodes.BRANCH)):
            raise ValueError("a repetition of something that repeats or branches")
        count += code in _REPETITIONS
        for part in _parts(code, argument):
            count += _count_repetitions(part, inside=inside or code in _REPETITIONS)
    return count


def _parts(code: Any, argument: Any) -> list[Any]:
    """The expressions inside one."""
    if code in _REPETITIONS:
        return [argument[2]]
    if code is opcodes.SUBPATTERN:
        return [argument[3]]
    if code is opcodes.BRANCH:
        return list(argument[1])
    if code is opcodes.ATOMIC_GROUP:
        return [argument]
    return []
