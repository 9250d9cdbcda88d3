"""Record batches (format v2): a header of 61 bytes, and records that are not decoded here.

The checksum covers everything from the attributes on, so an append can set the base offset and the leader
epoch without a new checksum.

    base offset i64 · length i32 · leader epoch i32 · magic i8 · crc u32 · attributes i16 ·
    last offset delta i32 · base timestamp i64 · max timestamp i64 ·
    producer id i64 · producer epoch i16 · base sequence i32 · count i32

`length` is the size after it: a batch has `length + 12` bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict, Unpack

from crc32c import crc32c

from headrace.protocol.errors import CorruptBatch

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

    from headrace.protocol.compression import Bytes

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size  # 61
LENGTH_OVERHEAD: Final = 12
"""The size of the base offset and the length, which `length` does not include."""
CRC_START: Final = 21
"""The position of the attributes, from which on the checksum is computed."""
CHECKSUM_STEP_BYTES: Final = 8 * 2**20
"""The size for one step of a checksum: less than a millisecond."""
COPY_STEP_BYTES: Final = 2**20
"""The size for one step of a copy or of a write: about a millisecond."""
MIN_LENGTH: Final = HEADER_BYTES - LENGTH_OVERHEAD
MAGIC: Final = 2

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

NO_PRODUCER: Final = -1
NO_SEQUENCE: Final = -1
SEQUENCE_LIMIT: Final = 1 << 31

_OFFSET = struct.Struct(">q")
_LENGTH_AT_8 = struct.Struct(">8xi")
_LENGTH = struct.Struct(">i")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMPS = struct.Struct(">qq")
_PRODUCER = struct.Struct(">qhi")


class BatchHeader(NamedTuple):
    """The header of a batch."""

    base_offset: int
    length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # Kafka's name; the method of tuples is not needed

    @property
    def size(self) -> int:
        """The size of the batch in bytes."""
        return self.length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        """The offset of the last record before any compaction."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """The compression codec."""
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch is a transaction marker."""
        return bool(self.attributes & CONTROL)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record, which wraps at 2³¹."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) % SEQUENCE_LIMIT


class BatchFields(TypedDict, total=False):
    """Optional fields of a new batch."""

    base_offset: int
    leader_epoch: int
    attributes: int
    last_offset_delta: int | None
    producer_id: int
    producer_epoch: int
    base_sequence: int


class SealedFields(BatchFields):
    """The fields of a new batch."""

    base_timestamp: int
    max_timestamp: int


def read_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """Decode the header at `position`; the caller has checked that it is complete."""
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def checksum_steps(buffer: memoryview) -> Generator[None, None, int]:
    """Compute the checksum of a batch in steps."""
    checksum = 0
    for start in range(CRC_START, len(buffer), CHECKSUM_STEP_BYTES):
        checksum = crc32c(buffer[start : start + CHECKSUM_STEP_BYTES], checksum)
        yield
    return checksum


def copy_steps(buffer: memoryview) -> Generator[None, None, bytearray]:
    """Copy a batch in steps."""
    # Growing a buffer of this size moves pages; allocating it at once would write zeros to all of them.
    copy = bytearray()
    for start in range(0, len(buffer), COPY_STEP_BYTES):
        copy += buffer[start : start + COPY_STEP_BYTES]
        yield
    return copy


def check_batch(buffer: memoryview, header: BatchHeader, checksum: int | None = None) -> None:
    """Raise `CorruptBatch` unless `buffer` is exactly one batch with a valid checksum.

    `checksum` is that of the bytes, if it is already computed.
    """
    if header.magic != MAGIC:
        raise CorruptBatch(f"record batch of format {header.magic}: only format 2 is stored")
    if header.size != len(buffer) or header.length < MIN_LENGTH:
        raise CorruptBatch(f"record batch of {header.size} bytes in {len(buffer)} bytes")
    if (crc32c(buffer[CRC_START:]) if checksum is None else checksum) != header.crc:
        raise CorruptBatch(f"record batch at offset {header.base_offset} fails its checksum")


def place_batch(buffer: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Set the base offset and leader epoch, which the checksum does not cover."""
    _OFFSET.pack_into(buffer, 0, base_offset)
    _EPOCH.pack_into(buffer, LENGTH_OVERHEAD, leader_epoch)


def stamp_append_time(buffer: bytearray | memoryview, header: BatchHeader, now_ms: int) -> None:
    """Set the broker's time, for topics with `message.timestamp.type=LogAppendTime`."""
    _ATTRIBUTES.pack_into(buffer, CRC_START, header.attributes | LOG_APPEND_TIME)
    _TIMESTAMPS.pack_into(buffer, 27, header.base_timestamp, now_ms)
    _CRC.pack_into(buffer, 17, crc32c(memoryview(buffer)[CRC_START:]))


def stamp_producer(
    buffer: bytearray | memoryview, producer_id: int, epoch: int, base_sequence: int, *, transactional: bool
) -> None:
    """Set producer id, epoch and base sequence, and compute the checksum."""
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, CRC_START)
    changed = attributes | TRANSACTIONAL if transactional else attributes & ~TRANSACTIONAL
    _ATTRIBUTES.pack_into(buffer, CRC_START, changed)
    _PRODUCER.pack_into(buffer, 43, producer_id, epoch, base_sequence)
    _CRC.pack_into(buffer, 17, crc32c(memoryview(buffer)[CRC_START:]))


def build_batch(
    records: Bytes,
    count: int,
    **fields: Unpack[SealedFields],
) -> bytearray:
    """Build a batch from an encoded and, if `attributes` say so, compressed records section."""
    batch = bytearray(HEADER_BYTES + len(records))
    batch[HEADER_BYTES:] = records
    seal_batch(batch, count, **fields)
    return batch


def build_batch_steps(
    records: Iterable[Bytes],
    count: int,
    **fields: Unpack[SealedFields],
) -> Generator[None, None, bytearray]:
    """Build a large batch from the parts of its records section, in steps."""
    batch = bytearray(HEADER_BYTES)
    for part in records:
        view = memoryview(part)
        for start in range(0, len(view), COPY_STEP_BYTES):
            batch += view[start : start + COPY_STEP_BYTES]
            if len(view) > COPY_STEP_BYTES:
                yield
    seal_batch(batch, count, **fields)
    return batch


def seal_header(records: Bytes, count: int, **fields: Unpack[SealedFields]) -> bytes:
    """The header of a batch whose records section stays where it is."""
    header = bytearray(HEADER_BYTES)
    seal_batch(header, count, **fields)
    _LENGTH.pack_into(header, 8, MIN_LENGTH + len(records))
    _CRC.pack_into(header, 17, crc32c(records, crc32c(memoryview(header)[CRC_START:])))
    return bytes(header)


def seal_batch(
    buffer: bytearray | memoryview,
    count: int,
    *,
    base_timestamp: int,
    max_timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = 0,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
) -> None:
    """Write the header into `buffer`, which has the records section after it."""
    delta = count - 1 if last_offset_delta is None else last_offset_delta
    fields = (
        attributes,
        delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    length = len(buffer) - LENGTH_OVERHEAD
    HEADER.pack_into(buffer, 0, base_offset, length, leader_epoch, MAGIC, 0, *fields)
    _CRC.pack_into(buffer, 17, crc32c(memoryview(buffer)[CRC_START:]))


def split_batches(buffer: memoryview) -> Iterator[memoryview]:
    """Yield the complete batches in `buffer`; an incomplete one at the end is ignored."""
    position = 0
    end = len(buffer)
    while end - position >= HEADER_BYTES:
        (length,) = _LENGTH_AT_8.unpack_from(buffer, position)
        size = length + LENGTH_OVERHEAD
        if length < MIN_LENGTH or position + size > end:
            return
        yield buffer[position : position + size]
        position += size
