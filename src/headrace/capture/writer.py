"""The log's side of a capture: records gathered into batches, and transactions that carry their own progress.

A transaction of the database is never split over two of the log. Small ones that follow one another share
one; a large one is sent while it is read, so that it need not fit into memory, and ends with its commit.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.capture import source
from headrace.capture.errors import CaptureError
from headrace.capture.offsets import STOP, TOPIC, live_keys
from headrace.client.partition import TopicPartition
from headrace.client.partitioner import partition_of
from headrace.client.produce import BatchProducer
from headrace.client.shared_transaction import SharedTransaction
from headrace.client.topics import NewTopic, create_topics
from headrace.errors import HeadraceError
from headrace.protocol.batch import TRANSACTIONAL, build_batch
from headrace.protocol.records import encode_varint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.capture.offsets import Progress, TableProgress
    from headrace.capture.settings import CaptureSettings
    from headrace.client.cluster import Cluster
    from headrace.client.identity import Identity

SMALL: Final = [encode_varint(number) for number in range(1 << 12)]
"""The numbers that lengths and positions mostly are."""
SMALL_COUNT: Final = len(SMALL)
NULL: Final = b"\x01"
NO_HEADERS: Final = b"\x00"


class BatchBuilder:
    """The records of one partition that wait to be sent."""

    __slots__ = ("_parts", "base_ms", "count", "newest_ms", "size")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all records."""
        self._parts: list[bytes] = []
        self.count = 0
        self.size = 0
        """About how many bytes they take."""
        self.base_ms = 0
        self.newest_ms = 0

    def append(
        self, key: bytes | None, value: bytes | None, timestamp_ms: int, headers: bytes = NO_HEADERS
    ) -> None:
        """Add a record; its headers are encoded."""
        count = self.count
        if not count:
            self.base_ms = self.newest_ms = timestamp_ms
        elif timestamp_ms > self.newest_ms:
            self.newest_ms = timestamp_ms
        delta = timestamp_ms - self.base_ms
        body = b"".join(
            (
                b"\x00",
                SMALL[delta] if 0 <= delta < SMALL_COUNT else encode_varint(delta),
                SMALL[count] if count < SMALL_COUNT else encode_varint(count),
                NULL if key is None else _length(key),
                key or b"",
                NULL if value is None else _length(value),
                value or b"",
                headers,
            )
        )
        self._parts.append(_length(body))
        self._parts.append(body)
        self.count = count + 1
        self.size += len(body)

    def build(self, identity: Identity, base_sequence: int) -> bytearray:
        """The batch of all records, as part of a producer's transaction; the builder is empty then."""
        batch = build_batch(
            b"".join(self._parts),
            self.count,
            base_timestamp=self.base_ms,
            max_timestamp=self.newest_ms,
            attributes=TRANSACTIONAL,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=base_sequence,
        )
        self.clear()
        return batch


def _length(data: bytes) -> bytes:
    size = len(data)
    return SMALL[size] if size < SMALL_COUNT else encode_varint(size)


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Headers as they stand at the end of a record."""
    parts = [encode_varint(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += [_length(encoded), encoded]
        parts += [NULL] if value is None else [_length(value), value]
    return b"".join(parts)


TIMEOUT_MS: Final = 900_000
"""The longest that Kafka allows: the snapshot of a table, or one transaction of the database, may take it."""
BATCH_BYTES: Final = 256 << 10
ENOUGH_BYTES: Final = 8 << 20
"""Transactions of the database share one of the log until they are so many bytes."""
PROGRESS_PLACE: Final = TopicPartition(TOPIC, 0)


class Writer:
    """Writes records and progress under one transactional id. It is the sink of sources."""

    def __init__(
        self, cluster: Cluster, bootstrap: str, settings: CaptureSettings, on_stored: Callable[[int], None]
    ) -> None:
        self._cluster = cluster
        self._bootstrap = bootstrap
        self._settings = settings
        self._transaction = SharedTransaction.open(cluster, settings.transactional_id, timeout_ms=TIMEOUT_MS)
        self._producer = BatchProducer(
            cluster, transactional_id=settings.transactional_id, adding=self._transaction.writes_add
        )
        self._builders: dict[TopicPartition, BatchBuilder] = {}
        self._sequences: dict[TopicPartition, int] = {}
        self._partitions: dict[str, int] = {}
        self._untouched: set[str] = set()
        """Topics that were made here, and that nothing was sent to."""
        self._on_stored = on_stored
        self._progress: Progress | None = None
        self._sent_bytes = 0
        self._ended_at: int | None = None
        self.records = 0
        """How many were written and stored."""
        self._open_records = 0
        self._newest_ms = 0

    def begin(self, progress: Progress, *, forget_stop: bool = False) -> None:
        """Go on from here, which is stored; a request to stop is taken back."""
        if forget_stop:
            self._builder(PROGRESS_PLACE).append((progress.name + STOP).encode(), None, progress.time_ms)
        self._store(progress)

    @property
    def progress(self) -> Progress:
        """What is stored."""
        assert self._progress is not None
        return self._progress

    def open_topic(self, topic: str, *, compacted: bool) -> Callable[[bytes | None, bytes | None, int], None]:
        """What takes the records of a topic, which is made if it is not there."""
        # Room for the largest record, and for the smaller ones that share a batch with it.
        configs = {"max.message.bytes": str(source.LARGEST_RECORD + 2 * BATCH_BYTES)}
        if compacted:
            configs["cleanup.policy"] = "compact"
        # PostgreSQL describes a table again after each VACUUM or ANALYZE: the broker is not asked each time.
        if topic not in self._partitions:
            self._make_topic(NewTopic(name=topic, partitions=self._settings.partitions, configs=configs))
        count = self._partitions[topic]
        if count == 1:
            return partial(self._put, TopicPartition(topic, 0), self._builder(TopicPartition(topic, 0)))
        places = [TopicPartition(topic, number) for number in range(count)]
        builders = [self._builder(place) for place in places]

        def put(key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
            number = partition_of(key, count)
            self._put(places[number], builders[number], key, value, timestamp_ms)

        return put

    def send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Sequence[tuple[str, bytes | None]],
    ) -> None:
        """Write one record with headers to any topic."""
        if topic not in self._partitions:
            self._make_topic(NewTopic(name=topic, partitions=self._settings.partitions))
        place = TopicPartition(topic, partition_of(key, self._partitions[topic]))
        builder = self._builder(place)
        # A large message goes alone: together with others it might exceed the topic's max.message.bytes.
        if builder.count and builder.size + len(value or b"") >= BATCH_BYTES:
            self._send(place, builder)
        builder.append(key, value, timestamp_ms, encode_headers(headers))
        if builder.size >= BATCH_BYTES:
            self._send(place, builder)

    def live_keys(self, topic: str) -> set[bytes]:
        """The keys of a topic whose newest record has a value, those of the open transaction included."""
        if topic in self._untouched:
            return set()
        for place, builder in self._builders.items():
            if place.topic == topic and builder.count:
                self._send(place, builder)
        self._producer.flush()
        return live_keys(self._bootstrap, topic)

    def end(self, position: int) -> None:
        """All up to here is whole; when it is enough, it is stored."""
        self._ended_at = position
        if self._sent_bytes >= ENOUGH_BYTES:
            self._store(replace(self.progress, position=position))

    def rest(self) -> None:
        """Store what is whole."""
        if self._ended_at is not None:
            self._store(replace(self.progress, position=self._ended_at))

    def table_done(self, name: str, table: TableProgress) -> None:
        """A table was written as it was at its position: store it, whole."""
        self._store(self.progress.with_table(name, table))

    def close(self) -> None:
        """Have what is not whole forgotten at once: open, it would hold up readers until its time is over."""
        if self._sent_bytes:
            with suppress(HeadraceError):
                self._transaction.abort()

    def _put(
        self,
        place: TopicPartition,
        builder: BatchBuilder,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
    ) -> None:
        builder.append(key, value, timestamp_ms)
        if builder.size >= BATCH_BYTES:
            _check_size(place.topic, key, value)
            self._send(place, builder)

    def _store(self, progress: Progress) -> None:
        """Commit everything, with the progress that it makes."""
        waiting = [
            place for place, builder in self._builders.items() if builder.count and place != PROGRESS_PLACE
        ]
        newest = max((self._builders[place].newest_ms for place in waiting), default=0)
        progress = replace(progress, time_ms=max(progress.time_ms, self._newest_ms, newest))
        record = self._builder(PROGRESS_PLACE)
        record.append(progress.name.encode(), progress.to_bytes(), progress.time_ms)
        self._transaction.begin([*waiting, PROGRESS_PLACE])
        for place in [*waiting, PROGRESS_PLACE]:
            self._send(place, self._builders[place])
        self._producer.flush()
        self._transaction.commit()
        self._sequences.clear()
        self._sent_bytes, self._ended_at = 0, None
        self.records += self._open_records
        self._open_records = 0
        self._progress = progress
        self._on_stored(progress.position)

    def _send(self, place: TopicPartition, builder: BatchBuilder) -> None:
        self._transaction.begin([place])
        self._untouched.discard(place.topic)
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + builder.count
        if place != PROGRESS_PLACE:
            self._open_records += builder.count
        self._newest_ms = max(self._newest_ms, builder.newest_ms)
        batch = builder.build(self._transaction.identity, sequence)
        self._sent_bytes += len(batch)
        self._producer.send(place, batch)

    def _builder(self, place: TopicPartition) -> BatchBuilder:
        return self._builders.setdefault(place, BatchBuilder())

    def _make_topic(self, topic: NewTopic) -> None:
        self._untouched |= create_topics(self._cluster, [topic])
        self._partitions[topic.name] = len(self._cluster.topics([topic.name])[topic.name].partitions)


def _check_size(topic: str, key: bytes | None, value: bytes | None) -> None:
    """Stop before a record that no broker takes: one that is larger than a request ends the connection."""
    if value is not None and len(value) > source.LARGEST_RECORD:
        named = "" if key is None else f", of the key {key[:80].decode(errors='replace')!r},"
        raise CaptureError(
            f"a record of {len(value):,} bytes for the topic {topic!r}{named} is larger than "
            f"{source.LARGEST_RECORD:,} bytes, the most that a topic takes. The replication slot is kept: "
            "leave the large column out with --columns, and start the capture again: it continues with this "
            "change."
        )
