"""The transaction coordinator: its log, markers and responses, also after a crash."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from kio.schema.errors import ErrorCode

from headrace.broker.state_log import MemoryStateLog, Producer
from headrace.broker.transactions import TransactionCoordinator, TransactionSettings
from headrace.broker.transactions import transaction as decide
from headrace.broker.transactions.coordinator import OFFSETS, InvalidTransactionTimeout
from headrace.broker.transactions.records import write_key, write_value
from headrace.broker.transactions.state_manager import CoordinatorUnavailable, InvalidTransactionalId
from headrace.broker.transactions.transaction import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidTransactionState,
    ProducerFenced,
    TopicPartition,
    TransactionState,
)
from headrace.errors import HeadraceError
from headrace.storage.errors import DiskError
from headrace.storage.producers import StaleProducerEpoch
from tests.broker.transactions.listed_partitions import ListedPartitions, Marker, Write
from tests.broker.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
DAY_MS = 86_400_000


class BreakableLog(MemoryStateLog):
    """A transaction log that rejects records of one state."""

    fails_from: TransactionState | None = None

    def append(self, records, producer=None) -> None:
        for _, value in records:
            if value is not None and self.fails_from is not None and value[16] == self.fails_from:
                raise DiskError("no space left on the device")
        super().append(records, producer)


class Bench:
    """A coordinator with its dependencies; `restart` simulates kill -9 and a new start."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.state = BreakableLog()
        self.partitions = ListedPartitions(A, B, OFFSETS)
        self.transactions = self._make()

    def _make(self) -> TransactionCoordinator:
        return TransactionCoordinator(self.state, self.clock, self.partitions)

    async def restart(self) -> None:
        self.transactions = self._make()
        self.transactions.load()
        await self.transactions.start()

    async def begin(self, *partitions: TopicPartition, name: str = "t", timeout_ms: int = 60_000) -> Producer:
        """A producer with an ongoing transaction and a record in each of these partitions."""
        producer = await self.transactions.initialize(name, timeout_ms)
        await self.transactions.add_partitions(name, producer, partitions)
        self.write(producer, *partitions)
        return producer

    def write(self, producer: Producer, *partitions: TopicPartition, value: object = "v") -> None:
        for partition in partitions:
            self.partitions.write(*partition, Write(*producer, value))

    async def end(self, producer: Producer, *, committed: bool = True, bump: bool = False) -> Producer:
        return await self.transactions.end("t", producer, committed=committed, bump=bump)

    def check_produce(self, producer: Producer, partition: TopicPartition, version: int) -> ErrorCode:
        return self.transactions.check_produce("t", *producer, *partition, version)

    def state_of(self, name: str = "t") -> TransactionState:
        known = self.transactions.describe(name)
        assert known is not None
        return known.state


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(100):
        while not condition():
            await asyncio.sleep(0)


@pytest.fixture
def bench() -> Bench:
    return Bench()


# InitProducerId


async def test_idempotent_producers_get_different_producer_ids(bench: Bench) -> None:
    first = await bench.transactions.initialize(None, 60_000)
    second = await bench.transactions.initialize(None, 60_000)
    assert (first.epoch, second.epoch) == (0, 0)
    assert first.producer_id != second.producer_id


async def test_a_producer_id_is_not_reused_after_a_crash(bench: Bench) -> None:
    before = [await bench.transactions.initialize(None, 60_000) for _ in range(3)]
    await bench.restart()
    assert await bench.transactions.initialize(None, 60_000) not in before


async def test_a_second_producer_fences_the_first_and_aborts_its_transaction(bench: Bench) -> None:
    first = await bench.begin(A, B)
    second = await bench.transactions.initialize("t", 60_000)
    assert second == Producer(first.producer_id, first.epoch + 2)
    assert bench.partitions.markers(*A) == [Marker(first.producer_id, first.epoch + 1, False)]
    assert bench.check_produce(first, A, 9) is ErrorCode.invalid_producer_epoch
    with pytest.raises(ProducerFenced):
        await bench.end(first)
    with pytest.raises(StaleProducerEpoch):
        bench.write(first, B)


async def test_an_outdated_epoch_does_not_abort_the_transaction_of_the_current_producer(bench: Bench) -> None:
    first = await bench.transactions.initialize("t", 60_000)
    second = await bench.begin(A)
    with pytest.raises(ProducerFenced):
        await bench.transactions.initialize("t", 60_000, first)
    await bench.end(second)
    assert bench.partitions.committed(*A) == ["v"]


async def test_a_producer_may_initialize_during_its_transaction_and_repeat_the_request(bench: Bench) -> None:
    producer = await bench.begin(A)
    renewed = await bench.transactions.initialize("t", 60_000, producer)
    assert renewed.epoch > producer.epoch
    await bench.restart()
    assert await bench.transactions.initialize("t", 60_000, producer) == renewed
    assert bench.partitions.committed(*A) == []


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
async def test_a_timeout_out_of_bounds_is_rejected(bench: Bench, timeout_ms: int) -> None:
    with pytest.raises(InvalidTransactionTimeout, match=r"transaction\.max\.timeout\.ms"):
        await bench.transactions.initialize("t", timeout_ms)
    assert bench.transactions.describe("t") is None


async def test_an_empty_transactional_id_is_rejected(bench: Bench) -> None:
    with pytest.raises(InvalidTransactionalId):
        await bench.transactions.initialize("", 60_000)
    with pytest.raises(InvalidTransactionalId):
        await bench.transactions.add_partitions("", Producer(0, 0), [A])


# Adding partitions


async def test_an_unknown_transactional_id_is_rejected(bench: Bench) -> None:
    with pytest.raises(InvalidProducerIdMapping, match="call InitProducerId first"):
        await bench.transactions.add_partitions("t", Producer(0, 0), [A])


@pytest.mark.parametrize(
    ("version", "code"),
    [
        (9, ErrorCode.invalid_txn_state),
        (10, ErrorCode.invalid_txn_state),
        (11, ErrorCode.transaction_abortable),
        (12, ErrorCode.none),
    ],
)
async def test_a_write_to_a_partition_that_was_not_added(bench: Bench, version: int, code: ErrorCode) -> None:
    producer = await bench.begin(A)
    assert bench.check_produce(producer, A, version) is ErrorCode.none
    assert bench.check_produce(producer, B, version) is code


async def test_a_write_of_transaction_version_2_begins_the_transaction(bench: Bench) -> None:
    producer = await bench.transactions.initialize("t", 60_000)
    assert bench.check_produce(producer, A, 12) is ErrorCode.none
    assert bench.state_of() is TransactionState.ONGOING
    bench.write(producer, A)
    await bench.end(producer, bump=True)
    assert bench.partitions.committed(*A) == ["v"]


async def test_a_write_with_another_or_no_transactional_id_is_rejected(bench: Bench) -> None:
    producer = await bench.begin(A)
    check = bench.transactions.check_produce
    assert check(None, *producer, *A, 9) is ErrorCode.invalid_request
    assert check("other", *producer, *A, 9) is ErrorCode.invalid_producer_id_mapping
    assert check("t", producer.producer_id + 1, 0, *A, 9) is ErrorCode.invalid_producer_id_mapping


@pytest.mark.parametrize(("version", "code"), [(11, 19), (12, 51)])
async def test_a_write_while_the_last_transaction_completes_is_retriable(
    bench: Bench, version: int, code: int
) -> None:
    producer = await bench.begin(A)
    bench.partitions.before_write = failing_disk
    await bench.end(producer)
    assert bench.check_produce(producer, A, version) == code


async def test_offsets_are_in_a_transaction_once_they_were_added(bench: Bench) -> None:
    producer = await bench.transactions.initialize("t", 60_000)
    with pytest.raises(decide.PartitionNotInTransaction):
        bench.transactions.check_offsets("t", producer, add=False)
    bench.transactions.check_offsets("t", producer, add=True)
    bench.transactions.check_offsets("t", producer, add=False)
    bench.write(producer, OFFSETS)
    await bench.end(producer)
    assert bench.partitions.committed(*OFFSETS) == ["v"]


async def test_several_writers_share_one_transaction(bench: Bench) -> None:
    producer = await bench.transactions.initialize("t", 60_000)
    await bench.transactions.add_partitions("t", producer, [A, B])
    for value in range(3):
        assert bench.check_produce(producer, A, 9) is bench.check_produce(producer, B, 9) is ErrorCode.none
        bench.write(producer, A, B, value=value)
    await bench.end(producer)
    assert bench.partitions.committed(*A) == bench.partitions.committed(*B) == [0, 1, 2]


# EndTxn


@pytest.mark.parametrize("bump", [True, False])
@pytest.mark.parametrize("committed", [True, False])
async def test_readers_see_all_or_nothing_when_the_end_returns(
    bench: Bench, committed: bool, bump: bool
) -> None:
    producer = await bench.begin(A, B)
    assert bench.partitions.committed(*A) == []
    await bench.end(producer, committed=committed, bump=bump)
    expected = ["v"] if committed else []
    assert bench.partitions.committed(*A) == bench.partitions.committed(*B) == expected


async def test_a_partition_that_was_added_gets_a_marker_even_without_records(bench: Bench) -> None:
    producer = await bench.transactions.initialize("t", 60_000)
    await bench.transactions.add_partitions("t", producer, [A])
    await bench.end(producer)
    assert bench.partitions.markers(*A) == [Marker(*producer, True)]


async def test_with_an_epoch_per_transaction_a_late_write_of_the_last_one_is_rejected(bench: Bench) -> None:
    producer = await bench.begin(A)
    successor = await bench.end(producer, bump=True)
    assert successor == Producer(producer.producer_id, producer.epoch + 1)
    await bench.transactions.add_partitions("t", successor, [A, B])
    with pytest.raises(StaleProducerEpoch):
        bench.write(producer, A)
    assert bench.check_produce(producer, B, 9) is ErrorCode.invalid_producer_epoch
    bench.write(successor, A, value="w")
    await bench.end(successor, bump=True)
    assert bench.partitions.committed(*A) == ["v", "w"]


@pytest.mark.parametrize("bump", [True, False])
async def test_an_end_repeated_after_a_lost_response_gets_the_same_response(bench: Bench, bump: bool) -> None:
    producer = await bench.begin(A)
    answer = await bench.end(producer, bump=bump)
    assert await bench.end(producer, bump=bump) == answer
    await bench.restart()
    assert await bench.end(producer, bump=bump) == answer
    assert len(bench.partitions.markers(*A)) == 1


async def test_a_commit_without_partitions_is_rejected(bench: Bench) -> None:
    producer = await bench.transactions.initialize("t", 60_000)
    for bump in (True, False):
        with pytest.raises(InvalidTransactionState):
            await bench.end(producer, bump=bump)


async def test_a_producer_id_is_replaced_when_its_epochs_are_exhausted(bench: Bench) -> None:
    producer = await bench.begin(A)
    known = bench.transactions.describe("t")
    assert known is not None
    old = replace(known, epoch=decide.LAST_EPOCH)
    bench.state.append([(write_key("t"), write_value(old))])
    bench.partitions.logs[A].producers.marker(*old.producer, 5, committed=True, now_ms=0)
    bench.write(old.producer, A, value="w")
    await bench.restart()
    successor = await bench.end(old.producer, bump=True)
    assert successor.epoch == 0
    assert successor.producer_id != producer.producer_id
    assert await bench.end(old.producer, bump=True) == successor
    assert bench.partitions.markers(*A)[-1] == Marker(producer.producer_id, 32_767, True)


async def test_a_deleted_topic_does_not_block_the_end(bench: Bench) -> None:
    producer = await bench.begin(A, B)
    del bench.partitions.logs[B]
    await bench.end(producer)
    assert bench.state_of() is TransactionState.COMPLETE_COMMIT


# Crashes and faults


def failing_disk() -> None:
    raise DiskError("no space left on the device")


@pytest.mark.parametrize("committed", [True, False])
async def test_a_prepared_outcome_is_completed_after_a_crash(bench: Bench, committed: bool) -> None:
    producer = await bench.begin(A, B)
    steps = iter([None, DiskError("killed")])

    def one_marker_only() -> None:
        fault = next(steps)
        if fault is not None:
            raise fault

    bench.partitions.before_write = one_marker_only
    await bench.end(producer, committed=committed)
    assert bench.state_of() in {TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT}
    bench.partitions.before_write = lambda: None
    await bench.restart()
    expected = ["v"] if committed else []
    assert bench.partitions.committed(*A) == bench.partitions.committed(*B) == expected
    marker = Marker(*producer, committed)
    assert set(bench.partitions.markers(*A)) == set(bench.partitions.markers(*B)) == {marker}


@pytest.mark.parametrize("written", [0, 1, 2], ids=["no marker", "one marker", "both markers"])
async def test_an_empty_transaction_fences_its_partitions_after_a_crash(bench: Bench, written: int) -> None:
    first = await bench.transactions.initialize("t", 60_000)
    await bench.transactions.add_partitions("t", first, [A, B])
    steps = iter([None] * written + [DiskError("killed")] * 3)

    def some_markers_only() -> None:
        fault = next(steps)
        if fault is not None:
            raise fault

    bench.partitions.before_write = some_markers_only
    bench.state.fails_from = TransactionState.COMPLETE_ABORT if written == 2 else None
    with pytest.raises((ConcurrentTransactions, CoordinatorUnavailable)):
        await bench.transactions.initialize("t", 60_000)
    bench.partitions.before_write, bench.state.fails_from = (lambda: None), None
    await bench.restart()
    await bench.transactions.initialize("t", 60_000)
    for partition in (A, B):
        with pytest.raises(StaleProducerEpoch):
            bench.write(first, partition)


async def test_markers_that_a_full_disk_rejected_are_written_later(bench: Bench) -> None:
    producer = await bench.begin(A)
    bench.partitions.before_write = failing_disk
    await bench.end(producer)
    with pytest.raises(ConcurrentTransactions):
        await bench.transactions.initialize("t", 60_000)
    bench.partitions.before_write = lambda: None
    await bench.transactions.run_maintenance()
    assert bench.partitions.committed(*A) == ["v"]


class SlowLog(MemoryStateLog):
    """A transaction log whose flush ends when the test sets it."""

    def __init__(self) -> None:
        super().__init__()
        self.flushed = asyncio.Event()
        self.flushed.set()

    async def durable(self) -> None:
        await self.flushed.wait()


async def test_a_transaction_does_not_change_while_its_end_is_flushed(bench: Bench) -> None:
    slow = bench.state = SlowLog()
    await bench.restart()
    producer = await bench.begin(A)
    slow.flushed.clear()
    ending = asyncio.create_task(bench.end(producer))
    await eventually(lambda: bench.state_of() is TransactionState.PREPARE_COMMIT)
    await asyncio.wait_for(bench.transactions.run_maintenance(), 5)
    assert bench.state_of() is TransactionState.PREPARE_COMMIT
    with pytest.raises(ConcurrentTransactions):
        await bench.end(producer)
    with pytest.raises(ConcurrentTransactions):
        await bench.transactions.initialize("t", 60_000)
    assert bench.partitions.markers(*A) == []
    slow.flushed.set()
    await ending
    assert bench.partitions.markers(*A) == [Marker(*producer, True)]
    await bench.transactions.close()


async def test_an_ongoing_transaction_continues_after_a_crash(bench: Bench) -> None:
    producer = await bench.begin(A)
    await bench.restart()
    await bench.transactions.add_partitions("t", producer, [B])
    bench.write(producer, A, B, value="w")
    await bench.end(producer)
    assert bench.partitions.committed(*A) == ["v", "w"]


async def test_a_failed_write_to_the_transaction_log_changes_nothing(bench: Bench) -> None:
    producer = await bench.begin(A)

    class FullLog(MemoryStateLog):
        def append(self, records, producer=None) -> None:
            failing_disk()

    full = FullLog()
    full.entries = bench.state.entries
    transactions = TransactionCoordinator(full, bench.clock, bench.partitions)
    transactions.load()
    with pytest.raises(CoordinatorUnavailable, match="no space left"):
        await transactions.end("t", producer, committed=True, bump=False)
    with pytest.raises(CoordinatorUnavailable):
        await transactions.initialize("other", 60_000)
    known = transactions.describe("t")
    assert known is not None
    assert known.state is TransactionState.ONGOING
    assert bench.partitions.markers(*A) == []


async def test_a_marker_with_an_older_epoch_than_the_partition_does_not_block_the_end(bench: Bench) -> None:
    producer = await bench.begin(A)
    bench.partitions.write_marker(*A, producer.producer_id, producer.epoch + 5, committed=False)
    await bench.end(producer)
    assert bench.state_of() is TransactionState.COMPLETE_COMMIT


# Time


async def test_a_transaction_that_times_out_is_aborted_and_its_producer_fenced(bench: Bench) -> None:
    producer = await bench.begin(A, timeout_ms=5_000)
    bench.clock.advance(5_000)
    await bench.transactions.run_maintenance()
    assert bench.state_of() is TransactionState.ONGOING
    bench.clock.advance(1)
    await bench.transactions.run_maintenance()
    assert bench.state_of() is TransactionState.COMPLETE_ABORT
    assert bench.partitions.committed(*A) == []
    assert bench.partitions.logs[A].producers.first_unstable_offset is None
    with pytest.raises(ProducerFenced):
        await bench.end(producer)


async def test_the_timeout_of_a_transaction_survives_a_restart(bench: Bench) -> None:
    await bench.begin(A, timeout_ms=5_000)
    bench.clock.advance(5_001)
    await bench.restart()
    assert bench.state_of() is TransactionState.COMPLETE_ABORT


async def test_maintenance_runs_until_the_coordinator_is_closed(bench: Bench) -> None:
    await bench.begin(A, timeout_ms=500)
    await bench.transactions.start()
    bench.clock.advance(1_000)
    await eventually(lambda: bench.state_of() is TransactionState.COMPLETE_ABORT)
    await eventually(lambda: bench.clock.pending == 1)
    await bench.transactions.close()
    assert bench.clock.pending == 0


async def test_close_waits_for_running_maintenance(bench: Bench) -> None:
    await bench.begin(A, timeout_ms=500)
    await bench.transactions.start()
    bench.clock.advance(1_000)
    await bench.transactions.close()
    assert bench.state_of() is TransactionState.COMPLETE_ABORT
    assert bench.clock.pending == 0


async def test_failed_maintenance_is_retried(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    await bench.transactions.start()
    await bench.begin(A, timeout_ms=500)

    def broken() -> None:
        raise RuntimeError("a bug")

    bench.partitions.before_write = broken
    bench.clock.advance(1_000)
    await eventually(lambda: "Transaction maintenance failed" in caplog.text)
    bench.partitions.before_write = lambda: None
    bench.clock.advance(1_000)
    await eventually(lambda: bench.state_of() is TransactionState.COMPLETE_ABORT)
    await bench.transactions.close()


async def test_an_unused_transactional_id_expires_after_a_week(bench: Bench) -> None:
    await bench.transactions.initialize("idle", 60_000)
    bench.clock.advance(7 * DAY_MS - 1)
    await bench.transactions.initialize("busy", 60_000)
    await bench.restart()
    assert bench.transactions.describe("idle") is not None
    bench.clock.advance(60_000)
    await bench.transactions.run_maintenance()
    assert bench.transactions.describe("idle") is None
    await bench.restart()
    assert [known.transactional_id for known in bench.transactions.list_all()] == ["busy"]


# Transactions without an owner


async def test_an_open_transaction_without_an_owner_is_aborted_at_startup(bench: Bench) -> None:
    bench.write(Producer(77, 3), A)
    await bench.restart()
    assert bench.partitions.markers(*A) == [Marker(77, 3, False)]


async def test_a_batch_that_arrives_after_its_marker_does_not_block_readers_forever(bench: Bench) -> None:
    await bench.transactions.start()
    producer = await bench.begin(A)
    await bench.end(producer)
    bench.write(producer, A, value="late")
    bench.clock.advance(60_000)
    await bench.transactions.run_maintenance()
    assert bench.partitions.committed(*A) == ["v"]
    assert bench.partitions.logs[A].producers.first_unstable_offset is None
    await bench.transactions.close()


async def test_a_transaction_whose_record_lost_a_partition_is_aborted_as_a_whole(bench: Bench) -> None:
    producer = await bench.begin(A)
    bench.write(producer, B)
    await bench.restart()
    with pytest.raises(ProducerFenced):
        await bench.end(producer)
    assert bench.partitions.committed(*A) == bench.partitions.committed(*B) == []
    assert list(bench.partitions.open_transactions()) == []


async def test_an_operator_aborts_a_hanging_transaction_of_a_partition(bench: Bench) -> None:
    bench.write(Producer(77, 3), A)
    with pytest.raises(StaleProducerEpoch):
        await bench.transactions.abort_partition(A, Producer(77, 2))
    await bench.transactions.abort_partition(A, Producer(77, 3))
    assert bench.partitions.markers(*A) == [Marker(77, 3, False)]


async def test_an_abort_of_one_partition_by_an_operator_aborts_the_whole_transaction(bench: Bench) -> None:
    producer = await bench.begin(A, B)
    await bench.transactions.abort_partition(A, producer)
    assert bench.state_of() is TransactionState.COMPLETE_ABORT
    assert list(bench.partitions.open_transactions()) == []


def test_settings_are_positive() -> None:
    with pytest.raises(HeadraceError, match="timeout_check_interval_ms is 0"):
        TransactionSettings(timeout_check_interval_ms=0)
