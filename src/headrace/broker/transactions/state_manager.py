"""The state of all transactional ids in memory and in the transaction log; allocation of producer ids."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.broker.state_log import StateRecord
from headrace.broker.transactions.records import (
    read_key,
    read_next_producer_id,
    read_value,
    write_key,
    write_next_producer_id,
    write_value,
)
from headrace.broker.transactions.transaction import InvalidProducerIdMapping, TransactionError
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from headrace.broker.state_log import StateLog
    from headrace.broker.transactions.transaction import TransactionMetadata

PRODUCER_ID_BLOCK: Final = 1000
"""Producer ids that one record allocates: the block size of Kafka's controller."""


class InvalidTransactionalId(TransactionError):
    """An empty transactional id."""

    code = ErrorCode.invalid_request


class CoordinatorUnavailable(TransactionError):
    """The transaction log could not be written; the client may retry."""

    code = ErrorCode.coordinator_not_available


class ProducerIdManager:
    """Allocates producer ids, each only once, also across restarts.

    A block of ids is recorded before the first of them is used; a restart skips the rest of the block. The
    caller awaits `StateLog.durable` before it sends an id to a client.
    """

    def __init__(self, state: StateLog) -> None:
        self._state = state
        self._next = 0
        self._end = 0

    def restore(self, next_id: int) -> None:
        """Continue with `next_id`: all ids below may have been used."""
        self._next = self._end = next_id

    def allocate(self) -> int:
        """A producer id that was never used."""
        if self._next >= self._end:
            self._state.append([write_next_producer_id(self._next + PRODUCER_ID_BLOCK)])
            self._end = self._next + PRODUCER_ID_BLOCK
        self._next += 1
        return self._next - 1


class TransactionStateManager:
    """The transactional ids of a broker, by name and by producer id."""

    def __init__(self, state: StateLog) -> None:
        self._state = state
        self._producer_ids = ProducerIdManager(state)
        self._transactions: dict[str, TransactionMetadata] = {}
        self._by_producer: dict[int, str] = {}
        self.active: set[str] = set()
        """The transactional ids whose transaction is ongoing or prepared."""

    def load(self) -> None:
        """Restore the state from the log."""
        for entry in self._state.replay():
            if isinstance(entry, StateRecord):
                self._replay(entry)

    def find(self, transactional_id: str) -> TransactionMetadata | None:
        """The metadata of the transactional id; None if it is unknown."""
        return self._transactions.get(transactional_id)

    def get(self, transactional_id: str) -> TransactionMetadata:
        """The metadata of the transactional id; raises `InvalidProducerIdMapping` if it is unknown."""
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            check_transactional_id(transactional_id)
            raise InvalidProducerIdMapping(f"{transactional_id!r} is unknown: call InitProducerId first")
        return transaction

    def owner(self, producer_id: int) -> TransactionMetadata | None:
        """The metadata of the transactional id with this producer id; None if there is none."""
        return self._transactions.get(self._by_producer.get(producer_id, ""))

    def values(self) -> Collection[TransactionMetadata]:
        """The metadata of all transactional ids."""
        return self._transactions.values()

    def record(self, transaction: TransactionMetadata) -> None:
        """Write the new metadata of a transactional id to the log, then to memory."""
        self._append([(write_key(transaction.transactional_id), write_value(transaction))])
        self._update(transaction)

    def remove(self, transactional_ids: Sequence[str]) -> None:
        """Remove transactional ids from the log and from memory."""
        if transactional_ids:
            self._append([(write_key(transactional_id), None) for transactional_id in transactional_ids])
        for transactional_id in transactional_ids:
            self._forget(transactional_id)

    def allocate_producer_id(self) -> int:
        """A producer id that was never used."""
        try:
            return self._producer_ids.allocate()
        except StorageError as fault:
            raise CoordinatorUnavailable(f"no producer id could be allocated: {fault}") from fault

    async def durable(self) -> None:
        """Return when all that was recorded is as durable as the flush setting promises."""
        try:
            await self._state.durable()
        except StorageError as fault:
            raise CoordinatorUnavailable(f"the transaction log could not be flushed: {fault}") from fault

    def _append(self, records: list[tuple[bytes, bytes | None]]) -> None:
        try:
            self._state.append(records)
        except StorageError as fault:
            raise CoordinatorUnavailable(f"the transaction log could not be written: {fault}") from fault

    def _update(self, transaction: TransactionMetadata) -> None:
        transactional_id = transaction.transactional_id
        known = self._transactions.get(transactional_id)
        if known is not None and known.producer_id != transaction.producer_id:
            self._by_producer.pop(known.producer_id, None)
        self._transactions[transactional_id] = transaction
        self._by_producer[transaction.producer_id] = transactional_id
        if transaction.is_active:
            self.active.add(transactional_id)
        else:
            self.active.discard(transactional_id)

    def _forget(self, transactional_id: str) -> None:
        known = self._transactions.pop(transactional_id, None)
        if known is not None:
            self._by_producer.pop(known.producer_id, None)
        self.active.discard(transactional_id)

    def _replay(self, record: StateRecord) -> None:
        transactional_id = read_key(record.key)
        if transactional_id is not None:
            if record.value is None:
                self._forget(transactional_id)
            else:
                self._update(read_value(transactional_id, record.value))
        elif record.value is not None:
            self._producer_ids.restore(read_next_producer_id(record.value))


def check_transactional_id(transactional_id: str) -> None:
    """Raise `InvalidTransactionalId` if the transactional id is empty."""
    if not transactional_id:
        raise InvalidTransactionalId("the transactional id is empty")
