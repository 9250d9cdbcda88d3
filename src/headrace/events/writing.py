"""What a handler decided, into the log: all of it or nothing, and only while the partition is its own.

Records for one partition that fit into one batch are stored as that batch, which a broker takes whole or not
at all: one request. Everything else is a transaction: a request that writes, and one that commits.

Whoever had the partition before can write nothing more once a writer is open. Their transactions are refused
by the coordinator, which has given the transactional id to us. Their plain batches are refused by the
partitions, which take no epoch that is older than the newest one they have seen: so opening leaves a marker
of a newer epoch in each partition that plain batches go to, and returns when it is there.

A partition forgets producers that wrote nothing for a day, and an epoch that is used up gives way to another
producer id. A plain batch is therefore written only soon after the last write, and far from the last epoch;
otherwise a transaction is, and the coordinator forgets nobody.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from kio.schema.errors import ErrorCode

from headrace.client.codes import UNWRITTEN
from headrace.client.produce import BatchProducer
from headrace.client.shared_transaction import SharedTransaction
from headrace.protocol.batch import SEQUENCE_LIMIT, TRANSACTIONAL
from headrace.protocol.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.client.cluster import Cluster
    from headrace.client.identity import Identity
    from headrace.client.partition import TopicPartition
    from headrace.protocol.records import NewRecord

TRANSACTION_MS: Final = 15_000
"""How long readers wait at most behind a transaction whose handler is gone and has no successor."""
BATCH_BYTES: Final = 500_000
BATCH_RECORDS: Final = 5_000
PLAIN_WITHIN_S: Final = 3_600.0
PASSING: Final = UNWRITTEN | {ErrorCode.invalid_txn_state}
"""After the end of a transaction Apache Kafka takes no plain batch until its markers are written."""
LAST_PLAIN_EPOCH: Final = 32_000
"""Epochs end with 32,767; a successor takes two or three of them."""


class Stored(NamedTuple):
    """Where the records of one partition are."""

    first: int
    """The offset of the first; negative where the broker only says that it has had them."""
    size: int
    """How many offsets they take, with the marker of their transaction."""


class Writer:
    """The only one who writes to some partitions. For one thread; of no use any more after an error."""

    def __init__(
        self, cluster: Cluster, transaction: SharedTransaction, plain: Sequence[TopicPartition]
    ) -> None:
        self.transaction = transaction
        self.producer = BatchProducer(cluster, passing=PASSING)
        self._cluster = cluster
        self._plain = frozenset(plain)
        self._written_at = time.monotonic()
        self._sequences: dict[TopicPartition, int] = {}

    @classmethod
    def open(cls, cluster: Cluster, transactional_id: str, plain: Sequence[TopicPartition]) -> Self:
        """The transactional id and the partitions of plain batches, taken over from whoever had them."""
        claim = SharedTransaction.open(cluster, transactional_id, timeout_ms=TRANSACTION_MS)
        claim.add(plain)
        # Opened once more: that aborts the claim, and is answered when the markers of that are written.
        transaction = SharedTransaction.open(cluster, transactional_id, timeout_ms=TRANSACTION_MS)
        return cls(cluster, transaction, plain)

    def write(self, parts: Mapping[TopicPartition, Sequence[NewRecord]]) -> dict[TopicPartition, Stored]:
        """Store these records, and say where."""
        batches = [(place, batch) for place, records in parts.items() for batch in _batches(records)]
        if not batches:
            return {}
        is_plain = len(batches) == 1 and self._may_be_plain(batches[0][0])
        offsets = self._write_plain(*batches[0]) if is_plain else self._write_all(batches)
        self._written_at = time.monotonic()
        marker = 0 if is_plain else 1
        return {place: Stored(offsets[place], len(records) + marker) for place, records in parts.items()}

    def _may_be_plain(self, place: TopicPartition) -> bool:
        return (
            place in self._plain
            and self.transaction.identity.epoch < LAST_PLAIN_EPOCH
            and time.monotonic() - self._written_at < PLAIN_WITHIN_S
        )

    def _write_plain(self, place: TopicPartition, records: Sequence[NewRecord]) -> dict[TopicPartition, int]:
        self.producer.send(place, self._encoded(place, records, 0))
        return self.producer.flush()

    def _write_all(
        self, batches: Sequence[tuple[TopicPartition, Sequence[NewRecord]]]
    ) -> dict[TopicPartition, int]:
        transaction = self.transaction
        transaction.begin({place for place, _ in batches})
        producer = BatchProducer(
            self._cluster, transactional_id=transaction.transactional_id, adding=transaction.writes_add
        )
        for place, records in batches:
            producer.send(place, self._encoded(place, records, TRANSACTIONAL))
        offsets = producer.flush()
        transaction.commit()
        self._sequences.clear()  # they begin anew with the epoch of the next transaction
        return offsets

    def _encoded(self, place: TopicPartition, records: Sequence[NewRecord], attributes: int) -> bytearray:
        identity: Identity = self.transaction.identity
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = (sequence + len(records)) % SEQUENCE_LIMIT
        return encode_batch(
            records,
            attributes=attributes,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=sequence,
        )


def _batches(records: Sequence[NewRecord]) -> Iterator[list[NewRecord]]:
    batch: list[NewRecord] = []
    size = 0
    for record in records:
        taken = len(record.value or b"") + 500
        if batch and (size + taken > BATCH_BYTES or len(batch) == BATCH_RECORDS):
            yield batch
            batch, size = [], 0
        batch.append(record)
        size += taken
    if batch:
        yield batch
