"""The life of one transactional id: which moves are legal, and what each request makes of it.

    Empty ──add──▶ Ongoing ──end──▶ PrepareCommit ──markers written──▶ CompleteCommit ──add──▶ Ongoing …
                      └──end, time-out, takeover──▶ PrepareAbort ──markers written──▶ CompleteAbort

A `Transaction` never changes: each decision below takes one and returns the next, or raises a
`TransactionFault`. Nothing here waits, writes or looks at a clock. Once an outcome is prepared it is decided:
whatever happens next, the markers of that outcome are written.

Every new epoch shuts out what was written with the old one. An epoch grows when a producer initializes, when
the broker aborts on its own, and, in the second client protocol (KIP-890), at each end of a transaction. It
cannot grow beyond 32767: one before that, the id continues with another producer id.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.broker.statelog import Producer
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1
LAST_EPOCH: Final = 32_766
"""The last epoch that a producer gets; 32767 is kept for the markers that fence it."""
SECOND_PROTOCOL: Final = 2
"""Kafka's name for KIP-890 is transaction version 2."""


class TransactionFault(HeadraceError):
    """A request that a transaction refuses; `code` is Kafka's word for it."""

    code: ErrorCode = ErrorCode.unknown_server_error

    def code_in(self, version: int, *, fenced_from: int = 0, abortable_from: int = 0) -> ErrorCode:
        """The code in the words that `version` knows, given the first versions with the newer ones."""
        if self.code is ErrorCode.producer_fenced and version < fenced_from:
            return ErrorCode.invalid_producer_epoch
        if self.code is ErrorCode.transaction_abortable and version < abortable_from:
            return ErrorCode.invalid_txn_state
        return self.code


class UnknownProducer(TransactionFault):
    """The transactional id is unknown here, or belongs to another producer id."""

    code = ErrorCode.invalid_producer_id_mapping


class ProducerFenced(TransactionFault):
    """A newer instance has the transactional id, or the broker aborted the transaction."""

    code = ErrorCode.producer_fenced


class TransactionBusy(TransactionFault):
    """The last transaction of the id is still being ended: ask again in a moment."""

    code = ErrorCode.concurrent_transactions


class IllegalMove(TransactionFault):
    """The transaction is in a state in which this makes no sense."""

    code = ErrorCode.invalid_txn_state


class NotInTransaction(TransactionFault):
    """A partition that was not added; the transaction should be aborted and tried again."""

    code = ErrorCode.transaction_abortable


class State(IntEnum):
    """The states of a transactional id, numbered as Kafka's transaction log numbers them."""

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


# Kafka passes PrepareEpochFence between a takeover and its abort; here the two are one step.
MOVES: Final[Mapping[State, frozenset[State]]] = {
    State.EMPTY: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.ONGOING: frozenset({State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT}),
    State.PREPARE_COMMIT: frozenset({State.COMPLETE_COMMIT}),
    State.PREPARE_ABORT: frozenset({State.COMPLETE_ABORT}),
    State.COMPLETE_COMMIT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.COMPLETE_ABORT: frozenset({State.EMPTY, State.ONGOING, State.PREPARE_ABORT, State.DEAD}),
    State.PREPARE_EPOCH_FENCE: frozenset({State.PREPARE_ABORT}),
    State.DEAD: frozenset(),
}

_COMMITTED: Final = frozenset({State.PREPARE_COMMIT, State.COMPLETE_COMMIT})
_PREPARED: Final = frozenset({State.PREPARE_COMMIT, State.PREPARE_ABORT})
_COMPLETED: Final = frozenset({State.COMPLETE_COMMIT, State.COMPLETE_ABORT})


class TopicPartition(NamedTuple):
    """A partition by name."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transaction:
    """A transactional id at one moment."""

    transactional_id: str
    producer_id: int
    epoch: int = NO_EPOCH
    last_epoch: int = NO_EPOCH
    """The epoch before this one, as far as the same producer may ask again for an answer that was lost."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """The id with which the producer goes on once the markers of an exhausted one are written."""
    timeout_ms: int
    state: State = State.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME
    updated_ms: int
    protocol: int = 0

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided and markers may be missing."""
        return self.state in _PREPARED

    @property
    def is_active(self) -> bool:
        """Whether readers of some partition may be waiting for the end."""
        return self.state is State.ONGOING or self.state in _PREPARED

    @property
    def is_committed(self) -> bool:
        """Whether the outcome is, or will be, a commit."""
        return self.state in _COMMITTED

    @property
    def marker(self) -> Producer:
        """The producer whose transaction the markers end."""
        return Producer(self.producer_id, self.epoch)

    @property
    def successor(self) -> Producer:
        """The producer id and epoch with which the client goes on."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return Producer(self.next_producer_id, 0)
        return Producer(self.producer_id, self.epoch)

    def is_timed_out(self, now_ms: int) -> bool:
        """Whether the broker should abort it."""
        return self.state is State.ONGOING and self.started_ms + self.timeout_ms < now_ms

    def is_expired(self, now_ms: int, after_ms: int) -> bool:
        """Whether the id was left alone for so long that it may be forgotten."""
        return State.DEAD in MOVES[self.state] and now_ms - self.updated_ms >= after_ms


def initialize(
    transaction: Transaction,
    claim: Producer | None,
    *,
    timeout_ms: int,
    now_ms: int,
    new_producer_id: Callable[[], int],
) -> Transaction:
    """The id in the hands of a producer that (re)starts: a new epoch, nothing open.

    `claim` is the producer id and epoch of one that recovers and does not want to be a new instance. Its
    repeated request gets the same answer; a claim that is out of date is fenced.
    """
    if transaction.is_active:
        raise _busy(transaction)
    if claim is not None and transaction.epoch != NO_EPOCH:
        if _repeats_claim(transaction, claim):
            return _initialized(transaction, timeout_ms, now_ms)
        check_claim(transaction, claim)
    last_epoch = NO_EPOCH if claim is None else transaction.epoch
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


def check_claim(transaction: Transaction, claim: Producer | None) -> None:
    """Pass when the claim is that of the current producer, or there is none; or raise `ProducerFenced`.

    Asked before an ongoing transaction is ended for a producer that starts: Kafka lets a claim that is out of
    date abort the transaction of the rightful owner, and fences both.
    """
    if claim is not None and claim != transaction.marker:
        raise _fenced(transaction, claim)


def add_partitions(
    transaction: Transaction, producer: Producer, partitions: Iterable[TopicPartition], now_ms: int
) -> Transaction:
    """The ongoing transaction with these partitions in it; the same object when they all were."""
    _check_owner(transaction, producer)
    if transaction.is_prepared:
        raise _busy(transaction)
    if transaction.state is not State.ONGOING:
        return _move(transaction, State.ONGOING, now_ms, partitions=frozenset(partitions), started_ms=now_ms)
    joined = transaction.partitions.union(partitions)
    if joined == transaction.partitions:
        return transaction
    return _move(transaction, State.ONGOING, now_ms, partitions=joined)


def check_partition(transaction: Transaction, producer: Producer, partition: TopicPartition) -> None:
    """Pass when the producer's ongoing transaction holds the partition, or raise why not."""
    _check_owner(transaction, producer)
    if transaction.is_prepared:
        raise _busy(transaction)
    if partition not in transaction.partitions:
        raise NotInTransaction(
            f"{partition.topic}-{partition.partition} is not in the transaction of "
            f"{transaction.transactional_id!r}: add it first, or abort and begin again"
        )


def end(
    transaction: Transaction,
    producer: Producer,
    *,
    committed: bool,
    bump: bool,
    now_ms: int,
    new_producer_id: Callable[[], int],
) -> Transaction:
    """The transaction with its outcome prepared; the same object when this end was done before.

    With `bump` (the second protocol) each end takes the next epoch. A repeated request is then known by the
    epoch before, and an abort of nothing is legal, for the client may not know whether its writes arrived.
    """
    repeated = _repeats_end(transaction, producer, bump=bump)
    if not repeated:
        _check_owner(transaction, producer)
    if transaction.state is State.ONGOING:
        return _prepare(transaction, committed, bump, now_ms, new_producer_id)
    if repeated and transaction.is_committed == committed:
        if transaction.is_prepared:
            raise _busy(transaction)
        return transaction
    if bump and not repeated and not committed and not transaction.is_prepared:
        return _prepare(replace(transaction, started_ms=now_ms), committed, bump, now_ms, new_producer_id)
    raise IllegalMove(
        f"{transaction.transactional_id!r} cannot {'commit' if committed else 'abort'} in state "
        f"{transaction.state.label}: begin a transaction and write something first"
    )


def fence(transaction: Transaction, now_ms: int) -> Transaction:
    """The ongoing transaction with its abort prepared by the broker; a new epoch shuts its producer out."""
    return _move(
        transaction, State.PREPARE_ABORT, now_ms, epoch=transaction.epoch + 1, last_epoch=NO_EPOCH, protocol=0
    )


def complete(transaction: Transaction, now_ms: int) -> Transaction:
    """The prepared transaction once its markers are written; the partitions are free again."""
    outcome = State.COMPLETE_COMMIT if transaction.is_committed else State.COMPLETE_ABORT
    if transaction.next_producer_id == NO_PRODUCER_ID:
        return _move(transaction, outcome, now_ms, partitions=frozenset())
    return _move(
        transaction,
        outcome,
        now_ms,
        partitions=frozenset(),
        producer_id=transaction.next_producer_id,
        previous_producer_id=transaction.producer_id,
        next_producer_id=NO_PRODUCER_ID,
        epoch=0,
    )


def _move(transaction: Transaction, state: State, now_ms: int, **changes: Any) -> Transaction:
    if state not in MOVES[transaction.state]:
        raise IllegalMove(
            f"{transaction.transactional_id!r} cannot go from {transaction.state.label} to {state.label}"
        )
    return replace(transaction, state=state, updated_ms=now_ms, **changes)


def _initialized(transaction: Transaction, timeout_ms: int, now_ms: int, **changes: Any) -> Transaction:
    changes |= {"timeout_ms": timeout_ms, "partitions": frozenset(), "started_ms": NO_TIME}
    return _move(transaction, State.EMPTY, now_ms, **changes)


def _prepare(
    transaction: Transaction,
    committed: bool,
    bump: bool,
    now_ms: int,
    new_producer_id: Callable[[], int],
) -> Transaction:
    state = State.PREPARE_COMMIT if committed else State.PREPARE_ABORT
    if not bump:
        return _move(transaction, state, now_ms, protocol=0)
    exhausted = transaction.epoch >= LAST_EPOCH
    return _move(
        transaction,
        state,
        now_ms,
        protocol=SECOND_PROTOCOL,
        epoch=transaction.epoch + 1,
        last_epoch=transaction.epoch,
        next_producer_id=new_producer_id() if exhausted else NO_PRODUCER_ID,
    )


def _repeats_end(transaction: Transaction, producer: Producer, *, bump: bool) -> bool:
    """Whether the request may be one that was answered, or is being answered, already."""
    if not (transaction.is_prepared or transaction.state in _COMPLETED):
        return False
    if not bump:
        return producer == transaction.marker
    if transaction.protocol != SECOND_PROTOCOL:
        return False
    if transaction.epoch == 0:
        return producer == Producer(transaction.previous_producer_id, LAST_EPOCH)
    return producer == Producer(transaction.producer_id, transaction.epoch - 1)


def _check_owner(transaction: Transaction, producer: Producer) -> None:
    if producer.producer_id != transaction.producer_id:
        raise UnknownProducer(
            f"{transaction.transactional_id!r} belongs to producer {transaction.producer_id} and not to "
            f"{producer.producer_id}: begin again with InitProducerId"
        )
    if producer.epoch != transaction.epoch:
        raise _fenced(transaction, producer)


def _repeats_claim(transaction: Transaction, claim: Producer) -> bool:
    """Whether the producer asks again for the answer to a claim that was granted."""
    if claim.epoch != transaction.last_epoch:
        return False
    # Epoch 0 follows another one only where the producer id was exhausted.
    owner = transaction.previous_producer_id if transaction.epoch == 0 else transaction.producer_id
    return claim.producer_id == owner


def _fenced(transaction: Transaction, producer: Producer) -> ProducerFenced:
    return ProducerFenced(
        f"{transaction.transactional_id!r} is at epoch {transaction.epoch} of producer "
        f"{transaction.producer_id}; epoch {producer.epoch} of producer {producer.producer_id} was fenced "
        "by a newer instance or by the transaction's time-out"
    )


def _busy(transaction: Transaction) -> TransactionBusy:
    return TransactionBusy(
        f"the transaction of {transaction.transactional_id!r} is {transaction.state.label}: ask again"
    )
