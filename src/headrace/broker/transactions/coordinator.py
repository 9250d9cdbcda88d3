"""The transaction coordinator: carries out the decisions of `transaction`.

The order of the steps makes a transaction atomic, also if the broker crashes between them:

1. the outcome is appended to the transaction log and made durable;
2. a marker is written to each partition and made durable;
3. the completion is appended to the transaction log.

After a crash behind step 1 `start` writes all markers again. All partitions are in this process, so that
readers see the outcome before EndTxn gets its response; Apache Kafka responds after step 1.

A partition may have an open transaction that belongs to no transactional id: a batch that arrived after its
marker, or the result of a power failure. Its readers would wait forever, so `run_maintenance` aborts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.broker.state_log import Producer
from headrace.broker.transactions import transaction as decide
from headrace.broker.transactions.state_manager import TransactionStateManager, check_transactional_id
from headrace.broker.transactions.transaction import (
    TopicPartition,
    TransactionError,
    TransactionMetadata,
    TransactionSettings,
    TransactionState,
)
from headrace.storage.errors import StorageError
from headrace.storage.producers import StaleProducerEpoch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from headrace.broker.clock import BrokerClock, Timer
    from headrace.broker.state_log import StateLog
    from headrace.broker.transactions.partitions import OpenTransaction, TransactionPartitions

OFFSETS: Final = TopicPartition("__consumer_offsets", 0)
"""The partition of the offsets that transactions commit; each internal topic has one partition."""
IMPLICIT_PRODUCE: Final = 12
"""The first version of Produce in which a write adds its partition to the transaction (KIP-890)."""
ABORTABLE_PRODUCE: Final = 11
"""The first version of Produce whose clients know TRANSACTION_ABORTABLE."""
MARKERS_AT_ONCE: Final = 100
"""Markers that are written before the event loop serves other connections: about 2 ms."""

logger = logging.getLogger(__name__)


class InvalidTransactionTimeout(TransactionError):
    """A transaction timeout that is not positive or exceeds the broker's limit."""

    code = ErrorCode.invalid_transaction_timeout


class TransactionCoordinator:
    """The transaction coordinator of a broker: `load`, `start`, and finally `close`."""

    def __init__(
        self,
        state: StateLog,
        clock: BrokerClock,
        partitions: TransactionPartitions,
        settings: TransactionSettings | None = None,
    ) -> None:
        self._state = TransactionStateManager(state)
        self._clock = clock
        self._partitions = partitions
        self._settings = settings or TransactionSettings()
        self._completing: set[str] = set()
        self._marker_lock = asyncio.Lock()
        """Held by the one large transaction whose markers are being written."""
        self._cleanup_due_ms = 0
        self._timer: Timer | None = None
        self._maintenance: asyncio.Task[None] | None = None

    # Lifecycle

    def load(self) -> None:
        """Restore the state from the transaction log; `start` then completes prepared transactions."""
        self._state.load()

    async def start(self) -> None:
        """Complete prepared transactions and start to check for timeouts; the partitions must be open."""
        await self.run_maintenance()
        self._schedule_maintenance()

    async def close(self) -> None:
        """Stop checking for timeouts; ongoing transactions continue after the next start."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._maintenance is not None:
            await asyncio.wait([self._maintenance])

    # Requests of clients

    async def initialize(
        self, transactional_id: str | None, timeout_ms: int, expected: Producer | None = None
    ) -> Producer:
        """A producer id and epoch for a producer that starts; older producers are fenced.

        Apache Kafka responds CONCURRENT_TRANSACTIONS while it aborts the transaction of the older producer;
        here the abort is complete when this returns.
        """
        if transactional_id is None:
            producer = Producer(self._state.allocate_producer_id(), 0)
        else:
            producer = await self._initialize(transactional_id, timeout_ms, expected)
        await self._state.durable()
        return producer

    async def add_partitions(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]
    ) -> None:
        """Add partitions to the producer's transaction, which begins with the first one."""
        self._add(transactional_id, producer, partitions)
        await self._state.durable()

    def check_partition(self, transactional_id: str, producer: Producer, partition: TopicPartition) -> None:
        """Raise `TransactionError` unless the partition is in the producer's ongoing transaction."""
        decide.check_partition(self._state.get(transactional_id), producer, partition)

    def check_produce(
        self,
        transactional_id: str | None,
        producer_id: int,
        epoch: int,
        topic: str,
        partition: int,
        version: int,
    ) -> ErrorCode:
        """Whether a producer may begin its transaction in a partition with a batch of Produce `version`.

        From version 12 the write adds the partition; before, the partition must have been added. The result
        is valid until the next await.
        """
        producer, where = Producer(producer_id, epoch), TopicPartition(topic, partition)
        try:
            if version >= IMPLICIT_PRODUCE:
                self._add(transactional_id or "", producer, (where,))
            else:
                self.check_partition(transactional_id or "", producer, where)
        except TransactionError as fault:
            return _produce_code(fault, version)
        return ErrorCode.none

    def add_written(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]
    ) -> None:
        """Add the partitions that one Produce request writes with a single record of the state log.

        A refusal is left to `check_produce`, which is asked for each partition.
        """
        with contextlib.suppress(TransactionError):
            self._add(transactional_id, producer, partitions)

    def check_offsets(self, transactional_id: str, producer: Producer, *, add: bool) -> None:
        """Raise `TransactionError` unless the transaction may commit offsets; `add` adds their partition."""
        if add:
            self._add(transactional_id, producer, (OFFSETS,))
        else:
            self.check_partition(transactional_id, producer, OFFSETS)

    async def end(
        self, transactional_id: str, producer: Producer, *, committed: bool, bump: bool
    ) -> Producer:
        """End the transaction for clients and readers; returns the producer id and epoch to continue with.

        With `bump` (EndTxn 5) the epoch is a new one. A repeated request gets the same result.
        """
        transaction = self._state.get(transactional_id)
        prepared = decide.end(
            transaction,
            producer,
            committed=committed,
            bump=bump,
            now_ms=self._clock.now_ms(),
            new_producer_id=self._state.allocate_producer_id,
        )
        if prepared is not transaction:
            self._state.record(prepared)
            await self._complete(prepared)
        return prepared.next_producer

    async def durable(self) -> None:
        """Return when all that was recorded is as durable as the flush setting promises."""
        await self._state.durable()

    # Administration

    def describe(self, transactional_id: str) -> TransactionMetadata | None:
        """The metadata of the transactional id; None if it is unknown."""
        return self._state.find(transactional_id)

    def list_all(self) -> list[TransactionMetadata]:
        """The metadata of all transactional ids."""
        return list(self._state.values())

    async def abort_partition(self, partition: TopicPartition, producer: Producer) -> None:
        """Abort the producer's open transaction in this partition, so that readers can continue.

        Apache Kafka writes only this one marker. If the coordinator knows the transaction, that would make it
        inconsistent, so it is aborted in all its partitions, and its producer is fenced.
        """
        owner = self._state.owner(producer.producer_id)
        if owner is not None and owner.state is TransactionState.ONGOING and partition in owner.partitions:
            decide.check_expected(owner, producer)
            await self._abort(owner)
        else:
            self._partitions.write_marker(*partition, *producer, committed=False)
            await self._partitions.durable()

    # Maintenance

    async def run_maintenance(self) -> None:
        """Abort transactions that timed out and complete prepared ones; at longer intervals, clean up."""
        for transactional_id in tuple(self._state.active):
            await self._maintain(transactional_id)
        if self._clock.now_ms() >= self._cleanup_due_ms:
            self._cleanup_due_ms = self._clock.now_ms() + self._settings.cleanup_interval_ms
            for found in tuple(self._partitions.open_transactions()):
                await self._abort_orphan(found)
            self._remove_expired()

    async def _maintain(self, transactional_id: str) -> None:
        transaction = self._state.get(transactional_id)
        try:
            if transaction.is_timed_out(self._clock.now_ms()):
                logger.info("The transaction of %r timed out and is aborted", transactional_id)
                await self._abort(transaction)
            elif transaction.is_prepared:
                await self._complete(transaction)
        except TransactionError as fault:
            logger.warning("The transaction of %r could not be completed yet: %s", transactional_id, fault)

    async def _abort_orphan(self, found: OpenTransaction) -> None:
        """Abort a partition's open transaction if it belongs to no transaction of the coordinator."""
        owner = self._state.owner(found.producer_id)
        where = TopicPartition(found.topic, found.partition)
        if owner is not None and (owner.is_prepared or where in owner.partitions):
            return
        try:
            if owner is not None and owner.state is TransactionState.ONGOING:
                # The partition is not in the transaction: a power failure lost a part of the transaction log.
                owner = await self._abort(owner)
            logger.warning("A transaction without an owner is aborted: %s", found)
            epoch = found.epoch if owner is None else max(found.epoch, owner.epoch)
            self._write_marker(where, Producer(found.producer_id, epoch), committed=False)
        except (StorageError, TransactionError) as fault:
            logger.warning("%s could not be aborted yet: %s", found, fault)

    def _remove_expired(self) -> None:
        now_ms, after_ms = self._clock.now_ms(), self._settings.expiration_ms
        known = self._state.values()
        self._state.remove([one.transactional_id for one in known if one.is_expired(now_ms, after_ms)])

    def _schedule_maintenance(self) -> None:
        self._timer = self._clock.call_later(
            self._settings.timeout_check_interval_ms, self._start_maintenance
        )

    def _start_maintenance(self) -> None:
        self._maintenance = asyncio.get_running_loop().create_task(
            self.run_maintenance(), name="transaction maintenance"
        )
        self._maintenance.add_done_callback(self._maintenance_done)

    def _maintenance_done(self, task: asyncio.Task[None]) -> None:
        self._maintenance = None
        if not task.cancelled() and task.exception() is not None:
            # Maintenance continues after any error: without it transactions would never time out.
            logger.error("Transaction maintenance failed and will be retried", exc_info=task.exception())
        if self._timer is not None:
            self._schedule_maintenance()

    # Effects

    async def _initialize(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None
    ) -> Producer:
        check_transactional_id(transactional_id)
        self._check_timeout(transactional_id, timeout_ms)
        current = self._state.find(transactional_id) or self._create(transactional_id, timeout_ms)
        if current.state is not TransactionState.ONGOING:
            started = self._start(current, expected, timeout_ms)
        else:
            decide.check_expected(current, expected)
            started = self._start(await self._abort(current), None, timeout_ms)
            if expected is not None:
                # If the response is lost, the producer repeats the request with the epoch before the abort.
                started = replace(started, last_epoch=expected.epoch)
        self._state.record(started)
        return started.producer

    def _start(
        self, current: TransactionMetadata, expected: Producer | None, timeout_ms: int
    ) -> TransactionMetadata:
        return decide.initialize(
            current,
            expected,
            timeout_ms=timeout_ms,
            now_ms=self._clock.now_ms(),
            new_producer_id=self._state.allocate_producer_id,
        )

    def _check_timeout(self, transactional_id: str, timeout_ms: int) -> None:
        if not 0 < timeout_ms <= self._settings.max_timeout_ms:
            raise InvalidTransactionTimeout(
                f"the transaction timeout of {transactional_id!r} is {timeout_ms} ms: it must be "
                f"positive and at most {self._settings.max_timeout_ms} ms (transaction.max.timeout.ms)"
            )

    def _create(self, transactional_id: str, timeout_ms: int) -> TransactionMetadata:
        return TransactionMetadata(
            transactional_id=transactional_id,
            producer_id=self._state.allocate_producer_id(),
            timeout_ms=timeout_ms,
            updated_ms=self._clock.now_ms(),
        )

    def _add(self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]) -> None:
        transaction = self._state.get(transactional_id)
        added = decide.add_partitions(transaction, producer, partitions, self._clock.now_ms())
        if added is not transaction:
            self._state.record(added)

    async def _abort(self, transaction: TransactionMetadata) -> TransactionMetadata:
        """Abort an ongoing transaction and fence its producer."""
        fenced = decide.fence(transaction, self._clock.now_ms())
        self._state.record(fenced)
        await self._complete(fenced)
        return self._state.get(fenced.transactional_id)

    async def _complete(self, prepared: TransactionMetadata) -> None:
        """Write the markers of a prepared transaction and record its completion; maintenance retries it.

        After a crash every marker is written again, also if the partition has it or has no record of the
        transaction: the marker's epoch fences the old producer there.
        """
        if prepared.transactional_id in self._completing:
            return
        self._completing.add(prepared.transactional_id)
        try:
            await self._state.durable()
            await self._write_markers(prepared)
            await self._partitions.durable()
            self._state.record(decide.complete(prepared, self._clock.now_ms()))
        except StorageError as fault:
            logger.warning("Markers of %r could not be written yet: %s", prepared.transactional_id, fault)
        finally:
            self._completing.discard(prepared.transactional_id)

    async def _write_markers(self, prepared: TransactionMetadata) -> None:
        partitions = sorted(prepared.partitions)
        if len(partitions) <= MARKERS_AT_ONCE:
            self._write_markers_to(partitions, prepared)
            return
        async with self._marker_lock:
            for first in range(0, len(partitions), MARKERS_AT_ONCE):
                self._write_markers_to(partitions[first : first + MARKERS_AT_ONCE], prepared)
                await asyncio.sleep(0)

    def _write_markers_to(self, partitions: Iterable[TopicPartition], prepared: TransactionMetadata) -> None:
        for partition in partitions:
            self._write_marker(partition, prepared.producer, committed=prepared.is_committed)

    def _write_marker(self, partition: TopicPartition, producer: Producer, *, committed: bool) -> None:
        if not self._partitions.exists(*partition):
            return
        try:
            self._partitions.write_marker(*partition, *producer, committed=committed)
        except StaleProducerEpoch as fault:
            # The partition is ahead of a transaction log that lost its end: its transaction is another one.
            logger.warning("No marker was written to %s-%d: %s", *partition, fault)


def _produce_code(fault: TransactionError, version: int) -> ErrorCode:
    """The error code for a rejected write in this version of Produce."""
    if isinstance(fault, decide.ProducerFenced):
        return ErrorCode.invalid_producer_epoch
    if isinstance(fault, decide.PartitionNotInTransaction) and version < ABORTABLE_PRODUCE:
        return ErrorCode.invalid_txn_state
    if isinstance(fault, decide.ConcurrentTransactions) and version < IMPLICIT_PRODUCE:
        return ErrorCode.not_enough_replicas
    return fault.code
