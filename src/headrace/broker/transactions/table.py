"""Every transactional id at its latest state: in memory, and in the log that memory is rebuilt from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from headrace.broker.statelog import StateRecord
from headrace.broker.transactions.producer_ids import ProducerIds
from headrace.broker.transactions.records import (
    read_key,
    read_producer_ids,
    read_value,
    write_key,
    write_value,
)
from headrace.broker.transactions.transaction import TransactionFault, UnknownProducer
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from headrace.broker.statelog import StateLog
    from headrace.broker.transactions.transaction import Transaction


class InvalidTransactionalId(TransactionFault):
    """An empty transactional id."""

    code = ErrorCode.invalid_request


class CoordinatorUnavailable(TransactionFault):
    """The state log could not be written; the client may try again."""

    code = ErrorCode.coordinator_not_available


class TransactionTable:
    """The transactional ids of a broker, by name and by producer id."""

    def __init__(self, state: StateLog) -> None:
        self._state = state
        self._ids = ProducerIds(state)
        self._transactions: dict[str, Transaction] = {}
        self._by_producer: dict[int, str] = {}
        self.active: set[str] = set()
        """The ids whose transaction is ongoing or being ended."""

    def load(self) -> None:
        """Bring back what the log holds."""
        for entry in self._state.replay():
            if isinstance(entry, StateRecord):
                self._replay(entry)

    def find(self, transactional_id: str) -> Transaction | None:
        """The latest state of the id; None when it is unknown."""
        return self._transactions.get(transactional_id)

    def get(self, transactional_id: str) -> Transaction:
        """The latest state of the id, or `UnknownProducer`."""
        transaction = self._transactions.get(transactional_id)
        if transaction is None:
            check_name(transactional_id)
            raise UnknownProducer(f"{transactional_id!r} is unknown here: begin with InitProducerId")
        return transaction

    def owner(self, producer_id: int) -> Transaction | None:
        """The transactional id that writes with this producer id; None when there is none."""
        return self._transactions.get(self._by_producer.get(producer_id, ""))

    def values(self) -> Collection[Transaction]:
        """Every id's latest state."""
        return self._transactions.values()

    def record(self, transaction: Transaction) -> None:
        """Make this the state of its id: in the log first, so that memory never knows more."""
        self._append([(write_key(transaction.transactional_id), write_value(transaction))])
        self._remember(transaction)

    def remove(self, transactional_ids: Sequence[str]) -> None:
        """Forget these ids, in the log too."""
        if transactional_ids:
            self._append([(write_key(transactional_id), None) for transactional_id in transactional_ids])
        for transactional_id in transactional_ids:
            self._forget(transactional_id)

    def take_producer_id(self) -> int:
        """A producer id that nobody had before."""
        try:
            return self._ids.take()
        except StorageError as fault:
            raise CoordinatorUnavailable(f"no producer id could be set aside: {fault}") from fault

    async def durable(self) -> None:
        """Return when what was recorded is as durable as the broker's flush setting promises."""
        try:
            await self._state.durable()
        except StorageError as fault:
            raise CoordinatorUnavailable(f"the transaction log could not be flushed: {fault}") from fault

    def _append(self, records: list[tuple[bytes, bytes | None]]) -> None:
        try:
            self._state.append(records)
        except StorageError as fault:
            raise CoordinatorUnavailable(f"the transaction log could not be written: {fault}") from fault

    def _remember(self, transaction: Transaction) -> None:
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
                self._remember(read_value(transactional_id, record.value))
        elif record.value is not None:
            self._ids.restore(read_producer_ids(record.value))


def check_name(transactional_id: str) -> None:
    """Pass when the transactional id is one, or raise `InvalidTransactionalId`."""
    if not transactional_id:
        raise InvalidTransactionalId("the transactional id is empty: give it a name")
