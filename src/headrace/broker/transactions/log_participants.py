"""The broker's own partitions as participants in transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.topics import OFFSETS
from headrace.broker.transactions.participants import OpenTransaction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.broker.clock import Clock
    from headrace.broker.flusher import Flusher
    from headrace.broker.offsets import Offsets
    from headrace.broker.partition import Partition
    from headrace.broker.topics import Topics


class LogParticipants:
    """The logs of all partitions, and behind one of them the offsets of groups."""

    def __init__(self, topics: Topics, offsets: Offsets, flusher: Flusher, clock: Clock) -> None:
        self._topics = topics
        self._offsets = offsets
        self._flusher = flusher
        self._clock = clock

    def _partition(self, topic: str, partition: int) -> Partition | None:
        found = self._topics.get(topic)
        return found.partition(partition) if found is not None else None

    def exists(self, topic: str, partition: int) -> bool:
        """Whether there is such a partition."""
        return self._partition(topic, partition) is not None

    def write_marker(
        self,
        topic: str,
        partition: int,
        producer_id: int,
        epoch: int,
        *,
        committed: bool,
        coordinator_epoch: int = 0,  # noqa: ARG002  one coordinator for ever: its epoch is always 0
    ) -> None:
        """End the producer's transaction in the partition; one that was deleted has nothing to end."""
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
        """Return when the markers written are safe."""
        await self._flusher.durable()
