"""Sequences, epochs and open transactions of the producers of one partition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocol.batch import TRANSACTIONAL, BatchHeader
from headrace.storage.producers import (
    EXPIRATION_MS,
    AbortedTransaction,
    CorruptSnapshot,
    Duplicate,
    OutOfOrderSequence,
    OutsideTransaction,
    ProducerStateError,
    ProducerStates,
    StaleProducerEpoch,
)

LAST_SEQUENCE = 2**31 - 1


def header(
    sequence: int, count: int = 1, *, producer: int = 7, epoch: int = 0, transactional: bool = False
) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        length=100,
        leader_epoch=0,
        magic=2,
        crc=0,
        attributes=TRANSACTIONAL if transactional else 0,
        last_offset_delta=count - 1,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        count=count,
    )


def write(states: ProducerStates, offset: int, batch: BatchHeader, now_ms: int = 0) -> None:
    assert states.check(batch) is None
    states.applied(batch, offset, now_ms)


def test_a_producer_without_state_may_begin_with_any_sequence() -> None:
    states = ProducerStates()
    write(states, 0, header(41))
    write(states, 1, header(42))


def test_a_gap_in_the_sequence_is_refused() -> None:
    states = ProducerStates()
    write(states, 0, header(0, 3))
    with pytest.raises(OutOfOrderSequence, match="wrote sequence 4 instead of 3"):
        states.check(header(4))


def test_a_repeated_batch_is_known_by_its_first_and_last_sequence() -> None:
    states = ProducerStates()
    for number in range(5):
        write(states, number * 2, header(number * 2, 2), now_ms=number)
    assert states.check(header(0, 2)) == Duplicate(base_offset=0, append_time_ms=0)
    assert states.check(header(8, 2)) == Duplicate(base_offset=8, append_time_ms=4)
    with pytest.raises(OutOfOrderSequence):
        states.check(header(8, 1))


def test_a_repeated_batch_older_than_the_last_five_is_refused() -> None:
    states = ProducerStates()
    for number in range(6):
        write(states, number, header(number))
    assert states.check(header(1)) == Duplicate(base_offset=1, append_time_ms=0)
    with pytest.raises(OutOfOrderSequence):
        states.check(header(0))


def test_sequences_wrap_at_their_limit() -> None:
    states = ProducerStates()
    write(states, 0, header(LAST_SEQUENCE - 1, 4))
    assert states.check(header(LAST_SEQUENCE - 1, 4)) == Duplicate(base_offset=0, append_time_ms=0)
    write(states, 4, header(2))


def test_the_sequence_after_the_last_one_is_zero() -> None:
    states = ProducerStates()
    write(states, 0, header(LAST_SEQUENCE))
    write(states, 1, header(0))


def test_an_older_epoch_is_refused() -> None:
    states = ProducerStates()
    write(states, 0, header(0, epoch=3))
    with pytest.raises(StaleProducerEpoch, match="wrote with epoch 2, and its current epoch is 3"):
        states.check(header(1, epoch=2))


def test_a_new_epoch_begins_with_sequence_zero_and_forgets_the_old_batches() -> None:
    states = ProducerStates()
    write(states, 0, header(0, epoch=0))
    with pytest.raises(OutOfOrderSequence, match="a new epoch starts with 0"):
        states.check(header(1, epoch=1))
    write(states, 1, header(0, epoch=1))
    assert states.check(header(0, epoch=1)) == Duplicate(base_offset=1, append_time_ms=0)


def test_a_batch_without_a_sequence_is_held_to_the_epoch_alone() -> None:
    states = ProducerStates()
    write(states, 0, header(-1, epoch=1, transactional=True))
    write(states, 1, header(-1, epoch=1, transactional=True))
    with pytest.raises(StaleProducerEpoch):
        states.check(header(-1, epoch=0, transactional=True))


def test_a_batch_outside_an_open_transaction_is_refused() -> None:
    states = ProducerStates()
    write(states, 0, header(0, transactional=True))
    with pytest.raises(OutsideTransaction, match="end the transaction first"):
        states.check(header(1))


def test_the_first_unstable_offset_is_that_of_the_oldest_open_transaction() -> None:
    states = ProducerStates()
    assert states.first_unstable_offset is None
    write(states, 3, header(0, producer=1, transactional=True))
    write(states, 5, header(0, producer=2, transactional=True))
    write(states, 6, header(1, producer=1, transactional=True))
    assert states.first_unstable_offset == 3
    states.marker(1, 0, 7, committed=True, now_ms=0)
    assert states.first_unstable_offset == 5
    assert states.open_transactions() == {2: 5}
    states.marker(2, 0, 8, committed=True, now_ms=0)
    assert states.first_unstable_offset is None


def test_an_abort_tells_readers_what_to_skip() -> None:
    states = ProducerStates()
    write(states, 3, header(0, producer=1, transactional=True))
    write(states, 5, header(0, producer=2, transactional=True))
    assert states.marker(1, 0, 7, committed=False, now_ms=0) == AbortedTransaction(
        producer_id=1, first_offset=3, last_offset=7, last_stable_offset=5
    )
    assert states.marker(2, 0, 8, committed=False, now_ms=0) == AbortedTransaction(
        producer_id=2, first_offset=5, last_offset=8, last_stable_offset=9
    )


def test_a_marker_without_records_leaves_nothing_to_skip() -> None:
    states = ProducerStates()
    assert states.marker(1, 4, 0, committed=False, now_ms=0) is None
    assert states.epoch_of(1) == 4


def test_a_marker_of_the_same_epoch_lets_the_sequence_go_on() -> None:
    states = ProducerStates()
    write(states, 0, header(0, 2, transactional=True))
    states.marker(7, 0, 2, committed=True, now_ms=0)
    write(states, 3, header(2, transactional=True))


def test_a_marker_of_a_new_epoch_fences_the_old_one_and_restarts_the_sequence() -> None:
    states = ProducerStates()
    write(states, 0, header(0, 2, transactional=True))
    states.marker(7, 1, 2, committed=False, now_ms=0)
    with pytest.raises(StaleProducerEpoch):
        states.check(header(2, transactional=True))
    with pytest.raises(OutOfOrderSequence):
        states.check(header(2, epoch=1, transactional=True))
    write(states, 3, header(0, epoch=1, transactional=True))


def test_a_marker_of_an_older_epoch_is_refused() -> None:
    states = ProducerStates()
    write(states, 0, header(0, epoch=2, transactional=True))
    with pytest.raises(StaleProducerEpoch):
        states.check_marker(7, 1)
    states.check_marker(7, 2)
    states.check_marker(7, 3)


def test_idle_producers_expire_and_those_with_an_open_transaction_do_not() -> None:
    states = ProducerStates()
    write(states, 0, header(5, producer=1))
    write(states, 1, header(0, producer=2, transactional=True))
    write(states, 2, header(0, producer=3), now_ms=1)
    assert states.expire(EXPIRATION_MS) == 1
    assert [known.producer_id for known in states.describe()] == [2, 3]
    write(states, 3, header(17, producer=1))


def test_compaction_keeps_the_last_batch_of_each_producer_or_its_marker() -> None:
    states = ProducerStates()
    write(states, 0, header(0, 3, producer=1))
    write(states, 3, header(0, producer=2, transactional=True))
    states.marker(2, 1, 4, committed=True, now_ms=0)
    write(states, 5, header(0, producer=3, transactional=True))
    states.marker(3, 0, 6, committed=True, now_ms=0)
    assert states.active() == {1: 2, 2: 4, 3: 5}


def test_a_description_shows_what_the_admin_client_asks_for() -> None:
    states = ProducerStates()
    write(states, 4, header(0, 3, epoch=2, transactional=True), now_ms=11)
    (known,) = states.describe()
    assert (known.producer_id, known.epoch, known.last_sequence) == (7, 2, 2)
    assert (known.last_used_ms, known.coordinator_epoch, known.first_open_offset) == (11, -1, 4)


@pytest.mark.parametrize(
    "damage",
    [
        lambda snapshot: b"",
        lambda snapshot: snapshot[:-1],
        lambda snapshot: snapshot + b"\0",
        lambda snapshot: b"\x09" + snapshot[1:],
        lambda snapshot: snapshot[:-1] + bytes([snapshot[-1] ^ 1]),
    ],
    ids=["empty", "torn", "too long", "other version", "flipped bit"],
)
def test_a_damaged_snapshot_is_refused(damage) -> None:
    states = ProducerStates()
    write(states, 0, header(0))
    with pytest.raises(CorruptSnapshot, match="rebuild it from the log"):
        ProducerStates.load(damage(states.dump()))


class Model:
    """The same rules with nothing but the log itself: every answer is found by reading all of it."""

    def __init__(self) -> None:
        self.log: list[tuple[int, BatchHeader | tuple[int, int, bool]]] = []
        self.end = 0

    def epoch(self, producer: int) -> int:
        epochs = [e.producer_epoch if isinstance(e, BatchHeader) else e[1] for _, e in self.of(producer)]
        return max(epochs, default=-1)

    def of(self, producer: int):
        return [
            (offset, entry)
            for offset, entry in self.log
            if (entry.producer_id if isinstance(entry, BatchHeader) else entry[0]) == producer
        ]

    def batches(self, producer: int) -> list[tuple[int, BatchHeader]]:
        """Those of the current epoch, without the markers."""
        epoch = self.epoch(producer)
        found = [(o, e) for o, e in self.of(producer) if isinstance(e, BatchHeader)]
        return [(offset, batch) for offset, batch in found if batch.producer_epoch == epoch]

    def first_open(self, producer: int) -> int | None:
        first = None
        for offset, entry in self.of(producer):
            if not isinstance(entry, BatchHeader):
                first = None
            elif entry.is_transactional and first is None:
                first = offset
        return first

    def verdict(self, batch: BatchHeader) -> type[ProducerStateError] | int | None:
        producer = batch.producer_id
        if not self.of(producer):
            return None
        if batch.producer_epoch < self.epoch(producer):
            return StaleProducerEpoch
        known = self.batches(producer) if batch.producer_epoch == self.epoch(producer) else []
        expected = (known[-1][1].last_sequence + 1) % 2**31 if known else 0
        if batch.base_sequence != expected:
            for offset, old in known[-5:]:
                if (old.base_sequence, old.last_sequence) == (batch.base_sequence, batch.last_sequence):
                    return offset
            return OutOfOrderSequence
        if self.first_open(producer) is not None and not batch.is_transactional:
            return OutsideTransaction
        return None


producers = st.integers(0, 2)
sequences = st.one_of(st.integers(0, 8), st.sampled_from([LAST_SEQUENCE - 1, LAST_SEQUENCE]))
batches = st.builds(
    lambda sequence, count, producer, epoch, transactional: header(
        sequence, count, producer=producer, epoch=epoch, transactional=transactional
    ),
    sequences,
    st.integers(1, 3),
    producers,
    st.integers(0, 2),
    st.booleans(),
)
markers = st.tuples(producers, st.integers(0, 2), st.booleans())
followers = st.tuples(producers, st.integers(1, 3), st.booleans())


def in_sequence(model: Model, follower: tuple[int, int, bool]) -> BatchHeader:
    """The batch that a well-behaved producer sends next; random ones alone would hardly ever be accepted."""
    producer, count, transactional = follower
    known = model.batches(producer)
    sequence = (known[-1][1].last_sequence + 1) % 2**31 if known else 0
    epoch = max(model.epoch(producer), 0)
    return header(sequence, count, producer=producer, epoch=epoch, transactional=transactional)


def observe(states: ProducerStates) -> tuple:
    return states.dump(), states.first_unstable_offset, states.open_transactions(), states.active()


@given(st.lists(st.one_of(batches, markers, followers.map(list)), max_size=40))
def test_the_states_answer_as_a_model_that_reads_the_whole_log(steps) -> None:
    states, model = ProducerStates(), Model()
    for step in steps:
        if isinstance(step, tuple) and not isinstance(step, BatchHeader):
            apply_marker(states, model, step)
        else:
            batch = step if isinstance(step, BatchHeader) else in_sequence(model, step)
            apply_batch(states, model, batch)
        opened = [first for producer in range(3) if (first := model.first_open(producer)) is not None]
        assert states.first_unstable_offset == min(opened, default=None)
    assert observe(ProducerStates.load(states.dump())) == observe(states)
    assert observe(replayed(model)) == observe(states)


def apply_batch(states: ProducerStates, model: Model, batch: BatchHeader) -> None:
    verdict = model.verdict(batch)
    if isinstance(verdict, type):
        with pytest.raises(verdict):
            states.check(batch)
        return
    answer = states.check(batch)
    assert (answer and answer.base_offset) == verdict
    if answer is None:
        states.applied(batch, model.end, model.end)
        model.log.append((model.end, batch))
        model.end += batch.count


def apply_marker(states: ProducerStates, model: Model, step: tuple[int, int, bool]) -> None:
    producer, epoch, committed = step
    if epoch < model.epoch(producer):
        with pytest.raises(StaleProducerEpoch):
            states.check_marker(producer, epoch)
        return
    states.check_marker(producer, epoch)
    first = model.first_open(producer)
    aborted = states.marker(producer, epoch, model.end, committed=committed, now_ms=model.end)
    assert (aborted and aborted.first_offset) == (None if committed else first)
    model.log.append((model.end, step))
    model.end += 1


def replayed(model: Model) -> ProducerStates:
    states = ProducerStates()
    for offset, entry in model.log:
        if isinstance(entry, BatchHeader):
            states.applied(entry, offset, offset)
        else:
            producer, epoch, committed = entry
            states.marker(producer, epoch, offset, committed=committed, now_ms=offset)
    return states
