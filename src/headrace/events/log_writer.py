"""Writes the records of a handler to its partitions: all or nothing, and only while it is not fenced.

Records for one partition that fit into one batch are stored as that batch, which a broker accepts whole or
not at all: one request. Everything else is a transaction: one request that writes, and one that commits.

Once a writer is open, its predecessor can write nothing more. The coordinator refuses its transactions,
because the transactional id has a newer epoch. The partitions refuse its plain batches, because they accept
no epoch that is older than the newest they have seen: opening therefore leaves a marker with a newer epoch in
each partition of plain batches, and returns once it is there.

A partition forgets producers that have not written for a day, and a producer id is replaced when its epochs
are used up. A plain batch is therefore written only soon after the last write, and far from the last epoch;
otherwise a transaction is used, for which the coordinator does the fencing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from kio.schema.errors import ErrorCode

from headrace.client.errors import PRODUCE_RETRIABLE
from headrace.client.produce import BatchProducer
from headrace.client.shared_transaction import SharedTransaction
from headrace.protocol.batch import TRANSACTIONAL
from headrace.protocol.records import encode_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from headrace.client.cluster import Cluster
    from headrace.client.partition import TopicPartition
    from headrace.client.shared_transaction import ProducerIdentity
    from headrace.protocol.records import NewRecord

TRANSACTION_MS: Final = 15_000
"""How long readers wait for the open transaction of a handler that was killed and has no successor."""
BATCH_BYTES: Final = 500_000
BATCH_RECORDS: Final = 5_000
PLAIN_WITHIN_S: Final = 3_600.0
RETRIABLE: Final = PRODUCE_RETRIABLE | {ErrorCode.invalid_txn_state}
"""After a transaction Apache Kafka accepts no plain batch until its markers are written."""
LAST_PLAIN_EPOCH: Final = 32_000
"""The last epoch is 32,767; each successor uses two or three."""


class WrittenRange(NamedTuple):
    """The offsets of the written records of one partition."""

    first: int
    """The offset of the first record; negative if the broker only says that it already has the batch."""
    size: int
    """The number of offsets, including the marker of the transaction."""


class LogWriter:
    """The only writer of some partitions. For one thread; unusable after an error."""

    def __init__(
        self, cluster: Cluster, transaction: SharedTransaction, plain: Sequence[TopicPartition]
    ) -> None:
        self.transaction = transaction
        self.producer = BatchProducer(cluster, retriable=RETRIABLE)
        self._plain = frozenset(plain)
        self._written_at = time.monotonic()

    @classmethod
    def open(cls, cluster: Cluster, transactional_id: str, plain: Sequence[TopicPartition]) -> Self:
        """Take over the transactional id and the partitions of plain batches from the previous writer."""
        first = SharedTransaction.open(cluster, transactional_id, timeout_ms=TRANSACTION_MS)
        first.add(plain)
        # The second open aborts the first transaction, and returns when its markers are written.
        transaction = SharedTransaction.open(cluster, transactional_id, timeout_ms=TRANSACTION_MS)
        return cls(cluster, transaction, plain)

    def write(
        self, parts: Mapping[TopicPartition, Sequence[NewRecord]]
    ) -> dict[TopicPartition, WrittenRange]:
        """Store these records; returns their offsets."""
        batches = [(partition, batch) for partition, records in parts.items() for batch in _batches(records)]
        if not batches:
            return {}
        is_plain = len(batches) == 1 and self._may_be_plain(batches[0][0])
        offsets = self._write_plain(*batches[0]) if is_plain else self._write_all(batches)
        self._written_at = time.monotonic()
        marker = 0 if is_plain else 1
        return {
            partition: WrittenRange(offsets[partition], len(records) + marker)
            for partition, records in parts.items()
        }

    def _may_be_plain(self, partition: TopicPartition) -> bool:
        return (
            partition in self._plain
            and self.transaction.identity.epoch < LAST_PLAIN_EPOCH
            and time.monotonic() - self._written_at < PLAIN_WITHIN_S
        )

    def _write_plain(
        self, partition: TopicPartition, records: Sequence[NewRecord]
    ) -> dict[TopicPartition, int]:
        self.producer.send(partition, self._encoded(partition, records, 0))
        return self.producer.flush()

    def _write_all(
        self, batches: Sequence[tuple[TopicPartition, Sequence[NewRecord]]]
    ) -> dict[TopicPartition, int]:
        transaction = self.transaction
        transaction.begin({partition for partition, _ in batches})
        producer = transaction.producer()
        for partition, records in batches:
            producer.send(partition, self._encoded(partition, records, TRANSACTIONAL))
        offsets = producer.flush()
        transaction.commit()
        return offsets

    def _encoded(self, partition: TopicPartition, records: Sequence[NewRecord], attributes: int) -> bytearray:
        identity: ProducerIdentity = self.transaction.identity
        return encode_batch(
            records,
            attributes=attributes,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=self.transaction.next_sequence(partition, len(records)),
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
