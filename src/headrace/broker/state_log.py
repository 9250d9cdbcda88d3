"""State logs: the internal compacted topics in which the broker stores groups, transactions and topics.

Components append every change, and replay the log when the broker starts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.errors import HeadraceError
from headrace.protocol.batch import read_header
from headrace.protocol.records import NewRecord, decode_batch, encode_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.broker.clock import BrokerClock
    from headrace.broker.flusher import Flusher
    from headrace.broker.topics import Partition
    from headrace.storage.log import Log


class UnknownRecord(HeadraceError):
    """A record of an internal topic in a format that only a newer broker knows."""


class Producer(NamedTuple):
    """Producer id and epoch."""

    producer_id: int
    epoch: int


class StateRecord(NamedTuple):
    """A record of an internal topic; `producer` is set for transactional records."""

    key: bytes
    value: bytes | None
    producer: Producer | None


class StateMarker(NamedTuple):
    """The end of a producer's transaction in an internal topic."""

    producer: Producer
    committed: bool


class StateLog(Protocol):
    """An internal compacted topic with one partition."""

    def append(self, records: Sequence[tuple[bytes, bytes | None]], producer: Producer | None = None) -> None:
        """Append key-value pairs as one batch; a value of None deletes the key."""
        ...

    def mark(self, producer: Producer, *, committed: bool) -> None:
        """Write the marker that ends the producer's transaction in this topic."""
        ...

    async def durable(self) -> None:
        """Return when everything appended is as durable as the flush setting promises."""
        ...

    def replay(self) -> Iterator[StateRecord | StateMarker]:
        """All records and markers in the log, in order."""
        ...


class MemoryStateLog:
    """A state log in memory, for tests."""

    def __init__(self) -> None:
        self.entries: list[StateRecord | StateMarker] = []

    def append(self, records: Sequence[tuple[bytes, bytes | None]], producer: Producer | None = None) -> None:
        """Append key-value pairs."""
        self.entries.extend(StateRecord(key, value, producer) for key, value in records)

    def mark(self, producer: Producer, *, committed: bool) -> None:
        """Append the marker of a transaction."""
        self.entries.append(StateMarker(producer, committed))

    async def durable(self) -> None:
        """Do nothing: memory is not durable."""

    def replay(self) -> Iterator[StateRecord | StateMarker]:
        """All records and markers, in order."""
        return iter(tuple(self.entries))


class PartitionStateLog:
    """A state log in a partition of the broker."""

    def __init__(self, partition: Partition, flusher: Flusher, clock: BrokerClock) -> None:
        self.partition = partition
        self._flusher = flusher
        self._clock = clock

    def append(self, records: Sequence[tuple[bytes, bytes | None]], producer: Producer | None = None) -> None:
        """Append key-value pairs as one batch."""
        now_ms = self._clock.now_ms()
        encoded = encode_records([NewRecord(key, value, now_ms) for key, value in records], now_ms)
        self.partition.log.append_internal(encoded, len(records), now_ms, producer)
        self._flusher.appended(self.partition)

    def mark(self, producer: Producer, *, committed: bool) -> None:
        """Write the marker that ends the producer's transaction in this topic."""
        self.partition.log.append_marker(
            producer.producer_id, producer.epoch, committed=committed, now_ms=self._clock.now_ms()
        )
        self._flusher.appended(self.partition)

    async def durable(self) -> None:
        """Return when everything appended is as durable as the flush setting promises."""
        await self._flusher.durable()

    def replay(self) -> Iterator[StateRecord | StateMarker]:
        """All records and markers in the log, in order."""
        return replay(self.partition.log)


def replay(log: Log) -> Iterator[StateRecord | StateMarker]:
    """All records and markers in the log of an internal topic, in order."""
    for batch in log.batches(log.start_offset):
        header = read_header(batch)
        producer = Producer(header.producer_id, header.producer_epoch) if header.is_transactional else None
        for record in decode_batch(batch):
            if header.is_control:
                assert producer is not None
                yield StateMarker(producer, committed=record.key is not None and record.key[-1] == 1)
            else:
                yield StateRecord(record.key or b"", record.value, producer)
