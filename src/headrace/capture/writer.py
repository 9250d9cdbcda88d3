"""Writes the records of a capture in Kafka transactions, each with the offset that it reaches.

A transaction of the database is never split over two Kafka transactions. Small ones that follow one another
share one; a large one is sent while it is read, so that it need not fit into memory.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.capture import source
from headrace.capture.metrics import CaptureMetrics
from headrace.capture.offsets import STOP, TOPIC, live_keys
from headrace.capture.source import CaptureError
from headrace.client.offsets import LATEST, list_offsets
from headrace.client.partition import TopicPartition, partition_of
from headrace.client.shared_transaction import SharedTransaction
from headrace.client.topics import NewTopic, create_topics
from headrace.errors import HeadraceError
from headrace.protocol.batch import TRANSACTIONAL, build_batch
from headrace.protocol.records import encode_varint
from headrace.tracing import HEADER, traceparent_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.capture.offsets import CaptureOffset, CompletedSnapshot
    from headrace.capture.settings import CaptureSettings
    from headrace.client.cluster import Cluster
    from headrace.client.shared_transaction import ProducerIdentity

SMALL_VARINTS: Final = [encode_varint(number) for number in range(1 << 12)]
"""Encoded varints of the usual lengths and offset deltas."""
SMALL_VARINT_COUNT: Final = len(SMALL_VARINTS)
NULL: Final = b"\x01"
NO_HEADERS: Final = b"\x00"


class BatchBuilder:
    """The pending records of one partition."""

    __slots__ = ("_parts", "base_timestamp_ms", "count", "max_timestamp_ms", "size")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Discard all records."""
        self._parts: list[bytes] = []
        self.count = 0
        self.size = 0
        """The approximate size of the records in bytes."""
        self.base_timestamp_ms = 0
        self.max_timestamp_ms = 0

    def append(
        self, key: bytes | None, value: bytes | None, timestamp_ms: int, headers: bytes = NO_HEADERS
    ) -> None:
        """Add a record with encoded headers."""
        count = self.count
        if not count:
            self.base_timestamp_ms = self.max_timestamp_ms = timestamp_ms
        elif timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = timestamp_ms
        delta = timestamp_ms - self.base_timestamp_ms
        body = b"".join(
            (
                b"\x00",
                SMALL_VARINTS[delta] if 0 <= delta < SMALL_VARINT_COUNT else encode_varint(delta),
                SMALL_VARINTS[count] if count < SMALL_VARINT_COUNT else encode_varint(count),
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

    def build(self, identity: ProducerIdentity, base_sequence: int) -> bytearray:
        """Build a transactional batch of all records, and clear the builder."""
        batch = build_batch(
            b"".join(self._parts),
            self.count,
            base_timestamp=self.base_timestamp_ms,
            max_timestamp=self.max_timestamp_ms,
            attributes=TRANSACTIONAL,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=base_sequence,
        )
        self.clear()
        return batch


def _length(data: bytes) -> bytes:
    size = len(data)
    return SMALL_VARINTS[size] if size < SMALL_VARINT_COUNT else encode_varint(size)


def encode_headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Encode headers in the format of a record."""
    parts = [encode_varint(len(headers))]
    for name, value in headers:
        encoded = name.encode()
        parts += [_length(encoded), encoded]
        parts += [NULL] if value is None else [_length(value), value]
    return b"".join(parts)


TIMEOUT_MS: Final = 900_000
"""Kafka's maximum, for the snapshot of a large table or a large transaction of the database."""
BATCH_BYTES: Final = 256 << 10
TRANSACTION_BYTES: Final = 8 << 20
"""Transactions of the database share one Kafka transaction up to this size."""
OFFSETS_PARTITION: Final = TopicPartition(TOPIC, 0)


class TransactionalChangeWriter:
    """Writes records and offsets under one transactional id."""

    def __init__(
        self,
        cluster: Cluster,
        bootstrap: str,
        settings: CaptureSettings,
        on_committed: Callable[[int], None],
        metrics: CaptureMetrics | None = None,
    ) -> None:
        self._metrics = metrics or CaptureMetrics(name=settings.name)
        self._cluster = cluster
        self._bootstrap = bootstrap
        self._settings = settings
        self._transaction = SharedTransaction.open(cluster, settings.transactional_id, timeout_ms=TIMEOUT_MS)
        self._producer = self._transaction.producer()
        self._builders: dict[TopicPartition, BatchBuilder] = {}
        self._partitions: dict[str, int] = {}
        self._touched: set[TopicPartition] = set()
        """The partitions that the open transaction has written to."""
        self._new_ends: dict[TopicPartition, int] = {}
        """The ends of the topics of tables that no committed offset has yet."""
        self._empty_topics: set[str] = set()
        """Topics that this writer created and has not written to."""
        self._on_committed = on_committed
        self._offset: CaptureOffset | None = None
        self._sent_bytes = 0
        self._complete_position: int | None = None
        self._open_records = 0
        self._open_transactions = 0
        self._trace: list[tuple[str, bytes | None]] = []
        self._trace_headers = NO_HEADERS
        self._max_timestamp_ms = 0

    def start_from(self, offset: CaptureOffset, *, clear_stop_request: bool = False) -> None:
        """Commit the offset to start from, and delete a stop request."""
        if clear_stop_request:
            self._builder(OFFSETS_PARTITION).append((offset.name + STOP).encode(), None, offset.time_ms)
        self._commit_offset(offset)

    @property
    def offset(self) -> CaptureOffset:
        """The committed offset."""
        assert self._offset is not None
        return self._offset

    def open_topic(self, topic: str, *, compacted: bool) -> Callable[[bytes | None, bytes | None, int], None]:
        """A function that appends records to the topic, which is created if it does not exist."""
        # Room for the largest record, and for the smaller ones that share a batch with it.
        configs = {"max.message.bytes": str(source.LARGEST_RECORD + 2 * BATCH_BYTES)}
        if compacted:
            configs["cleanup.policy"] = "compact"
        # PostgreSQL describes a table again after each VACUUM or ANALYZE: topics are cached.
        if topic not in self._partitions:
            self._make_topic(NewTopic(name=topic, partitions=self._settings.partitions, configs=configs))
            self._register_ends(topic)
        count = self._partitions[topic]
        if count == 1:
            return partial(self._append, TopicPartition(topic, 0), self._builder(TopicPartition(topic, 0)))
        topic_partitions = [TopicPartition(topic, number) for number in range(count)]
        builders = [self._builder(topic_partition) for topic_partition in topic_partitions]

        def put(key: bytes | None, value: bytes | None, timestamp_ms: int) -> None:
            number = partition_of(key, count)
            self._append(topic_partitions[number], builders[number], key, value, timestamp_ms)

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
        topic_partition = TopicPartition(topic, partition_of(key, self._partitions[topic]))
        builder = self._builder(topic_partition)
        # A large message goes alone: together with others it might exceed the topic's max.message.bytes.
        if builder.count and builder.size + len(value or b"") >= BATCH_BYTES:
            self._send(topic_partition, builder)
        if self._trace and traceparent_of(headers) is None:
            headers = [*headers, *self._trace]
        builder.append(key, value, timestamp_ms, encode_headers(headers))
        if builder.size >= BATCH_BYTES:
            self._send(topic_partition, builder)

    def live_keys(self, topic: str) -> set[bytes]:
        """The keys whose latest record has a value, including records of the open transaction."""
        if topic in self._empty_topics:
            return set()
        for topic_partition, builder in self._builders.items():
            if topic_partition.topic == topic and builder.count:
                self._send(topic_partition, builder)
        self._producer.flush()
        return live_keys(self._bootstrap, topic)

    def set_traceparent(self, traceparent: str | None) -> None:
        """Give the records from now on this `traceparent` header, or none."""
        self._trace = [] if traceparent is None else [(HEADER, traceparent.encode())]
        self._trace_headers = NO_HEADERS if traceparent is None else encode_headers(self._trace)

    def end_transaction(self, position: int) -> None:
        """All records up to this position are complete; commits when the transaction is large enough."""
        self._complete_position = position
        self._open_transactions += 1
        if self._sent_bytes >= TRANSACTION_BYTES:
            self._commit_offset(replace(self.offset, position=position))

    def advance(self, position: int) -> None:
        """Commit a position up to which the database has no changes of the captured tables."""
        self._complete_position = position
        self.commit_complete()

    def commit_topics(self) -> None:
        """Commit where topics end that are new to this capture: readers then wait for their snapshots."""
        if self._new_ends:
            self._commit_offset(self.offset)

    def commit_complete(self) -> None:
        """Commit all complete transactions."""
        if self._complete_position is not None:
            self._commit_offset(replace(self.offset, position=self._complete_position))

    def finish_snapshot(self, name: str, table: CompletedSnapshot) -> None:
        """Commit the snapshot of a table."""
        self._commit_offset(self.offset.with_table(name, table))

    def close(self) -> None:
        """Abort the open transaction: it would block readers of committed records until its timeout."""
        if self._sent_bytes:
            with suppress(HeadraceError):
                self._transaction.abort()

    def _append(
        self,
        topic_partition: TopicPartition,
        builder: BatchBuilder,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
    ) -> None:
        builder.append(key, value, timestamp_ms, self._trace_headers)
        if builder.size >= BATCH_BYTES:
            _check_size(topic_partition.topic, key, value)
            self._send(topic_partition, builder)

    def _commit_offset(self, offset: CaptureOffset) -> None:
        """Commit all pending records together with the offset."""
        waiting = [
            topic_partition
            for topic_partition, builder in self._builders.items()
            if builder.count and topic_partition != OFFSETS_PARTITION
        ]
        newest = max(
            (self._builders[topic_partition].max_timestamp_ms for topic_partition in waiting), default=0
        )
        self._transaction.begin([*waiting, OFFSETS_PARTITION])
        for topic_partition in waiting:
            self._send(topic_partition, self._builders[topic_partition])
        self._producer.flush()
        offset = replace(offset, time_ms=max(offset.time_ms, self._max_timestamp_ms, newest))
        offset = offset.with_ends(self._new_ends | self._ends_of_transaction())
        record = self._builder(OFFSETS_PARTITION)
        record.append(offset.name.encode(), offset.to_bytes(), offset.time_ms)
        self._send(OFFSETS_PARTITION, record)
        self._producer.flush()
        self._transaction.commit()
        self._touched.clear()
        self._new_ends.clear()
        self._sent_bytes, self._complete_position = 0, None
        self._metrics.committed(
            records=self._open_records, transactions=self._open_transactions, newest_ms=offset.time_ms
        )
        self._open_records = self._open_transactions = 0
        self._offset = offset
        self._on_committed(offset.position)

    def _ends_of_transaction(self) -> dict[TopicPartition, int]:
        """Where the open transaction will end in the topics of tables: its marker takes one offset more."""
        known = {topic for topic, _ in self._new_ends} | (set(self._offset.ends) if self._offset else set())
        written = [partition for partition in self._touched if partition.topic in known]
        ends = list_offsets(self._cluster, dict.fromkeys(written, LATEST), read_committed=False)
        return {partition: end + 1 for partition, end in ends.items()}

    def _register_ends(self, topic: str) -> None:
        known = self.offset.ends.get(topic, {})
        new = [
            TopicPartition(topic, number)
            for number in range(self._partitions[topic])
            if str(number) not in known
        ]
        self._new_ends |= list_offsets(self._cluster, dict.fromkeys(new, LATEST))

    def _send(self, topic_partition: TopicPartition, builder: BatchBuilder) -> None:
        self._transaction.begin([topic_partition])
        self._empty_topics.discard(topic_partition.topic)
        sequence = self._transaction.next_sequence(topic_partition, builder.count)
        if topic_partition != OFFSETS_PARTITION:
            self._open_records += builder.count
            self._touched.add(topic_partition)
        self._max_timestamp_ms = max(self._max_timestamp_ms, builder.max_timestamp_ms)
        batch = builder.build(self._transaction.identity, sequence)
        self._sent_bytes += len(batch)
        self._producer.send(topic_partition, batch)

    def _builder(self, topic_partition: TopicPartition) -> BatchBuilder:
        return self._builders.setdefault(topic_partition, BatchBuilder())

    def _make_topic(self, topic: NewTopic) -> None:
        self._empty_topics |= create_topics(self._cluster, [topic])
        self._partitions[topic.name] = len(self._cluster.topics([topic.name])[topic.name].partitions)


def _check_size(topic: str, key: bytes | None, value: bytes | None) -> None:
    """Raise an error for a record above the limit: the broker would close the connection."""
    if value is not None and len(value) > source.LARGEST_RECORD:
        named = "" if key is None else f", of the key {key[:80].decode(errors='replace')!r},"
        raise CaptureError(
            f"a record of {len(value):,} bytes for the topic {topic!r}{named} is larger than "
            f"{source.LARGEST_RECORD:,} bytes, the maximum. The replication slot is kept: "
            "leave the large column out with --columns, and start the capture again: it continues with this "
            "change."
        )
