"""The decisions of one transactional id, request by request."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from kio.schema.errors import ErrorCode

from headrace.broker.statelog import Producer
from headrace.broker.transactions import transaction as decide
from headrace.broker.transactions.transaction import (
    LAST_EPOCH,
    MOVES,
    IllegalMove,
    NotInTransaction,
    ProducerFenced,
    State,
    TopicPartition,
    Transaction,
    TransactionBusy,
    UnknownProducer,
)

NOW = 1_000
A, B = TopicPartition("a", 0), TopicPartition("b", 1)
OTHER_ID = 900


def new_id() -> int:
    return OTHER_ID


def transaction(state: State = State.EMPTY, **fields) -> Transaction:
    known = {"transactional_id": "t", "producer_id": 7, "epoch": 3, "timeout_ms": 60_000, "updated_ms": 0}
    return Transaction(**(known | {"state": state} | fields))


def ongoing(**fields) -> Transaction:
    return transaction(State.ONGOING, partitions=frozenset({A}), started_ms=500, **fields)


def owner(known: Transaction) -> Producer:
    return Producer(known.producer_id, known.epoch)


def initialize(known: Transaction, claim: Producer | None = None) -> Transaction:
    return decide.initialize(known, claim, timeout_ms=5_000, now_ms=NOW, new_producer_id=new_id)


def end(
    known: Transaction, producer: Producer | None = None, *, committed: bool = True, bump: bool = False
) -> Transaction:
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
    assert (started.state, started.marker, started.timeout_ms) == (State.EMPTY, Producer(7, 0), 5_000)


def test_every_start_takes_the_next_epoch() -> None:
    started = initialize(transaction(State.COMPLETE_COMMIT, started_ms=5))
    assert (started.state, started.epoch, started.started_ms) == (State.EMPTY, 4, -1)


def test_a_recovering_producer_gets_the_next_epoch_and_the_same_answer_when_it_asks_again() -> None:
    started = initialize(transaction(State.COMPLETE_ABORT), Producer(7, 3))
    assert started.marker == Producer(7, 4)
    assert initialize(started, Producer(7, 3)).marker == Producer(7, 4)


@pytest.mark.parametrize("claim", [Producer(7, 2), Producer(7, 5), Producer(8, 3)])
def test_a_claim_that_is_out_of_date_is_fenced(claim: Producer) -> None:
    with pytest.raises(ProducerFenced, match="at epoch 3 of producer 7"):
        initialize(transaction(State.COMPLETE_ABORT), claim)


def test_only_the_claim_before_the_last_start_may_be_repeated() -> None:
    started = initialize(transaction(State.COMPLETE_ABORT), Producer(7, 3))
    for epoch in (1, 2):
        with pytest.raises(ProducerFenced):
            initialize(started, Producer(7, epoch))


def test_after_a_new_instance_started_the_older_one_cannot_recover() -> None:
    started = initialize(transaction())
    with pytest.raises(ProducerFenced):
        initialize(started, Producer(7, 3))


def test_an_exhausted_epoch_changes_the_producer_id() -> None:
    started = initialize(transaction(epoch=LAST_EPOCH))
    assert started.marker == Producer(OTHER_ID, 0)
    assert started.previous_producer_id == 7


def test_a_claim_on_an_exhausted_epoch_may_be_repeated_too() -> None:
    claim = Producer(7, LAST_EPOCH)
    started = initialize(transaction(epoch=LAST_EPOCH), claim)
    assert initialize(started, claim).marker == started.marker == Producer(OTHER_ID, 0)
    with pytest.raises(ProducerFenced):
        initialize(replace(started, epoch=LAST_EPOCH, last_epoch=LAST_EPOCH - 1), claim)


@pytest.mark.parametrize("state", [State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_nothing_starts_before_the_last_transaction_has_ended(state: State) -> None:
    with pytest.raises(TransactionBusy):
        initialize(transaction(state))


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_the_first_partition_begins_a_transaction(state: State) -> None:
    known = transaction(state, started_ms=5)
    added = decide.add_partitions(known, owner(known), [A], NOW)
    assert (added.state, added.partitions, added.started_ms) == (State.ONGOING, {A}, NOW)


def test_further_partitions_join_and_the_time_runs_from_the_first() -> None:
    known = ongoing()
    added = decide.add_partitions(known, owner(known), [B], NOW)
    assert (added.partitions, added.started_ms) == ({A, B}, 500)


def test_partitions_that_are_in_already_change_nothing() -> None:
    known = ongoing()
    assert decide.add_partitions(known, owner(known), [A], NOW) is known


def test_only_the_owner_adds_partitions() -> None:
    with pytest.raises(UnknownProducer, match="belongs to producer 7"):
        decide.add_partitions(ongoing(), Producer(8, 3), [B], NOW)
    for epoch in (2, 4):
        with pytest.raises(ProducerFenced):
            decide.add_partitions(ongoing(), Producer(7, epoch), [B], NOW)


def test_partitions_wait_until_the_last_transaction_has_ended() -> None:
    known = transaction(State.PREPARE_COMMIT)
    with pytest.raises(TransactionBusy):
        decide.add_partitions(known, owner(known), [A], NOW)
    with pytest.raises(TransactionBusy):
        decide.check_partition(known, owner(known), A)


def test_a_partition_that_was_not_added_is_told_from_one_that_was() -> None:
    known = ongoing()
    decide.check_partition(known, owner(known), A)
    with pytest.raises(NotInTransaction, match="b-1 is not in the transaction"):
        decide.check_partition(known, owner(known), B)


@pytest.mark.parametrize(
    ("committed", "prepared", "completed"),
    [
        (True, State.PREPARE_COMMIT, State.COMPLETE_COMMIT),
        (False, State.PREPARE_ABORT, State.COMPLETE_ABORT),
    ],
)
def test_an_end_is_prepared_and_then_complete(committed: bool, prepared: State, completed: State) -> None:
    decided = end(ongoing(), committed=committed)
    assert (decided.state, decided.partitions, decided.epoch) == (prepared, {A}, 3)
    done = decide.complete(decided, NOW)
    assert (done.state, done.partitions, done.epoch) == (completed, frozenset(), 3)


@pytest.mark.parametrize("committed", [True, False])
def test_a_repeated_end_changes_nothing(committed: bool) -> None:
    decided = end(ongoing(), committed=committed)
    with pytest.raises(TransactionBusy):
        end(decided, committed=committed)
    done = decide.complete(decided, NOW)
    assert end(done, committed=committed) is done


@pytest.mark.parametrize("bump", [True, False])
def test_the_other_outcome_is_refused_once_one_is_decided(bump: bool) -> None:
    decided = end(ongoing(), committed=True, bump=bump)
    for known in (decided, decide.complete(decided, NOW)):
        with pytest.raises(IllegalMove):
            end(known, Producer(7, 3), committed=False, bump=bump)


@pytest.mark.parametrize("bump", [True, False])
def test_a_commit_of_nothing_is_refused(bump: bool) -> None:
    with pytest.raises(IllegalMove, match="begin a transaction and write something first"):
        end(transaction(), committed=True, bump=bump)


def test_an_abort_of_nothing_is_legal_only_in_the_second_protocol() -> None:
    with pytest.raises(IllegalMove):
        end(transaction(), committed=False, bump=False)
    for state in (State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT):
        decided = end(transaction(state), committed=False, bump=True)
        assert (decided.state, decided.epoch, decided.started_ms) == (State.PREPARE_ABORT, 4, NOW)


@pytest.mark.parametrize("producer", [Producer(7, 2), Producer(7, 4), Producer(8, 3)])
@pytest.mark.parametrize("bump", [True, False])
def test_only_the_owner_ends_a_transaction(producer: Producer, bump: bool) -> None:
    with pytest.raises((ProducerFenced, UnknownProducer)):
        end(ongoing(), producer, bump=bump)


def test_in_the_second_protocol_each_end_takes_the_next_epoch() -> None:
    decided = end(ongoing(), bump=True)
    assert (decided.epoch, decided.successor) == (4, Producer(7, 4))
    done = decide.complete(decided, NOW)
    assert end(done, Producer(7, 3), bump=True) is done
    assert done.successor == Producer(7, 4)


def test_in_the_second_protocol_the_same_epoch_means_the_next_transaction() -> None:
    done = decide.complete(end(ongoing(), bump=True), NOW)
    with pytest.raises(IllegalMove):
        end(done, owner(done), committed=True, bump=True)


def test_an_end_on_an_exhausted_epoch_goes_on_with_another_producer_id() -> None:
    decided = end(ongoing(epoch=LAST_EPOCH), bump=True)
    assert decided.marker == Producer(7, LAST_EPOCH + 1)
    assert decided.successor == Producer(OTHER_ID, 0)
    done = decide.complete(decided, NOW)
    assert (done.marker, done.previous_producer_id) == (Producer(OTHER_ID, 0), 7)
    assert end(done, Producer(7, LAST_EPOCH), bump=True) is done


def test_no_producer_id_is_taken_before_it_is_needed() -> None:
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


def test_a_transaction_that_the_broker_aborts_shuts_its_producer_out() -> None:
    fenced = decide.fence(ongoing(), NOW)
    assert (fenced.state, fenced.epoch) == (State.PREPARE_ABORT, 4)
    for bump in (True, False):
        for known in (fenced, decide.complete(fenced, NOW)):
            with pytest.raises(ProducerFenced):
                end(known, Producer(7, 3), committed=False, bump=bump)


def test_a_transaction_times_out_after_its_own_time() -> None:
    known = ongoing(timeout_ms=100)
    assert not known.is_timed_out(600)
    assert known.is_timed_out(601)
    assert not end(known).is_timed_out(601)


def test_only_an_id_without_a_transaction_expires() -> None:
    assert transaction(updated_ms=5).is_expired(15, 10)
    assert not transaction(updated_ms=6).is_expired(15, 10)
    assert not ongoing(updated_ms=5).is_expired(15, 10)


def test_moves_outside_the_table_are_refused() -> None:
    with pytest.raises(IllegalMove, match="from Empty to CompleteAbort"):
        decide.complete(transaction(), NOW)
    assert MOVES[State.DEAD] == frozenset()


def test_states_have_the_names_and_numbers_of_kafka() -> None:
    assert [state.label for state in State] == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]


def test_a_fault_speaks_the_words_of_the_version() -> None:
    fenced, missing = ProducerFenced(), NotInTransaction()
    assert fenced.code_in(1, fenced_from=2) is ErrorCode.invalid_producer_epoch
    assert fenced.code_in(2, fenced_from=2) is ErrorCode.producer_fenced
    assert missing.code_in(3, abortable_from=4) is ErrorCode.invalid_txn_state
    assert missing.code_in(4, abortable_from=4) is ErrorCode.transaction_abortable
