"""Transactions as their coordinators see them: which there are, what they hold up, and how to end one.

An open transaction keeps every `read_committed` reader of its partitions from going on, so one whose writer
is gone wants to be seen and ended. Nobody but the coordinator can end it: asking for a new epoch of its
transactional id (InitProducerId) aborts what is open and fences the old writer, on Headrace and on Apache
Kafka alike.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from kio.schema.describe_transactions.v0 import DescribeTransactionsRequest
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4 import InitProducerIdRequest, InitProducerIdResponse
from kio.schema.list_transactions.v0 import ListTransactionsRequest, ListTransactionsResponse
from kio.schema.types import TransactionalId
from kio.static.primitive import i32Timedelta

from headrace.client.error_codes import COORDINATOR_RETRIABLE
from headrace.client.errors import RequestRefused
from headrace.client.retry import attempts
from headrace.client.transaction_state import NOT_STARTED, DescribeTransactionsResponse, TransactionState
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client.cluster import Cluster
    from headrace.client.connection import Connection

ONGOING: Final = "Ongoing"


class UnknownTransaction(HeadraceError):
    """No coordinator knows the transactional id."""


class NothingToAbort(HeadraceError):
    """The transactional id has no open transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """One transactional id, and the transaction that it has open, if it has one."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout: timedelta
    started: datetime | None
    """When the open transaction began; nothing where none is open."""
    partitions: tuple[tuple[str, int], ...]
    """The partitions written in the open transaction."""


def list_transactions(cluster: Cluster) -> tuple[Transaction, ...]:
    """Every transactional id that some broker coordinates, by name."""
    found: list[Transaction] = []
    for broker in cluster.brokers():
        connection = cluster.connection(broker)
        found.extend(_describe(connection, _listed_by(connection)))
    return tuple(sorted(found, key=lambda transaction: transaction.transactional_id))


def describe_transaction(cluster: Cluster, transactional_id: str) -> Transaction:
    """What the coordinator of `transactional_id` knows about it."""
    coordinator = cluster.transaction_coordinator(transactional_id)
    found = _describe(coordinator, (TransactionalId(transactional_id),))
    if not found:
        raise UnknownTransaction(f"no broker knows the transactional id {transactional_id!r}")
    return found[0]


def require_open(cluster: Cluster, transactional_id: str) -> Transaction:
    """The transaction that `transactional_id` has open; an error where it has none."""
    transaction = describe_transaction(cluster, transactional_id)
    if transaction.state != ONGOING:
        raise NothingToAbort(
            f"{transactional_id!r} has no open transaction: its state is {transaction.state}. "
            "There is nothing to abort."
        )
    return transaction


def abort_transaction(cluster: Cluster, transactional_id: str, *, within_s: float = 30.0) -> Transaction:
    """The transaction that was open and is now aborted; its writer is fenced.

    The transactional id keeps its transaction timeout. What was written stays in the log, and readers with
    `read_committed` skip it.
    """
    transaction = require_open(cluster, transactional_id)
    _fence(cluster.transaction_coordinator(transactional_id), transaction, within_s)
    return transaction


def _fence(coordinator: Connection, transaction: Transaction, within_s: float) -> None:
    request = InitProducerIdRequest(
        transactional_id=TransactionalId(transaction.transactional_id),
        transaction_timeout=i32Timedelta.parse(transaction.timeout),
    )
    # The coordinator first aborts, and until then answers that a transaction is in the way.
    for _ in attempts(within_s):
        response = coordinator.ask(request, InitProducerIdResponse)
        if response.error_code not in COORDINATOR_RETRIABLE:
            break
    if response.error_code is not ErrorCode.none:
        raise RequestRefused(f"abort {transaction.transactional_id!r}", response.error_code)


def _listed_by(connection: Connection) -> tuple[TransactionalId, ...]:
    request = ListTransactionsRequest(state_filters=(), producer_id_filters=())
    for _ in attempts(10.0):
        response = connection.ask(request, ListTransactionsResponse)
        if response.error_code not in COORDINATOR_RETRIABLE:
            break
    if response.error_code is not ErrorCode.none:
        raise RequestRefused("list transactions", response.error_code)
    return tuple(state.transactional_id for state in response.transaction_states)


def _describe(connection: Connection, ids: tuple[TransactionalId, ...]) -> list[Transaction]:
    """The transactions of `ids` that still exist."""
    if not ids:
        return []
    response = connection.ask(
        DescribeTransactionsRequest(transactional_ids=ids), DescribeTransactionsResponse
    )
    return [_transaction(state) for state in response.transaction_states if _exists(state)]


def _exists(state: TransactionState) -> bool:
    if state.error_code is ErrorCode.transactional_id_not_found:
        return False
    if state.error_code is not ErrorCode.none:
        raise RequestRefused(f"describe {state.transactional_id!r}", state.error_code)
    return True


def _transaction(state: TransactionState) -> Transaction:
    started_ms = state.transaction_start_time_ms
    started = None if started_ms == NOT_STARTED else datetime.fromtimestamp(started_ms / 1000, UTC)
    return Transaction(
        transactional_id=state.transactional_id,
        state=state.transaction_state,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        timeout=state.transaction_timeout,
        started=started,
        partitions=tuple(
            sorted((topic.topic, partition) for topic in state.topics for partition in topic.partitions)
        ),
    )
