"""Record batches (format v2) as the log holds them: a header of 61 bytes, then records that stay closed.

A batch is opaque to the broker. Its checksum covers everything from the attributes on, so an append may
write the base offset and the leader epoch into the header without touching the checksum.

    base offset i64 · length i32 · leader epoch i32 · magic i8 · crc u32 · attributes i16 ·
    last offset delta i32 · base timestamp i64 · max timestamp i64 ·
    producer id i64 · producer epoch i16 · base sequence i32 · count i32

`length` counts what follows it, so a whole batch is `length + 12` bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict, Unpack

from crc32c import crc32c

from headrace.protocol.errors import CorruptBatch

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from headrace.protocol.compression import Bytes

HEADER: Final = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES: Final = HEADER.size  # 61
LENGTH_OVERHEAD: Final = 12
"""Bytes of a batch that its length field does not count: base offset and the length itself."""
CRC_START: Final = 21
"""Where the bytes that the checksum covers begin: the attributes."""
CHECKSUM_STEP_BYTES: Final = 8 * 2**20
"""Bytes of which the checksum is computed in one step: less than a millisecond."""
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
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_TIMESTAMPS = struct.Struct(">qq")
_PRODUCER = struct.Struct(">qhi")


class BatchHeader(NamedTuple):
    """The header of one batch, field by field, in the order of the bytes."""

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
    count: int  # type: ignore[assignment]  # Kafka's word; a tuple's own count() is never wanted

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LENGTH_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Offset of the last record that the batch ever held."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset that follows the batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """The compression codec of the records section."""
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to a transaction."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch is a transaction marker and not a user's records."""
        return bool(self.attributes & CONTROL)

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, wrapping at 2³¹ as producers do."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) % SEQUENCE_LIMIT


class BatchFields(TypedDict, total=False):
    """What may be said of a batch that is being built."""

    base_offset: int
    leader_epoch: int
    attributes: int
    last_offset_delta: int | None
    producer_id: int
    producer_epoch: int
    base_sequence: int


def read_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The header at `position`; the caller has made sure that 61 bytes are there."""
    return BatchHeader._make(HEADER.unpack_from(buffer, position))


def checksum_steps(buffer: memoryview) -> Generator[None, None, int]:
    """The checksum of a whole batch; yields between two steps of the work, for it may be very large."""
    checksum = 0
    for start in range(CRC_START, len(buffer), CHECKSUM_STEP_BYTES):
        checksum = crc32c(buffer[start : start + CHECKSUM_STEP_BYTES], checksum)
        yield
    return checksum


def check_batch(buffer: memoryview, header: BatchHeader, checksum: int | None = None) -> None:
    """Pass when `buffer` (exactly one batch) is whole and its checksum holds, or raise `CorruptBatch`.

    `checksum` is that of the bytes, where it is known already.
    """
    if header.magic != MAGIC:
        raise CorruptBatch(f"record batch of format {header.magic}: only format 2 is stored")
    if header.size != len(buffer) or header.length < MIN_LENGTH:
        raise CorruptBatch(f"record batch says {header.size} bytes and has {len(buffer)}")
    if (crc32c(buffer[CRC_START:]) if checksum is None else checksum) != header.crc:
        raise CorruptBatch(f"record batch at offset {header.base_offset} fails its checksum")


def place_batch(buffer: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Write the offset at which the batch is stored into it; the checksum does not cover these bytes."""
    _OFFSET.pack_into(buffer, 0, base_offset)
    _EPOCH.pack_into(buffer, LENGTH_OVERHEAD, leader_epoch)


def stamp_append_time(buffer: bytearray | memoryview, header: BatchHeader, now_ms: int) -> None:
    """Give the batch the broker's time, as topics with `message.timestamp.type=LogAppendTime` want."""
    _ATTRIBUTES.pack_into(buffer, CRC_START, header.attributes | LOG_APPEND_TIME)
    _TIMESTAMPS.pack_into(buffer, 27, header.base_timestamp, now_ms)
    _CRC.pack_into(buffer, 17, crc32c(memoryview(buffer)[CRC_START:]))


def stamp_producer(
    buffer: bytearray | memoryview, producer_id: int, epoch: int, base_sequence: int, *, transactional: bool
) -> None:
    """Give the batch a producer's identity and the sequence of its first record, and a new checksum."""
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, CRC_START)
    changed = attributes | TRANSACTIONAL if transactional else attributes & ~TRANSACTIONAL
    _ATTRIBUTES.pack_into(buffer, CRC_START, changed)
    _PRODUCER.pack_into(buffer, 43, producer_id, epoch, base_sequence)
    _CRC.pack_into(buffer, 17, crc32c(memoryview(buffer)[CRC_START:]))


def build_batch(
    records: Bytes,
    count: int,
    *,
    base_timestamp: int,
    max_timestamp: int,
    **fields: Unpack[BatchFields],
) -> bytearray:
    """A whole batch around an encoded (and, as `attributes` say, compressed) records section."""
    batch = bytearray(HEADER_BYTES + len(records))
    batch[HEADER_BYTES:] = records
    seal_batch(batch, count, base_timestamp=base_timestamp, max_timestamp=max_timestamp, **fields)
    return batch


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
    """Write the header into the first bytes of `buffer`, in which the records section is already in place."""
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
    """Each whole batch in `buffer`; what is left over at the end (a torn batch) is not yielded."""
    position = 0
    end = len(buffer)
    while end - position >= HEADER_BYTES:
        (length,) = _LENGTH_AT_8.unpack_from(buffer, position)
        size = length + LENGTH_OVERHEAD
        if length < MIN_LENGTH or position + size > end:
            return
        yield buffer[position : position + size]
        position += size
