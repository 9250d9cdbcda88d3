"""In-memory partitions for tests of the transaction coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.broker.transactions.partitions import OpenTransaction
from headrace.protocol.batch import TRANSACTIONAL, BatchHeader
from headrace.storage.producers import ProducerStates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Write(NamedTuple):
    """A record of a producer's transaction."""

    producer_id: int
    epoch: int
    value: object


class Marker(NamedTuple):
    """The end of a producer's transaction."""

    producer_id: int
    epoch: int
    committed: bool


@dataclass(slots=True)
class ListedPartition:
    """A list as a log, with the real producer state."""

    log: list[Write | Marker]
    producers: ProducerStates
    next_sequence: dict[tuple[int, int], int]


class ListedPartitions:
    """The partitions of a broker in memory; `before_write` is called before anything is written."""

    def __init__(self, *names: tuple[str, int], before_write: Callable[[], None] = lambda: None) -> None:
        self.logs = {name: ListedPartition([], ProducerStates(), {}) for name in names}
        self.before_write = before_write

    def exists(self, topic: str, partition: int) -> bool:
        return (topic, partition) in self.logs

    def has_open(self, topic: str, partition: int, producer_id: int) -> bool:
        return self.logs[topic, partition].producers.has_open(producer_id)

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
        self.before_write()
        held = self.logs[topic, partition]
        held.producers.check_marker(producer_id, epoch)
        held.producers.marker(producer_id, epoch, len(held.log), committed=committed, now_ms=0)
        held.log.append(Marker(producer_id, epoch, committed))

    def open_transactions(self) -> Iterator[OpenTransaction]:
        for (topic, partition), held in self.logs.items():
            for producer_id in held.producers.open_transactions():
                epoch = held.producers.epoch_of(producer_id)
                yield OpenTransaction(topic, partition, producer_id, epoch)

    async def durable(self) -> None:
        """Nothing to do."""

    def write(self, topic: str, partition: int, write: Write) -> None:
        """Append a record as the log of a partition does: the producer state may reject it."""
        held = self.logs[topic, partition]
        sequence = held.next_sequence.get((write.producer_id, write.epoch), 0)
        header = _header(write, sequence)
        assert held.producers.check(header) is None
        held.producers.applied(header, len(held.log), 0)
        held.next_sequence[write.producer_id, write.epoch] = sequence + 1
        held.log.append(write)

    def committed(self, topic: str, partition: int) -> list[object]:
        """The values that a read_committed consumer sees, in log order."""
        held = self.logs[topic, partition]
        stable = held.producers.first_unstable_offset
        log = held.log if stable is None else held.log[:stable]
        return [
            entry.value
            for offset, entry in enumerate(log)
            if isinstance(entry, Write) and _outcome(held.log, offset, entry.producer_id)
        ]

    def outcomes(self) -> dict[object, bool | None]:
        """The outcome of each value: committed, aborted, or None while its transaction is open."""
        return {
            entry.value: _outcome(held.log, offset, entry.producer_id)
            for held in self.logs.values()
            for offset, entry in enumerate(held.log)
            if isinstance(entry, Write)
        }

    def markers(self, topic: str, partition: int) -> list[Marker]:
        """The markers in the log, in order."""
        return [entry for entry in self.logs[topic, partition].log if isinstance(entry, Marker)]


def _outcome(log: list[Write | Marker], offset: int, producer_id: int) -> bool | None:
    for entry in log[offset:]:
        if isinstance(entry, Marker) and entry.producer_id == producer_id:
            return entry.committed
    return None


def _header(write: Write, sequence: int) -> BatchHeader:
    fields = dict.fromkeys(BatchHeader._fields, 0)
    fields |= {"attributes": TRANSACTIONAL, "count": 1, "base_sequence": sequence}
    return BatchHeader(**(fields | {"producer_id": write.producer_id, "producer_epoch": write.epoch}))
