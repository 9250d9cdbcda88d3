"""The transaction coordinator: it carries out what `transaction` decides.

The order of the steps makes a transaction all or nothing, whatever happens in between:

1. the outcome is appended to the state log, and made durable;
2. a marker is written to each partition, and made durable;
3. the end is appended to the state log.

A crash after 1 is repaired by `start`, which writes all markers again. All partitions live in this
process, so that readers see the outcome before the client's EndTxn is answered; Kafka answers after 1.

A partition may hold an open transaction that no transactional id knows of: a batch that arrived behind its
own marker, or the leftovers of a power failure. Its readers would wait for ever, so `sweep` ends it as well.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.broker.statelog import Producer
from headrace.broker.transactions import transaction as decide
from headrace.broker.transactions.settings import TransactionSettings
from headrace.broker.transactions.table import TransactionTable, check_name
from headrace.broker.transactions.transaction import State, TopicPartition, Transaction, TransactionFault
from headrace.storage.errors import StorageError
from headrace.storage.producers import StaleProducerEpoch

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.broker.clock import Clock, Timer
    from headrace.broker.statelog import StateLog
    from headrace.broker.transactions.participants import OpenTransaction, Participants

OFFSETS: Final = TopicPartition("__consumer_offsets", 0)
"""Where the offsets of a transaction are: one partition, as all of the broker's own topics."""
IMPLICIT_PRODUCE: Final = 12
"""The version of Produce from which on a write adds its partition to the transaction (KIP-890)."""
ABORTABLE_PRODUCE: Final = 11
"""The version of Produce from which on clients know TRANSACTION_ABORTABLE."""

logger = logging.getLogger(__name__)


class InvalidTimeout(TransactionFault):
    """A transaction time-out that is not positive, or above the broker's limit."""

    code = ErrorCode.invalid_transaction_timeout


class Transactions:
    """The coordinator of one broker: `load` what was, `start`, and `close` at the end."""

    def __init__(
        self,
        state: StateLog,
        clock: Clock,
        partitions: Participants,
        settings: TransactionSettings | None = None,
    ) -> None:
        self._table = TransactionTable(state)
        self._clock = clock
        self._partitions = partitions
        self._settings = settings or TransactionSettings()
        self._finishing: set[str] = set()
        self._housekeeping_due_ms = 0
        self._timer: Timer | None = None
        self._sweeping: asyncio.Task[None] | None = None

    # Life

    def load(self) -> None:
        """Bring back what the state log holds; `start` then carries on from there."""
        self._table.load()

    async def start(self) -> None:
        """Finish what a crash interrupted, and begin to look for time-outs; the partitions must be open."""
        await self.sweep()
        self._arm()

    async def close(self) -> None:
        """Stop looking for time-outs; ongoing transactions go on after the next start."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sweeping is not None:
            await asyncio.wait([self._sweeping])

    # What clients ask for

    async def initialize(
        self, transactional_id: str | None, timeout_ms: int, claim: Producer | None = None
    ) -> Producer:
        """A producer id and epoch for a producer that starts; older instances of it are fenced.

        Kafka answers CONCURRENT_TRANSACTIONS while it aborts what the older instance left open; here the
        abort is done when this returns.
        """
        if transactional_id is None:
            producer = Producer(self._table.take_producer_id(), 0)
        else:
            producer = await self._initialize(transactional_id, timeout_ms, claim)
        await self._table.durable()
        return producer

    async def add_partitions(
        self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]
    ) -> None:
        """The partitions are in the producer's transaction, which begins with the first of them."""
        self._add(transactional_id, producer, partitions)
        await self._table.durable()

    def check_partition(self, transactional_id: str, producer: Producer, partition: TopicPartition) -> None:
        """Pass when the partition is in the producer's ongoing transaction, or raise why not."""
        decide.check_partition(self._table.get(transactional_id), producer, partition)

    def check_produce(
        self,
        transactional_id: str | None,
        producer_id: int,
        epoch: int,
        topic: str,
        partition: int,
        version: int,
    ) -> ErrorCode:
        """Whether a producer may open its transaction in a partition with a batch of Produce `version`.

        From version 12 on the write adds the partition; below it the partition must have been added. The
        answer holds as long as the batch is appended before the event loop turns.
        """
        producer, where = Producer(producer_id, epoch), TopicPartition(topic, partition)
        try:
            if version >= IMPLICIT_PRODUCE:
                self._add(transactional_id or "", producer, (where,))
            else:
                self.check_partition(transactional_id or "", producer, where)
        except TransactionFault as fault:
            return _produce_code(fault, version)
        return ErrorCode.none

    def check_offsets(self, transactional_id: str, producer: Producer, *, add: bool) -> None:
        """Pass when the transaction may carry offsets of groups, or raise why not; `add` makes it so."""
        if add:
            self._add(transactional_id, producer, (OFFSETS,))
        else:
            self.check_partition(transactional_id, producer, OFFSETS)

    async def end(
        self, transactional_id: str, producer: Producer, *, committed: bool, bump: bool
    ) -> Producer:
        """The transaction is ended, for readers too; the producer id and epoch with which to go on.

        With `bump` (EndTxn 5) that epoch is a new one. A repeated request gets the same answer.
        """
        transaction = self._table.get(transactional_id)
        prepared = decide.end(
            transaction,
            producer,
            committed=committed,
            bump=bump,
            now_ms=self._clock.now_ms(),
            new_producer_id=self._table.take_producer_id,
        )
        if prepared is not transaction:
            self._table.record(prepared)
            await self._finish(prepared)
        return prepared.successor

    async def durable(self) -> None:
        """Return when what was recorded is as durable as the broker's flush setting promises."""
        await self._table.durable()

    # What operators ask for

    def describe(self, transactional_id: str) -> Transaction | None:
        """The transactional id as it is now; None when it is unknown."""
        return self._table.find(transactional_id)

    def list_all(self) -> list[Transaction]:
        """Every transactional id as it is now."""
        return list(self._table.values())

    async def abort_partition(self, partition: TopicPartition, producer: Producer) -> None:
        """The producer's open transaction in this partition is aborted, and readers go on.

        Kafka writes just this one marker. Where the coordinator knows the transaction, that would tear it
        apart, so it is aborted in all its partitions, and its producer fenced.
        """
        owner = self._table.owner(producer.producer_id)
        if owner is not None and owner.state is State.ONGOING and partition in owner.partitions:
            decide.check_claim(owner, producer)
            await self._abort(owner)
        else:
            self._partitions.write_marker(*partition, *producer, committed=False)
            await self._partitions.durable()

    # What time brings

    async def sweep(self) -> None:
        """Abort what timed out, finish what was interrupted, and now and then do the housekeeping."""
        for transactional_id in tuple(self._table.active):
            await self._look_after(transactional_id)
        if self._clock.now_ms() >= self._housekeeping_due_ms:
            self._housekeeping_due_ms = self._clock.now_ms() + self._settings.housekeeping_ms
            for found in tuple(self._partitions.open_transactions()):
                await self._look_after_open(found)
            self._forget_expired()

    async def _look_after(self, transactional_id: str) -> None:
        transaction = self._table.get(transactional_id)
        try:
            if transaction.is_timed_out(self._clock.now_ms()):
                logger.info("Aborting the transaction of %r: it timed out", transactional_id)
                await self._abort(transaction)
            elif transaction.is_prepared:
                await self._finish(transaction)
        except TransactionFault as fault:
            logger.warning("The transaction of %r stays as it is for now: %s", transactional_id, fault)

    async def _look_after_open(self, found: OpenTransaction) -> None:
        """End a partition's open transaction when it belongs to none that the coordinator knows of."""
        owner = self._table.owner(found.producer_id)
        where = TopicPartition(found.topic, found.partition)
        if owner is not None and (owner.is_prepared or where in owner.partitions):
            return
        try:
            if owner is not None and owner.state is State.ONGOING:
                # It was written to and is not in the transaction: a power failure took part of the log.
                owner = await self._abort(owner)
            logger.warning("Aborting a transaction that nobody owns: %s", found)
            epoch = found.epoch if owner is None else max(found.epoch, owner.epoch)
            self._write_marker(where, Producer(found.producer_id, epoch), committed=False)
        except (StorageError, TransactionFault) as fault:
            logger.warning("%s stays open for now: %s", found, fault)

    def _forget_expired(self) -> None:
        now_ms, after_ms = self._clock.now_ms(), self._settings.expiration_ms
        known = self._table.values()
        self._table.remove([one.transactional_id for one in known if one.is_expired(now_ms, after_ms)])

    def _arm(self) -> None:
        self._timer = self._clock.call_later(self._settings.sweep_ms, self._tick)

    def _tick(self) -> None:
        self._sweeping = asyncio.get_running_loop().create_task(self.sweep(), name="transaction sweep")
        self._sweeping.add_done_callback(self._swept)

    def _swept(self, task: asyncio.Task[None]) -> None:
        self._sweeping = None
        if not task.cancelled() and task.exception() is not None:
            # The sweep must outlive any one fault: without it time-outs would no longer be seen.
            logger.error("The sweep of transactions failed, and is tried again", exc_info=task.exception())
        if self._timer is not None:
            self._arm()

    # Carrying out

    async def _initialize(self, transactional_id: str, timeout_ms: int, claim: Producer | None) -> Producer:
        check_name(transactional_id)
        self._check_timeout(transactional_id, timeout_ms)
        current = self._table.find(transactional_id) or self._create(transactional_id, timeout_ms)
        if current.state is not State.ONGOING:
            started = self._start(current, claim, timeout_ms)
        else:
            decide.check_claim(current, claim)
            started = self._start(await self._abort(current), None, timeout_ms)
            if claim is not None:
                # Should the answer be lost, the producer repeats the claim that it made before the abort.
                started = replace(started, last_epoch=claim.epoch)
        self._table.record(started)
        return started.marker

    def _start(self, current: Transaction, claim: Producer | None, timeout_ms: int) -> Transaction:
        return decide.initialize(
            current,
            claim,
            timeout_ms=timeout_ms,
            now_ms=self._clock.now_ms(),
            new_producer_id=self._table.take_producer_id,
        )

    def _check_timeout(self, transactional_id: str, timeout_ms: int) -> None:
        if not 0 < timeout_ms <= self._settings.max_timeout_ms:
            raise InvalidTimeout(
                f"{transactional_id!r} asks for a transaction time-out of {timeout_ms} ms: it must be "
                f"positive and at most {self._settings.max_timeout_ms} ms (transaction.max.timeout.ms)"
            )

    def _create(self, transactional_id: str, timeout_ms: int) -> Transaction:
        return Transaction(
            transactional_id=transactional_id,
            producer_id=self._table.take_producer_id(),
            timeout_ms=timeout_ms,
            updated_ms=self._clock.now_ms(),
        )

    def _add(self, transactional_id: str, producer: Producer, partitions: Collection[TopicPartition]) -> None:
        transaction = self._table.get(transactional_id)
        added = decide.add_partitions(transaction, producer, partitions, self._clock.now_ms())
        if added is not transaction:
            self._table.record(added)

    async def _abort(self, transaction: Transaction) -> Transaction:
        """The ongoing transaction, aborted by the broker itself."""
        fenced = decide.fence(transaction, self._clock.now_ms())
        self._table.record(fenced)
        await self._finish(fenced)
        return self._table.get(fenced.transactional_id)

    async def _finish(self, prepared: Transaction) -> None:
        """Write the markers of a decided transaction and record its end; what fails is left to the sweep.

        After an interruption every marker is written again, also where the partition has it or holds no
        record of the transaction: the marker's epoch is what fences the old producer there.
        """
        if prepared.transactional_id in self._finishing:
            return
        self._finishing.add(prepared.transactional_id)
        try:
            await self._table.durable()
            for partition in sorted(prepared.partitions):
                self._write_marker(partition, prepared.marker, committed=prepared.is_committed)
            await self._partitions.durable()
            self._table.record(decide.complete(prepared, self._clock.now_ms()))
        except StorageError as fault:
            logger.warning("Markers of %r are still to be written: %s", prepared.transactional_id, fault)
        finally:
            self._finishing.discard(prepared.transactional_id)

    def _write_marker(self, partition: TopicPartition, producer: Producer, *, committed: bool) -> None:
        if not self._partitions.exists(*partition):
            return
        try:
            self._partitions.write_marker(*partition, *producer, committed=committed)
        except StaleProducerEpoch as fault:
            # Only a state log that lost its end knows less than the partition; what it holds is not ours.
            logger.warning("No marker in %s-%d: %s", *partition, fault)


def _produce_code(fault: TransactionFault, version: int) -> ErrorCode:
    """Kafka's code for a refused write, in the words that this version of Produce knows."""
    if isinstance(fault, decide.ProducerFenced):
        return ErrorCode.invalid_producer_epoch
    if isinstance(fault, decide.NotInTransaction) and version < ABORTABLE_PRODUCE:
        return ErrorCode.invalid_txn_state
    if isinstance(fault, decide.TransactionBusy) and version < IMPLICIT_PRODUCE:
        return ErrorCode.not_enough_replicas
    return fault.code
