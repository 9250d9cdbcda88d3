"""The state machine of one transactional id."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest
from kio.schema.errors import ErrorCode

from headrace.broker.state_log import Producer
from headrace.broker.transactions import transaction as decide
from headrace.broker.transactions.transaction import (
    LAST_EPOCH,
    TRANSITIONS,
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    PartitionNotInTransaction,
    ProducerFenced,
    TopicPartition,
    TransactionMetadata,
    TransactionState,
)

NOW = 1_000
A, B = TopicPartition("a", 0), TopicPartition("b", 1)
OTHER_ID = 900


def new_id() -> int:
    return OTHER_ID


def transaction(state: TransactionState = TransactionState.EMPTY, **fields) -> TransactionMetadata:
    known = {"transactional_id": "t", "producer_id": 7, "epoch": 3, "timeout_ms": 60_000, "updated_ms": 0}
    return TransactionMetadata(**(known | {"state": state} | fields))


def ongoing(**fields) -> TransactionMetadata:
    return transaction(TransactionState.ONGOING, partitions=frozenset({A}), started_ms=500, **fields)


def owner(known: TransactionMetadata) -> Producer:
    return Producer(known.producer_id, known.epoch)


def initialize(known: TransactionMetadata, expected: Producer | None = None) -> TransactionMetadata:
    return decide.initialize(known, expected, timeout_ms=5_000, now_ms=NOW, new_producer_id=new_id)


def end(
    known: TransactionMetadata,
    producer: Producer | None = None,
    *,
    committed: bool = True,
    bump: bool = False,
) -> TransactionMetadata:
    return decide.end(
        known,
        producer or owner(known),
        committed=committed,
        bump=bump,
        now_ms=NOW,
        new_producer_id=new_id,
    )


def test_a_new_id_begins_with_epoch_zero() -> None:
    started = initialize(transaction(epoch=-1))
    assert (started.state, started.producer, started.timeout_ms) == (
        TransactionState.EMPTY,
        Producer(7, 0),
        5_000,
    )


def test_every_initialization_increases_the_epoch() -> None:
    started = initialize(transaction(TransactionState.COMPLETE_COMMIT, started_ms=5))
    assert (started.state, started.epoch, started.started_ms) == (TransactionState.EMPTY, 4, -1)


def test_a_recovering_producer_gets_the_next_epoch_and_may_repeat_the_request() -> None:
    started = initialize(transaction(TransactionState.COMPLETE_ABORT), Producer(7, 3))
    assert started.producer == Producer(7, 4)
    assert initialize(started, Producer(7, 3)).producer == Producer(7, 4)


@pytest.mark.parametrize("expected", [Producer(7, 2), Producer(7, 5), Producer(8, 3)])
def test_an_outdated_producer_is_fenced(expected: Producer) -> None:
    with pytest.raises(ProducerFenced, match="at epoch 3 of producer id 7"):
        initialize(transaction(TransactionState.COMPLETE_ABORT), expected)


def test_only_the_last_initialization_may_be_repeated() -> None:
    started = initialize(transaction(TransactionState.COMPLETE_ABORT), Producer(7, 3))
    for epoch in (1, 2):
        with pytest.raises(ProducerFenced):
            initialize(started, Producer(7, epoch))


def test_an_older_producer_cannot_recover_after_a_new_one_started() -> None:
    started = initialize(transaction())
    with pytest.raises(ProducerFenced):
        initialize(started, Producer(7, 3))


def test_an_exhausted_epoch_changes_the_producer_id() -> None:
    started = initialize(transaction(epoch=LAST_EPOCH))
    assert started.producer == Producer(OTHER_ID, 0)
    assert started.previous_producer_id == 7


def test_a_request_with_an_exhausted_epoch_may_be_repeated() -> None:
    expected = Producer(7, LAST_EPOCH)
    started = initialize(transaction(epoch=LAST_EPOCH), expected)
    assert initialize(started, expected).producer == started.producer == Producer(OTHER_ID, 0)
    with pytest.raises(ProducerFenced):
        initialize(replace(started, epoch=LAST_EPOCH, last_epoch=LAST_EPOCH - 1), expected)


@pytest.mark.parametrize(
    "state", [TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT]
)
def test_no_producer_is_initialized_before_the_last_transaction_has_completed(
    state: TransactionState,
) -> None:
    with pytest.raises(ConcurrentTransactions):
        initialize(transaction(state))


@pytest.mark.parametrize(
    "state", [TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT]
)
def test_the_first_partition_begins_a_transaction(state: TransactionState) -> None:
    known = transaction(state, started_ms=5)
    added = decide.add_partitions(known, owner(known), [A], NOW)
    assert (added.state, added.partitions, added.started_ms) == (TransactionState.ONGOING, {A}, NOW)


def test_more_partitions_do_not_change_the_start_time() -> None:
    known = ongoing()
    added = decide.add_partitions(known, owner(known), [B], NOW)
    assert (added.partitions, added.started_ms) == ({A, B}, 500)


def test_adding_a_partition_again_changes_nothing() -> None:
    known = ongoing()
    assert decide.add_partitions(known, owner(known), [A], NOW) is known


def test_only_the_owner_adds_partitions() -> None:
    with pytest.raises(InvalidProducerIdMapping, match="has producer id 7, not"):
        decide.add_partitions(ongoing(), Producer(8, 3), [B], NOW)
    for epoch in (2, 4):
        with pytest.raises(ProducerFenced):
            decide.add_partitions(ongoing(), Producer(7, epoch), [B], NOW)


def test_partitions_cannot_be_added_before_the_last_transaction_has_completed() -> None:
    known = transaction(TransactionState.PREPARE_COMMIT)
    with pytest.raises(ConcurrentTransactions):
        decide.add_partitions(known, owner(known), [A], NOW)
    with pytest.raises(ConcurrentTransactions):
        decide.check_partition(known, owner(known), A)


def test_a_partition_that_was_not_added_is_rejected() -> None:
    known = ongoing()
    decide.check_partition(known, owner(known), A)
    with pytest.raises(PartitionNotInTransaction, match="b-1 is not in the transaction"):
        decide.check_partition(known, owner(known), B)


@pytest.mark.parametrize(
    ("committed", "prepared", "completed"),
    [
        (True, TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT),
        (False, TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT),
    ],
)
def test_an_end_is_prepared_and_then_completed(
    committed: bool, prepared: TransactionState, completed: TransactionState
) -> None:
    decided = end(ongoing(), committed=committed)
    assert (decided.state, decided.partitions, decided.epoch) == (prepared, {A}, 3)
    done = decide.complete(decided, NOW)
    assert (done.state, done.partitions, done.epoch) == (completed, frozenset(), 3)


@pytest.mark.parametrize("committed", [True, False])
def test_a_repeated_end_changes_nothing(committed: bool) -> None:
    decided = end(ongoing(), committed=committed)
    with pytest.raises(ConcurrentTransactions):
        end(decided, committed=committed)
    done = decide.complete(decided, NOW)
    assert end(done, committed=committed) is done


@pytest.mark.parametrize("bump", [True, False])
def test_the_other_outcome_is_rejected_once_one_is_prepared(bump: bool) -> None:
    decided = end(ongoing(), committed=True, bump=bump)
    for known in (decided, decide.complete(decided, NOW)):
        with pytest.raises(InvalidTransactionState):
            end(known, Producer(7, 3), committed=False, bump=bump)


@pytest.mark.parametrize("bump", [True, False])
def test_a_commit_without_a_transaction_is_rejected(bump: bool) -> None:
    with pytest.raises(InvalidTransactionState, match="add a partition to a transaction first"):
        end(transaction(), committed=True, bump=bump)


@pytest.mark.parametrize("state", sorted(set(TransactionState) - {TransactionState.ONGOING}))
def test_a_commit_is_rejected_for_the_state_only_if_it_was_not_committed(state: TransactionState) -> None:
    """A client that repeats its commit after a crash of the broker learns the outcome."""
    found = replace(ongoing(), state=state)
    if found.is_committed:
        with suppress(ConcurrentTransactions):  # until its markers are written
            end(found, committed=True)
    else:
        with pytest.raises(InvalidTransactionState):
            end(found, committed=True)


def test_an_abort_without_a_transaction_is_allowed_only_in_transaction_version_2() -> None:
    with pytest.raises(InvalidTransactionState):
        end(transaction(), committed=False, bump=False)
    for state in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT):
        decided = end(transaction(state), committed=False, bump=True)
        assert (decided.state, decided.epoch, decided.started_ms) == (TransactionState.PREPARE_ABORT, 4, NOW)


@pytest.mark.parametrize("producer", [Producer(7, 2), Producer(7, 4), Producer(8, 3)])
@pytest.mark.parametrize("bump", [True, False])
def test_only_the_owner_ends_a_transaction(producer: Producer, bump: bool) -> None:
    with pytest.raises((ProducerFenced, InvalidProducerIdMapping)):
        end(ongoing(), producer, bump=bump)


def test_in_transaction_version_2_each_end_increases_the_epoch() -> None:
    decided = end(ongoing(), bump=True)
    assert (decided.epoch, decided.next_producer) == (4, Producer(7, 4))
    done = decide.complete(decided, NOW)
    assert end(done, Producer(7, 3), bump=True) is done
    assert done.next_producer == Producer(7, 4)


def test_in_transaction_version_2_the_same_epoch_means_the_next_transaction() -> None:
    done = decide.complete(end(ongoing(), bump=True), NOW)
    with pytest.raises(InvalidTransactionState):
        end(done, owner(done), committed=True, bump=True)


def test_an_end_with_an_exhausted_epoch_continues_with_another_producer_id() -> None:
    decided = end(ongoing(epoch=LAST_EPOCH), bump=True)
    assert decided.producer == Producer(7, LAST_EPOCH + 1)
    assert decided.next_producer == Producer(OTHER_ID, 0)
    done = decide.complete(decided, NOW)
    assert (done.producer, done.previous_producer_id) == (Producer(OTHER_ID, 0), 7)
    assert end(done, Producer(7, LAST_EPOCH), bump=True) is done


def test_no_producer_id_is_allocated_before_it_is_needed() -> None:
    taken = count()
    decide.end(
        ongoing(epoch=LAST_EPOCH - 1),
        Producer(7, LAST_EPOCH - 1),
        committed=True,
        bump=True,
        now_ms=NOW,
        new_producer_id=lambda: next(taken),
    )
    assert next(taken) == 0


def test_a_transaction_that_the_broker_aborts_fences_its_producer() -> None:
    fenced = decide.fence(ongoing(), NOW)
    assert (fenced.state, fenced.epoch) == (TransactionState.PREPARE_ABORT, 4)
    for bump in (True, False):
        for known in (fenced, decide.complete(fenced, NOW)):
            with pytest.raises(ProducerFenced):
                end(known, Producer(7, 3), committed=False, bump=bump)


def test_a_transaction_times_out_after_its_timeout() -> None:
    known = ongoing(timeout_ms=100)
    assert not known.is_timed_out(600)
    assert known.is_timed_out(601)
    assert not end(known).is_timed_out(601)


def test_only_an_id_without_a_transaction_expires() -> None:
    assert transaction(updated_ms=5).is_expired(15, 10)
    assert not transaction(updated_ms=6).is_expired(15, 10)
    assert not ongoing(updated_ms=5).is_expired(15, 10)


def test_transitions_outside_the_table_are_rejected() -> None:
    with pytest.raises(InvalidTransactionState, match="from Empty to CompleteAbort"):
        decide.complete(transaction(), NOW)
    assert TRANSITIONS[TransactionState.DEAD] == frozenset()


def test_states_have_the_names_and_numbers_of_kafka() -> None:
    assert [state.label for state in TransactionState] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]


def test_an_error_has_the_code_of_the_version() -> None:
    fenced, missing = ProducerFenced(), PartitionNotInTransaction()
    assert fenced.code_in(1, fenced_from=2) is ErrorCode.invalid_producer_epoch
    assert fenced.code_in(2, fenced_from=2) is ErrorCode.producer_fenced
    assert missing.code_in(3, abortable_from=4) is ErrorCode.invalid_txn_state
    assert missing.code_in(4, abortable_from=4) is ErrorCode.transaction_abortable
