"""The log of a partition, on disk (`PartitionLog`) or in memory (`MemoryLog`), and the validation of batches.

Offsets of a partition, in this order: `start_offset` (retention and DeleteRecords move it), the last stable
offset (the end for read_committed consumers), `high_watermark` (the end for all consumers), `end_offset`.

Only the broker's event loop calls these methods, except for `sync`.

A batch is validated before it is stored: its header is checked against the bytes, namely the checksum, and
whether the bytes can hold the number of records. The records are not decoded, except for the keys in a
compacted topic: that would cost more than the rest of an append. Every reader checks the lengths of records.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from headrace.protocol.batch import (
    CONTROL,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    build_batch,
    check_batch,
    place_batch,
    read_header,
    stamp_append_time,
)
from headrace.protocol.compression import CODECS, ZSTD
from headrace.protocol.records import max_records, records_without_key
from headrace.storage.errors import (
    InvalidRecord,
    InvalidTimestamp,
    OffsetOutOfRange,
    RecordsWithoutKey,
    RecordTooLarge,
)
from headrace.storage.index import NO_TIMESTAMP, AbortedTransactions
from headrace.storage.producers import ProducerStates

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from headrace.storage.config import TopicConfig
    from headrace.storage.memory_log import MemoryRange
    from headrace.storage.segment import FileRange
    from headrace.storage.time_search import Search


MAX_REPORTED: Final = 1_000
"""Records without keys that are reported: a response must not be larger than its request."""

Records: TypeAlias = "FileRange | MemoryRange"
"""Complete batches to send: both have a `size`, and return their bytes with `read()`."""


def validate_batch(
    batch: memoryview,
    config: TopicConfig,
    now_ms: int,
    *,
    has_keys: bool = False,
    checksum: int | None = None,
) -> BatchHeader:
    """The header of a valid batch; raises an error for an invalid one.

    `has_keys` says that `check_keys` was called already; `checksum` is that of the batch, if it is known.
    """
    if len(batch) < HEADER_BYTES:
        raise InvalidRecord(f"a record batch of {len(batch)} bytes: its header alone takes {HEADER_BYTES}")
    header = read_header(batch)
    if len(batch) > config.max_message_bytes:
        raise RecordTooLarge(
            f"a record batch of {len(batch)} bytes, and max.message.bytes is {config.max_message_bytes}: "
            "send smaller batches or raise the topic's limit"
        )
    check_batch(batch, header, checksum)
    if header.count < 1 or header.count != header.last_offset_delta + 1:
        raise InvalidRecord(f"a batch of {header.count} records that spans {header.last_offset_delta + 1}")
    if header.count > max_records(header.codec, len(batch) - HEADER_BYTES):
        raise InvalidRecord(
            f"{len(batch)} bytes cannot hold the {header.count} records that the batch counts"
        )
    # Most batches have no attributes.
    if header.attributes:
        _check_attributes(header)
    if header.producer_id >= 0 > header.base_sequence:
        raise InvalidRecord(
            "a batch with a producer id and without a sequence: duplicates could not be detected"
        )
    if config.message_timestamp_type == "CreateTime":
        _check_time(header, config, now_ms)
    if config.is_compacted and not has_keys:
        check_keys(batch)
    return header


def check_keys(batch: memoryview) -> None:
    """Raise `RecordsWithoutKey` unless every record has a key, as compacted topics require."""
    keyless = records_without_key(batch, most=MAX_REPORTED)
    if keyless:
        raise RecordsWithoutKey(
            f"record {keyless[0]} of the batch has no key, and the topic is compacted: set a key",
            indexes=tuple(keyless),
        )


def _check_attributes(header: BatchHeader) -> None:
    if header.codec > ZSTD:
        raise InvalidRecord(
            f"a batch has the unknown compression codec {header.codec}: use {', '.join(CODECS.values())}"
        )
    if header.attributes & LOG_APPEND_TIME:
        raise InvalidTimestamp("a client set LogAppendTime in a batch: only the broker may")
    if header.is_control:
        raise InvalidRecord("a client wrote a control batch: only the broker may")
    if header.is_transactional and header.producer_id < 0:
        raise InvalidRecord("a transactional batch without a producer id")


def _check_time(header: BatchHeader, config: TopicConfig, now_ms: int) -> None:
    latest = now_ms + config.message_timestamp_after_max_ms
    earliest = now_ms - config.message_timestamp_before_max_ms
    if header.max_timestamp > latest or 0 <= header.base_timestamp < earliest:
        raise InvalidTimestamp(
            f"records with timestamps from {header.base_timestamp} to {header.max_timestamp} ms; this topic "
            f"accepts {earliest} to {latest}: check the producer's clock or "
            "message.timestamp.{before,after}.max.ms"
        )


class AppendInfo(NamedTuple):
    """The offset of an appended batch; for a duplicate, that of the first copy."""

    base_offset: int
    append_time_ms: int
    is_duplicate: bool = False


class Log(ABC):
    """The log of one partition: offsets, producers and transactions. Subclasses store the batches."""

    needs_sync: bool
    """Whether `sync` makes appended batches more durable."""

    def __init__(self, config: TopicConfig) -> None:
        self.config = config
        self.start_offset = 0
        self.end_offset = 0
        self.high_watermark = 0
        self.written_bytes = 0
        """Bytes appended since the log was opened."""
        self.received_bytes = 0
        """Bytes appended by clients since the log was opened, without markers and records of the broker."""
        self.received_records = 0
        self.sent_bytes = 0
        """Bytes sent to clients since the log was opened."""
        self.producers = ProducerStates()
        self.aborted = AbortedTransactions()
        self.is_deleted = False

    @abstractmethod
    def _write(self, batch: memoryview | bytearray, header: BatchHeader, last_offset: int) -> None:
        """Store a batch that ends with `last_offset`, or raise an error without any effect."""

    @abstractmethod
    def _appended(self) -> None:
        """Advance the high watermark after an append."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The size of all batches in bytes."""

    @abstractmethod
    def read(self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool) -> Records | None:
        """The batches from the one that holds `offset` to before `end_offset`; None if there are none yet.

        With `at_least_one` the first batch is returned even if it is larger than `max_bytes`. It may start
        before `offset`: consumers skip these records.
        """

    @abstractmethod
    def batches(self, offset: int) -> Iterator[bytes]:
        """Yield the batches from `offset` to the end."""

    @abstractmethod
    def next_batch(self, offset: int) -> BatchHeader | None:
        """The header of the batch that holds `offset`, or of the next one."""

    @abstractmethod
    def search_time(self, timestamp: int) -> Search:
        """Search in steps for the first record that is not older than `timestamp`."""

    @abstractmethod
    def search_latest_time(self) -> Search:
        """Search in steps for the record with the largest timestamp."""

    @abstractmethod
    def size_from(self, offset: int) -> int:
        """The size of the batches from the one that holds `offset` to the end."""

    @abstractmethod
    def offset_within(self, size: int) -> int:
        """The first offset from which on all batches together have at most `size` bytes."""

    @abstractmethod
    def move_start(self, offset: int) -> None:
        """Move the log start offset, and delete what is before it."""

    @abstractmethod
    def apply_retention(self, now_ms: int) -> int:
        """Delete what exceeds the retention by time or size; returns the deleted bytes."""

    @abstractmethod
    def sync(self) -> int:
        """Make all appended batches durable; returns the end offset that is durable.

        Called in a thread, while the event loop appends.
        """

    @property
    def waits_for_archive(self) -> bool:
        """Whether appended batches count as stored only when they are in the archive."""
        return False

    @abstractmethod
    def synced(self, end_offset: int) -> None:
        """Advance the high watermark after a sync."""

    def stage(self, batch: memoryview) -> Generator[None, None, None]:  # noqa: ARG002
        """Prepare the append of a large batch in steps, where that helps; yields between them."""
        yield from ()

    def discard_staged(self) -> None:
        """Remove a batch that was staged and not appended."""
        return

    def append(
        self,
        batch: memoryview,
        now_ms: int,
        admit: Callable[[BatchHeader], None] | None = None,
        *,
        has_keys: bool = False,
        checksum: int | None = None,
    ) -> AppendInfo:
        """Append one batch of a client, or raise an error with the reason.

        `batch` must be writable: its header gets the offset and, with LogAppendTime, the broker's time.
        `admit` may raise an error for a batch that is valid and new. `has_keys` says that the keys for a
        compacted topic are already checked; `checksum` is that of the batch, if it is already computed.
        """
        header = validate_batch(batch, self.config, now_ms, has_keys=has_keys, checksum=checksum)
        if header.producer_id >= 0:
            duplicate = self.producers.check(header)
            if duplicate is not None:
                return AppendInfo(duplicate.base_offset, duplicate.append_time_ms, is_duplicate=True)
        if admit is not None:
            admit(header)
        append_time_ms = NO_TIMESTAMP
        if self.config.message_timestamp_type == "LogAppendTime":
            stamp_append_time(batch, header, now_ms)
            header = header._replace(max_timestamp=now_ms)
            append_time_ms = now_ms
        base_offset = self._store(batch, header)
        self.received_bytes += header.size
        self.received_records += header.count
        if header.producer_id >= 0:
            self.producers.applied(header, base_offset, now_ms)
        return AppendInfo(base_offset, append_time_ms)

    def append_internal(
        self, records: bytes, count: int, now_ms: int, producer: tuple[int, int] | None = None
    ) -> int:
        """Append records of the broker; with a producer id and epoch, to its transaction."""
        producer_id, epoch = producer or (-1, -1)
        batch = build_batch(
            records,
            count,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            attributes=TRANSACTIONAL if producer else 0,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        base_offset = self.append_built(batch)
        if producer:
            self.producers.applied(read_header(batch), base_offset, now_ms)
        return base_offset

    def append_built(self, batch: memoryview | bytearray) -> int:
        """Append a batch of the broker, without a producer; the same buffer may be staged."""
        return self._store(batch, read_header(batch))

    def append_marker(self, producer_id: int, epoch: int, *, committed: bool, now_ms: int) -> int:
        """Append a control batch that ends the producer's transaction in this partition."""
        self.producers.check_marker(producer_id, epoch)
        batch = build_batch(
            _marker_record(committed=committed),
            1,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            attributes=TRANSACTIONAL | CONTROL,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        offset = self._store(batch, read_header(batch))
        aborted = self.producers.marker(producer_id, epoch, offset, committed=committed, now_ms=now_ms)
        if aborted is not None:
            self.aborted.add(aborted)
        return offset

    def _store(self, batch: memoryview | bytearray, header: BatchHeader) -> int:
        base_offset = self.end_offset
        place_batch(batch, base_offset, 0)
        last_offset = base_offset + header.last_offset_delta
        self._write(batch, header, last_offset)
        self.end_offset = last_offset + 1
        self.written_bytes += len(batch)
        self._appended()
        return base_offset

    @property
    def last_stable_offset(self) -> int:
        """The end offset for read_committed consumers."""
        unstable = self.producers.first_unstable_offset
        if unstable is None:
            return self.high_watermark
        return max(self.start_offset, min(unstable, self.high_watermark))

    def _check_start(self, offset: int) -> None:
        """Raise `OffsetOutOfRange` if the log cannot start at `offset`."""
        if not self.start_offset <= offset <= self.high_watermark:
            raise OffsetOutOfRange(
                f"offset {offset} is not between {self.start_offset} and {self.high_watermark}"
            )

    def _has_read_all(self, offset: int, end_offset: int) -> bool:
        """Whether `offset` is at `end_offset`; raises `OffsetOutOfRange` for an offset outside the log."""
        if offset < self.start_offset:
            raise OffsetOutOfRange(f"offset {offset} is before the start {self.start_offset}")
        if offset > self.high_watermark:
            raise OffsetOutOfRange(f"offset {offset} is after the end {self.high_watermark}")
        return offset >= end_offset


def _marker_record(*, committed: bool) -> bytes:
    """The record of a control batch: key (version 0, type), value (version 0, coordinator epoch 0)."""
    key = b"\0\0\0\1" if committed else b"\0\0\0\0"
    body = b"\0\0\0" + b"\x08" + key + b"\x0c" + b"\0\0\0\0\0\0" + b"\0"
    return bytes([len(body) * 2]) + body
