"""The broker's own state as records: what groups, transactions and topics keep in internal compacted topics.

One place to look and one recovery path: a component appends what changed, and replays it all when it starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.errors import HeadraceError
from headrace.protocol.batch import read_header
from headrace.protocol.records import NewRecord, decode_batch, encode_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.broker.clock import Clock
    from headrace.broker.flusher import Flusher
    from headrace.broker.partition import Partition


class UnknownRecord(HeadraceError):
    """A record of an internal topic in a format that this broker does not know: a newer one wrote it."""


class Producer(NamedTuple):
    """The writer of a transactional append."""

    producer_id: int
    epoch: int


class StateRecord(NamedTuple):
    """One record of an internal topic; `producer` is set while it belongs to a transaction."""

    key: bytes
    value: bytes | None
    producer: Producer | None


class StateMarker(NamedTuple):
    """The end of a producer's transaction in an internal topic."""

    producer: Producer
    committed: bool


class StateLog(Protocol):
    """An internal compacted topic of one partition."""

    def append(self, records: Sequence[tuple[bytes, bytes | None]], producer: Producer | None = None) -> None:
        """Write key and value pairs (a value of None deletes its key); in the log when this returns."""
        ...

    def mark(self, producer: Producer, *, committed: bool) -> None:
        """End the producer's transaction in this topic."""
        ...

    async def durable(self) -> None:
        """Return when all that was appended is as durable as the broker's flush setting promises."""
        ...

    def replay(self) -> Iterator[StateRecord | StateMarker]:
        """Everything that is in the log, in order."""
        ...


class MemoryStateLog:
    """A state log in memory, for tests of what is built on one; replays what was appended."""

    def __init__(self) -> None:
        self.entries: list[StateRecord | StateMarker] = []

    def append(self, records: Sequence[tuple[bytes, bytes | None]], producer: Producer | None = None) -> None:
        """Remember the records."""
        self.entries.extend(StateRecord(key, value, producer) for key, value in records)

    def mark(self, producer: Producer, *, committed: bool) -> None:
        """Remember the end of a transaction."""
        self.entries.append(StateMarker(producer, committed))

    async def durable(self) -> None:
        """Memory is as durable as it will be."""

    def replay(self) -> Iterator[StateRecord | StateMarker]:
        """What was remembered, in order."""
        return iter(tuple(self.entries))


class PartitionStateLog:
    """A state log in a partition of the broker's own storage."""

    def __init__(self, partition: Partition, flusher: Flusher, clock: Clock) -> None:
        self.partition = partition
        self._flusher = flusher
        self._clock = clock

    def append(self, records: Sequence[tuple[bytes, bytes | None]], producer: Producer | None = None) -> None:
        """Write key and value pairs as one batch."""
        now_ms = self._clock.now_ms()
        encoded = encode_records([NewRecord(key, value, now_ms) for key, value in records], now_ms)
        self.partition.log.append_internal(encoded, len(records), now_ms, producer)
        self._flusher.appended(self.partition)

    def mark(self, producer: Producer, *, committed: bool) -> None:
        """End the producer's transaction in this topic."""
        self.partition.log.append_marker(
            producer.producer_id, producer.epoch, committed=committed, now_ms=self._clock.now_ms()
        )
        self._flusher.appended(self.partition)

    async def durable(self) -> None:
        """Return when all that was appended is safe."""
        await self._flusher.durable()

    def replay(self) -> Iterator[StateRecord | StateMarker]:
        """Everything that is in the log, in order."""
        for batch in self.partition.log.batches(self.partition.log.start_offset):
            header = read_header(batch)
            producer = (
                Producer(header.producer_id, header.producer_epoch) if header.is_transactional else None
            )
            for record in decode_batch(batch):
                if header.is_control:
                    assert producer is not None
                    yield StateMarker(producer, committed=record.key is not None and record.key[-1] == 1)
                else:
                    yield StateRecord(record.key or b"", record.value, producer)
