"""The partitions that take part in transactions, as the transaction coordinator sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.broker.topics import OFFSETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.broker.clock import BrokerClock
    from headrace.broker.flusher import Flusher
    from headrace.broker.offsets import CommittedOffsets
    from headrace.broker.topics import Partition, Topics


class OpenTransaction(NamedTuple):
    """A transaction that is open in a partition."""

    topic: str
    partition: int
    producer_id: int
    epoch: int


class TransactionPartitions(Protocol):
    """All partitions of the broker, including that of committed offsets."""

    def exists(self, topic: str, partition: int) -> bool:
        """Whether the partition exists."""
        ...

    def write_marker(
        self,
        topic: str,
        partition: int,
        producer_id: int,
        epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int = 0,
    ) -> None:
        """End the producer's transaction in the partition; raises `StorageError` if that fails."""
        ...

    def open_transactions(self) -> Iterable[OpenTransaction]:
        """Every open transaction of every partition."""
        ...

    async def durable(self) -> None:
        """Return when the markers are as durable as the flush setting promises."""
        ...


class LogTransactionPartitions:
    """The logs of all partitions; a marker in `__consumer_offsets` applies or drops pending offsets."""

    def __init__(
        self, topics: Topics, offsets: CommittedOffsets, flusher: Flusher, clock: BrokerClock
    ) -> None:
        self._topics = topics
        self._offsets = offsets
        self._flusher = flusher
        self._clock = clock

    def _partition(self, topic: str, partition: int) -> Partition | None:
        found = self._topics.get(topic)
        return found.partition(partition) if found is not None else None

    def exists(self, topic: str, partition: int) -> bool:
        """Whether the partition exists."""
        return self._partition(topic, partition) is not None

    def write_marker(
        self,
        topic: str,
        partition: int,
        producer_id: int,
        epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int = 0,  # noqa: ARG002  there is one coordinator, whose epoch is always 0
    ) -> None:
        """End the producer's transaction in the partition; does nothing if the partition was deleted."""
        found = self._partition(topic, partition)
        if found is None:
            return
        found.log.append_marker(producer_id, epoch, committed=committed, now_ms=self._clock.now_ms())
        self._flusher.appended(found)
        if topic == OFFSETS:
            self._offsets.complete(producer_id, committed=committed)

    def open_transactions(self) -> Iterator[OpenTransaction]:
        """Every open transaction of every partition."""
        for topic in self._topics:
            for partition in topic.partitions:
                producers = partition.log.producers
                for producer_id in producers.open_transactions():
                    epoch = producers.epoch_of(producer_id)
                    yield OpenTransaction(topic.name, partition.index, producer_id, epoch)

    async def durable(self) -> None:
        """Return when the markers are as durable as the flush setting promises."""
        await self._flusher.durable()
