"""The state machine of one transactional id: its states, their transitions, and the effect of each request.

    Empty ──add──▶ Ongoing ──end──▶ PrepareCommit ──markers written──▶ CompleteCommit ──add──▶ Ongoing …
                      └──end, timeout, fencing──▶ PrepareAbort ──markers written──▶ CompleteAbort

`TransactionMetadata` is immutable: each function takes one and returns the next, or raises a
`TransactionError`. Nothing here waits, writes or reads a clock. A prepared outcome is final: its markers are
written even after a crash.

A new epoch fences all producers with an older one. The epoch increases when a producer initializes, when the
broker aborts a transaction, and, with transaction version 2 (KIP-890), at each end of a transaction. After
epoch 32766 the transactional id continues with another producer id.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.broker.state_log import Producer
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Timeouts of transactions and the intervals of their checks."""

    max_timeout_ms: int = 900_000
    """`transaction.max.timeout.ms`: the largest transaction timeout that a producer may have."""
    expiration_ms: int = 604_800_000
    """`transactional.id.expiration.ms`: an unused transactional id is removed after this time."""
    timeout_check_interval_ms: int = 1_000
    """`transaction.abort.timed.out.transaction.cleanup.interval.ms`; Apache Kafka's default is 10,000."""
    cleanup_interval_ms: int = 60_000
    """How often expired transactional ids and transactions without an owner are removed."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise HeadraceError(f"{name} is {getattr(self, name)}: it must be positive")


NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1
LAST_EPOCH: Final = 32_766
"""The last epoch of a producer id; 32767 is reserved for markers that fence it."""
TRANSACTION_VERSION_2: Final = 2
"""The transaction version of clients that use KIP-890."""


class TransactionError(HeadraceError):
    """A request that is not allowed; `code` is Kafka's error code."""

    code: ErrorCode = ErrorCode.unknown_server_error

    def code_in(self, version: int, *, fenced_from: int = 0, abortable_from: int = 0) -> ErrorCode:
        """The error code for an API version, given the first versions that know the newer codes."""
        if self.code is ErrorCode.producer_fenced and version < fenced_from:
            return ErrorCode.invalid_producer_epoch
        if self.code is ErrorCode.transaction_abortable and version < abortable_from:
            return ErrorCode.invalid_txn_state
        return self.code


class InvalidProducerIdMapping(TransactionError):
    """The transactional id is unknown, or has another producer id."""

    code = ErrorCode.invalid_producer_id_mapping


class ProducerFenced(TransactionError):
    """A newer producer uses the transactional id, or the broker aborted the transaction."""

    code = ErrorCode.producer_fenced


class ConcurrentTransactions(TransactionError):
    """The previous transaction is still being completed; the client retries."""

    code = ErrorCode.concurrent_transactions


class InvalidTransactionState(TransactionError):
    """The request is not allowed in the state of the transaction."""

    code = ErrorCode.invalid_txn_state


class PartitionNotInTransaction(TransactionError):
    """The partition was not added; the client aborts the transaction and retries it."""

    code = ErrorCode.transaction_abortable


class TransactionState(IntEnum):
    """The states of a transactional id, with the numbers of Kafka's transaction log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The name that Kafka's tools show: `CompleteCommit`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


# Kafka uses PrepareEpochFence between fencing and aborting; here the two are one step.
TRANSITIONS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: frozenset(
        {
            TransactionState.EMPTY,
            TransactionState.ONGOING,
            TransactionState.PREPARE_ABORT,
            TransactionState.DEAD,
        }
    ),
    TransactionState.ONGOING: frozenset(
        {TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT}
    ),
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.COMPLETE_COMMIT}),
    TransactionState.PREPARE_ABORT: frozenset({TransactionState.COMPLETE_ABORT}),
    TransactionState.COMPLETE_COMMIT: frozenset(
        {
            TransactionState.EMPTY,
            TransactionState.ONGOING,
            TransactionState.PREPARE_ABORT,
            TransactionState.DEAD,
        }
    ),
    TransactionState.COMPLETE_ABORT: frozenset(
        {
            TransactionState.EMPTY,
            TransactionState.ONGOING,
            TransactionState.PREPARE_ABORT,
            TransactionState.DEAD,
        }
    ),
    TransactionState.PREPARE_EPOCH_FENCE: frozenset({TransactionState.PREPARE_ABORT}),
    TransactionState.DEAD: frozenset(),
}

_COMMITTED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT})
_PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
_COMPLETED: Final = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})


class TopicPartition(NamedTuple):
    """A partition, by the name of its topic."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """The state of a transactional id at one point in time."""

    transactional_id: str
    producer_id: int
    epoch: int = NO_EPOCH
    last_epoch: int = NO_EPOCH
    """The previous epoch, if the same producer may repeat a request whose response was lost."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id to continue with after the markers of an exhausted one are written."""
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME
    updated_ms: int
    client_version: int = 0

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is final and markers may be missing."""
        return self.state in _PREPARED

    @property
    def is_active(self) -> bool:
        """Whether the transaction may still be open in a partition."""
        return self.state is TransactionState.ONGOING or self.state in _PREPARED

    @property
    def is_committed(self) -> bool:
        """Whether the outcome is, or will be, a commit."""
        return self.state in _COMMITTED

    @property
    def producer(self) -> Producer:
        """The producer id and epoch, which are also those of the markers."""
        return Producer(self.producer_id, self.epoch)

    @property
    def next_producer(self) -> Producer:
        """The producer id and epoch with which the client continues."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return Producer(self.next_producer_id, 0)
        return Producer(self.producer_id, self.epoch)

    def is_timed_out(self, now_ms: int) -> bool:
        """Whether the transaction has exceeded its timeout."""
        return self.state is TransactionState.ONGOING and self.started_ms + self.timeout_ms < now_ms

    def is_expired(self, now_ms: int, after_ms: int) -> bool:
        """Whether the transactional id has been unused for `after_ms`."""
        return TransactionState.DEAD in TRANSITIONS[self.state] and now_ms - self.updated_ms >= after_ms


def initialize(
    transaction: TransactionMetadata,
    expected: Producer | None,
    *,
    timeout_ms: int,
    now_ms: int,
    new_producer_id: Callable[[], int],
) -> TransactionMetadata:
    """The transactional id for a producer that starts: with a new epoch and no open transaction.

    `expected` is the producer id and epoch of a producer that recovers from an error (KIP-360). If it repeats
    its request, it gets the same result; if it is out of date, it is fenced.
    """
    if transaction.is_active:
        raise _concurrent(transaction)
    if expected is not None and transaction.epoch != NO_EPOCH:
        if _repeats_initialize(transaction, expected):
            return _initialized(transaction, timeout_ms, now_ms)
        check_expected(transaction, expected)
    last_epoch = NO_EPOCH if expected is None else transaction.epoch
    if transaction.epoch >= LAST_EPOCH:
        return _initialized(
            transaction,
            timeout_ms,
            now_ms,
            producer_id=new_producer_id(),
            previous_producer_id=transaction.producer_id,
            epoch=0,
            last_epoch=last_epoch,
        )
    return _initialized(transaction, timeout_ms, now_ms, epoch=transaction.epoch + 1, last_epoch=last_epoch)


def check_expected(transaction: TransactionMetadata, expected: Producer | None) -> None:
    """Raise `ProducerFenced` if `expected` is not the current producer id and epoch; None passes.

    Checked before an ongoing transaction is aborted for a producer that starts. Apache Kafka lets a producer
    that is out of date abort the transaction of the current one, and fences both.
    """
    if expected is not None and expected != transaction.producer:
        raise _fenced(transaction, expected)


def add_partitions(
    transaction: TransactionMetadata, producer: Producer, partitions: Iterable[TopicPartition], now_ms: int
) -> TransactionMetadata:
    """The ongoing transaction with these partitions; the same object if it has them all."""
    _check_owner(transaction, producer)
    if transaction.is_prepared:
        raise _concurrent(transaction)
    if transaction.state is not TransactionState.ONGOING:
        return _transition(
            transaction, TransactionState.ONGOING, now_ms, partitions=frozenset(partitions), started_ms=now_ms
        )
    joined = transaction.partitions.union(partitions)
    if joined == transaction.partitions:
        return transaction
    return _transition(transaction, TransactionState.ONGOING, now_ms, partitions=joined)


def check_partition(transaction: TransactionMetadata, producer: Producer, partition: TopicPartition) -> None:
    """Raise `TransactionError` unless the partition is in the producer's ongoing transaction."""
    _check_owner(transaction, producer)
    if transaction.is_prepared:
        raise _concurrent(transaction)
    if partition not in transaction.partitions:
        raise PartitionNotInTransaction(
            f"{partition.topic}-{partition.partition} is not in the transaction of "
            f"{transaction.transactional_id!r}: add it first, or abort the transaction and retry"
        )


def end(
    transaction: TransactionMetadata,
    producer: Producer,
    *,
    committed: bool,
    bump: bool,
    now_ms: int,
    new_producer_id: Callable[[], int],
) -> TransactionMetadata:
    """The transaction with its outcome prepared; the same object if the request repeats a completed one.

    With `bump` (transaction version 2) each end increases the epoch. A repeated request then has the previous
    epoch, and an abort is allowed without a transaction: the client may not know whether its writes arrived.
    """
    repeated = _repeats_end(transaction, producer, bump=bump)
    if not repeated:
        _check_owner(transaction, producer)
    if transaction.state is TransactionState.ONGOING:
        return _prepare(transaction, committed, bump, now_ms, new_producer_id)
    if repeated and transaction.is_committed == committed:
        if transaction.is_prepared:
            raise _concurrent(transaction)
        return transaction
    if bump and not repeated and not committed and not transaction.is_prepared:
        return _prepare(replace(transaction, started_ms=now_ms), committed, bump, now_ms, new_producer_id)
    raise InvalidTransactionState(
        f"{transaction.transactional_id!r} cannot {'commit' if committed else 'abort'} in state "
        f"{transaction.state.label}: add a partition to a transaction first"
    )


def fence(transaction: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """The ongoing transaction with its abort prepared by the broker; a new epoch fences the producer."""
    return _transition(
        transaction,
        TransactionState.PREPARE_ABORT,
        now_ms,
        epoch=transaction.epoch + 1,
        last_epoch=NO_EPOCH,
        client_version=0,
    )


def complete(transaction: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """The prepared transaction after all its markers were written."""
    outcome = (
        TransactionState.COMPLETE_COMMIT if transaction.is_committed else TransactionState.COMPLETE_ABORT
    )
    if transaction.next_producer_id == NO_PRODUCER_ID:
        return _transition(transaction, outcome, now_ms, partitions=frozenset())
    return _transition(
        transaction,
        outcome,
        now_ms,
        partitions=frozenset(),
        producer_id=transaction.next_producer_id,
        previous_producer_id=transaction.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        epoch=0,
    )


def _transition(
    transaction: TransactionMetadata, state: TransactionState, now_ms: int, **changes: Any
) -> TransactionMetadata:
    if state not in TRANSITIONS[transaction.state]:
        raise InvalidTransactionState(
            f"{transaction.transactional_id!r} cannot change from {transaction.state.label} to {state.label}"
        )
    return replace(transaction, state=state, updated_ms=now_ms, **changes)


def _initialized(
    transaction: TransactionMetadata, timeout_ms: int, now_ms: int, **changes: Any
) -> TransactionMetadata:
    changes |= {"timeout_ms": timeout_ms, "partitions": frozenset(), "started_ms": NO_TIME}
    return _transition(transaction, TransactionState.EMPTY, now_ms, **changes)


def _prepare(
    transaction: TransactionMetadata,
    committed: bool,
    bump: bool,
    now_ms: int,
    new_producer_id: Callable[[], int],
) -> TransactionMetadata:
    state = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
    if not bump:
        return _transition(transaction, state, now_ms, client_version=0)
    exhausted = transaction.epoch >= LAST_EPOCH
    return _transition(
        transaction,
        state,
        now_ms,
        client_version=TRANSACTION_VERSION_2,
        epoch=transaction.epoch + 1,
        last_epoch=transaction.epoch,
        next_producer_id=new_producer_id() if exhausted else NO_PRODUCER_ID,
    )


def _repeats_end(transaction: TransactionMetadata, producer: Producer, *, bump: bool) -> bool:
    """Whether the request may repeat one that has been, or is being, processed."""
    if not (transaction.is_prepared or transaction.state in _COMPLETED):
        return False
    if not bump:
        return producer == transaction.producer
    if transaction.client_version != TRANSACTION_VERSION_2:
        return False
    if transaction.epoch == 0:
        return producer == Producer(transaction.previous_producer_id, LAST_EPOCH)
    return producer == Producer(transaction.producer_id, transaction.epoch - 1)


def _check_owner(transaction: TransactionMetadata, producer: Producer) -> None:
    if producer.producer_id != transaction.producer_id:
        raise InvalidProducerIdMapping(
            f"{transaction.transactional_id!r} has producer id {transaction.producer_id}, not "
            f"{producer.producer_id}: call InitProducerId again"
        )
    if producer.epoch != transaction.epoch:
        raise _fenced(transaction, producer)


def _repeats_initialize(transaction: TransactionMetadata, expected: Producer) -> bool:
    """Whether the producer repeats an InitProducerId that succeeded."""
    if expected.epoch != transaction.last_epoch:
        return False
    # Epoch 0 has a previous epoch only if the producer id was exhausted.
    owner = transaction.previous_producer_id if transaction.epoch == 0 else transaction.producer_id
    return expected.producer_id == owner


def _fenced(transaction: TransactionMetadata, producer: Producer) -> ProducerFenced:
    return ProducerFenced(
        f"{transaction.transactional_id!r} is at epoch {transaction.epoch} of producer id "
        f"{transaction.producer_id}; epoch {producer.epoch} of producer id {producer.producer_id} was fenced "
        "by a newer producer or by a transaction timeout"
    )


def _concurrent(transaction: TransactionMetadata) -> ConcurrentTransactions:
    return ConcurrentTransactions(
        f"the transaction of {transaction.transactional_id!r} is in state {transaction.state.label}: retry"
    )
