"""Lists, describes and aborts transactions.

An open transaction blocks `read_committed` readers of its partitions, so one whose producer is gone should be
aborted. InitProducerId does that: the coordinator aborts the open transaction and fences the old producer, in
Headrace and in Apache Kafka.
"""

# kio reads the types of the fields of an entity: annotations must not be strings here.

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, Final

from kio.schema.describe_transactions.v0 import DescribeTransactionsRequest
from kio.schema.describe_transactions.v0.response import TopicData
from kio.schema.errors import ErrorCode
from kio.schema.init_producer_id.v4 import InitProducerIdRequest, InitProducerIdResponse
from kio.schema.list_transactions.v0 import ListTransactionsRequest, ListTransactionsResponse
from kio.schema.response_header.v1.header import ResponseHeader
from kio.schema.types import TransactionalId
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32Timedelta, i64

from headrace.client.errors import COORDINATOR_RETRIABLE, RequestRefused, attempts
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client.cluster import Cluster
    from headrace.client.connection import Connection

ONGOING: Final = "Ongoing"
OPEN: Final = (ONGOING, "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""The states of an open transaction. A completed one keeps its start until the next one begins."""


class UnknownTransaction(HeadraceError):
    """No coordinator knows the transactional id."""


class NothingToAbort(HeadraceError):
    """The transactional id has no open transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedTransaction:
    """The state of one transactional id at its coordinator."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(65)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    transactional_id: str = field(metadata={"kafka_type": "string"})
    transaction_state: str = field(metadata={"kafka_type": "string"})
    transaction_timeout: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    transaction_start_time_ms: i64 = field(metadata={"kafka_type": "int64"})
    producer_id: i64 = field(metadata={"kafka_type": "int64"})
    producer_epoch: i16 = field(metadata={"kafka_type": "int16"})
    topics: tuple[TopicData, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeTransactionsResponse:
    """The states of the requested transactional ids.

    Like kio's entity, except that the start time is a number: it is −1 without an open transaction, which
    kio's type does not allow.
    """

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(65)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    transaction_states: tuple[DescribedTransaction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id and its open transaction, if it has one."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout: timedelta
    started: datetime | None
    """The start of the open transaction; None without one."""
    partitions: tuple[tuple[str, int], ...]
    """The partitions of the open transaction."""


def list_transactions(cluster: "Cluster") -> tuple[Transaction, ...]:
    """All transactional ids, sorted."""
    found: list[Transaction] = []
    for broker in cluster.brokers():
        connection = cluster.connection(broker)
        found.extend(_describe(connection, _listed_by(connection)))
    return tuple(sorted(found, key=lambda transaction: transaction.transactional_id))


def describe_transaction(cluster: "Cluster", transactional_id: str) -> Transaction:
    """Describe a transactional id."""
    coordinator = cluster.transaction_coordinator(transactional_id)
    found = _describe(coordinator, (TransactionalId(transactional_id),))
    if not found:
        raise UnknownTransaction(f"no broker knows the transactional id {transactional_id!r}")
    return found[0]


def require_open(cluster: "Cluster", transactional_id: str) -> Transaction:
    """The open transaction of `transactional_id`; raises `NothingToAbort` if it has none."""
    transaction = describe_transaction(cluster, transactional_id)
    if transaction.state != ONGOING:
        raise NothingToAbort(
            f"{transactional_id!r} has no open transaction: its state is {transaction.state}. "
            "There is nothing to abort."
        )
    return transaction


def abort_transaction(cluster: "Cluster", transactional_id: str, *, timeout_s: float = 30.0) -> Transaction:
    """Abort the open transaction and fence its producer; returns the aborted transaction.

    The transactional id keeps its transaction timeout.
    """
    transaction = require_open(cluster, transactional_id)
    _fence(cluster.transaction_coordinator(transactional_id), transaction, timeout_s)
    return transaction


def _fence(coordinator: "Connection", transaction: Transaction, timeout_s: float) -> None:
    request = InitProducerIdRequest(
        transactional_id=TransactionalId(transaction.transactional_id),
        transaction_timeout=i32Timedelta.parse(transaction.timeout),
    )
    # The coordinator answers CONCURRENT_TRANSACTIONS until the transaction is aborted.
    for _ in attempts(timeout_s):
        response = coordinator.request(request, InitProducerIdResponse)
        if response.error_code not in COORDINATOR_RETRIABLE:
            break
    if response.error_code is not ErrorCode.none:
        raise RequestRefused(f"abort {transaction.transactional_id!r}", response.error_code)


def _listed_by(connection: "Connection") -> tuple[TransactionalId, ...]:
    request = ListTransactionsRequest(state_filters=(), producer_id_filters=())
    for _ in attempts(10.0):
        response = connection.request(request, ListTransactionsResponse)
        if response.error_code not in COORDINATOR_RETRIABLE:
            break
    if response.error_code is not ErrorCode.none:
        raise RequestRefused("list transactions", response.error_code)
    return tuple(state.transactional_id for state in response.transaction_states)


def _describe(connection: "Connection", ids: tuple[TransactionalId, ...]) -> list[Transaction]:
    """Describe the transactional ids that exist."""
    if not ids:
        return []
    response = connection.request(
        DescribeTransactionsRequest(transactional_ids=ids), DescribeTransactionsResponse
    )
    return [_transaction(state) for state in response.transaction_states if _exists(state)]


def _exists(state: DescribedTransaction) -> bool:
    if state.error_code is ErrorCode.transactional_id_not_found:
        return False
    if state.error_code is not ErrorCode.none:
        raise RequestRefused(f"describe {state.transactional_id!r}", state.error_code)
    return True


def _transaction(state: DescribedTransaction) -> Transaction:
    started_ms = state.transaction_start_time_ms
    is_open = state.transaction_state in OPEN and started_ms >= 0
    return Transaction(
        transactional_id=state.transactional_id,
        state=state.transaction_state,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        timeout=state.transaction_timeout,
        started=datetime.fromtimestamp(started_ms / 1000, UTC) if is_open else None,
        partitions=tuple(
            sorted((topic.topic, partition) for topic in state.topics for partition in topic.partitions)
        ),
    )
