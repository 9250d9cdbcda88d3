"""The records inside a batch, one by one, in plain Python: for internal topics, checks and small tools.

A record is

    length · attributes i8 · timestamp delta · offset delta · key length · key · value length · value ·
    header count · (name length · name · value length · value)*

where every length, delta and count is a zigzag varint and a length of −1 means null. Nothing here trusts a
number before it is held against the bytes that are there. Bulk work belongs to `kernels`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.protocol.batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    NO_PRODUCER,
    NO_SEQUENCE,
    BatchHeader,
    build_batch,
    read_header,
)
from headrace.protocol.compression import MAX_RATIOS, NONE, RECORDS_LIMIT, compress, decompress
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.extent import Extent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace.protocol.compression import Bytes

MIN_RECORD_BYTES: Final = 7
"""The least that a record takes, its length included: one byte for each of its seven parts."""

Headers = tuple[tuple[str, bytes | None], ...]


class NewRecord(NamedTuple):
    """A record that has no offset yet."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers = ()


class Record(NamedTuple):
    """A record as it stands in the log."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def open_section(batch: Bytes, header: BatchHeader, limit: int = RECORDS_LIMIT) -> Bytes:
    """The records section of `batch`, decompressed, whatever is in it."""
    return decompress(header.codec, memoryview(batch)[HEADER_BYTES : header.size], limit)


def open_records(batch: Bytes, header: BatchHeader, limit: int = RECORDS_LIMIT) -> Bytes:
    """The records section of `batch`, decompressed, with room for as many records as the header counts."""
    section = open_section(batch, header, limit)
    if not 0 <= header.count <= len(section) // MIN_RECORD_BYTES:
        raise CorruptBatch(f"batch counts {header.count} records in {len(section)} bytes")
    return section


def decode_batch(batch: Bytes, limit: int = RECORDS_LIMIT) -> list[Record]:
    """The records of one whole batch, or `CorruptBatch`; the checksum is `check_batch`'s concern."""
    header = read_header(batch)
    data = bytes(open_records(batch, header, limit))
    return [_record(data, extent, header) for extent in walk_records(data, header.count)]


def _record(data: Bytes, extent: Extent, header: BatchHeader) -> Record:
    has_append_time = header.attributes & LOG_APPEND_TIME
    return Record(
        header.base_offset + extent.offset_delta,
        header.max_timestamp if has_append_time else header.base_timestamp + extent.timestamp_delta,
        _cut(data, extent.key_start, extent.key_size),
        _cut(data, extent.value_start, extent.value_size),
        _decode_headers(data, extent.headers_start, extent.header_count) if extent.header_count else (),
    )


def walk_records(section: bytes, count: int) -> Iterator[Extent]:
    """Where each of `count` records lies in a section, or `CorruptBatch`.

    The slow twin of the walk in `kernels`: it takes and refuses the same bytes.
    """
    position = 0
    last_delta = -1
    for _ in range(count):
        extent = _walk_record(section, position)
        if extent.offset_delta <= last_delta:
            raise CorruptBatch(f"a record is numbered {extent.offset_delta} and follows {last_delta}")
        last_delta = extent.offset_delta
        position += extent.size
        yield extent
    _check_all_read(section, position, count)


def records_without_key(batch: Bytes, limit: int = RECORDS_LIMIT, most: int = 1) -> list[int]:
    """The indexes of the records that a compacted topic must refuse, at most `most` of them.

    Lengths that lie and records that are not numbered 0, 1, 2 … raise `CorruptBatch`. Values and headers are
    stepped over: this runs while a producer waits.
    """
    header = read_header(batch)
    data = bytes(open_records(batch, header, limit))
    keyless: list[int] = []
    position = 0
    for index in range(header.count):
        end, position = _record_end(data, position)
        # Most deltas take one byte; a call for each of them would double the time of this loop.
        _, position = (
            (0, position + 2) if data[position + 1] < 0x80 else decode_varint(data, position + 1, 64)
        )
        delta, position = decode_varint(data, position)
        if delta != index:
            raise CorruptBatch(f"record {index} of a batch is numbered {delta}")
        size, position = decode_varint(data, position)
        if size < -1 or position + size > end:
            raise CorruptBatch(f"a key of {size} bytes in a record that has {end - position} left")
        if size < 0 and len(keyless) < most:
            keyless.append(index)
        position = end
    _check_all_read(data, position, header.count)
    return keyless


def most_records(codec: int, size: int) -> int:
    """The most records that a section of `size` bytes in `codec` can hold, without opening it."""
    room = size if not codec else min(size * MAX_RATIOS.get(codec, 1), RECORDS_LIMIT)
    return room // MIN_RECORD_BYTES


def step_over_record(data: Bytes, start: int) -> tuple[int, int]:
    """Where the record at `start` ends, and its offset delta, or `CorruptBatch`.

    Takes and refuses what `walk_records` does, in half the time: nothing but the end is built. Most lengths
    and deltas take one byte, and a call for each of them would double the time again.
    """
    try:
        byte = data[start]
        if byte < 0x80:
            length, position = (byte >> 1) ^ -(byte & 1), start + 1
        else:
            length, position = decode_varint(data, start)
        end = position + length
        if length < MIN_RECORD_BYTES - 1 or end > len(data):
            raise CorruptBatch(f"a record says {length} bytes where {len(data) - position} are left")
        position += 1
        position = position + 1 if data[position] < 0x80 else decode_varint(data, position, 64)[1]
        byte = data[position]
        if byte < 0x80:
            delta, position = (byte >> 1) ^ -(byte & 1), position + 1
        else:
            delta, position = decode_varint(data, position)
        position = _step_over_bytes(data, _step_over_bytes(data, position, end), end)
        if data[position]:
            count, position = decode_varint(data, position)
            _walk_headers(data, position, end, count)
        elif position + 1 != end:
            raise CorruptBatch(f"{end - position - 1} bytes follow the last header of a record")
    except IndexError:
        raise CorruptBatch("a batch ends inside a record") from None
    return end, delta


def _step_over_bytes(data: Bytes, position: int, end: int) -> int:
    byte = data[position]
    if byte < 0x80:
        size, position = (byte >> 1) ^ -(byte & 1), position + 1
    else:
        size, position = decode_varint(data, position)
    after = position + size if size > 0 else position
    if size < -1 or after > end:
        raise CorruptBatch(f"a length of {size} in a record that has {end - position} bytes left")
    return after


def decode_record(data: Bytes, start: int, header: BatchHeader) -> Record:
    """The record at `start` of the section of a batch, or `CorruptBatch`."""
    return _record(data, _walk_record(data, start), header)


def record_times(section: Bytes, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Offset and time of each record in an opened batch; keys, values and headers are stepped over."""
    data = bytes(section)
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    position = 0
    for _ in range(header.count):
        end, position = _record_end(data, position)
        delta, position = decode_varint(data, position + 1, 64)
        offset = header.base_offset + decode_varint(data, position)[0]
        yield offset, header.base_timestamp + delta if append_time is None else append_time
        position = end


def encode_records(records: Iterable[NewRecord], base_timestamp: int) -> bytes:
    """The records section of a batch that begins at `base_timestamp`, not compressed."""
    parts: list[bytes] = []
    for delta, record in enumerate(records):
        body = _encode_body(record, record.timestamp - base_timestamp, delta)
        parts += (encode_varint(len(body)), body)
    return b"".join(parts)


def encode_batch(
    records: Sequence[NewRecord],
    *,
    codec: int = NONE,
    attributes: int = 0,
    base_offset: int = 0,
    producer_id: int = NO_PRODUCER,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
) -> bytearray:
    """One whole batch of `records` (at least one), compressed with `codec`."""
    base_timestamp = records[0].timestamp
    return build_batch(
        compress(codec, encode_records(records, base_timestamp)),
        len(records),
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp for record in records),
        attributes=attributes | codec,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
    )


def encode_varint(value: int) -> bytes:
    """`value`, of at most 64 bits, as a zigzag varint."""
    if 0 <= value < len(_SHORT):  # most lengths of names and values are
        return _SHORT[value]
    return _encode_varint(value)


def _encode_varint(value: int) -> bytes:
    rest = (value << 1) ^ (value >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_SHORT: Final = tuple(_encode_varint(value) for value in range(128))


def decode_varint(data: Bytes, position: int, bits: int = 32) -> tuple[int, int]:
    """The zigzag varint at `position` and the position after it, or `CorruptBatch` when it is too long."""
    try:
        byte = data[position]
        if byte < 0x80:  # most are this short, and this is called five times for a record
            return (byte >> 1) ^ -(byte & 1), position + 1
        raw, shift = byte & 0x7F, 7
        while True:
            position += 1
            byte = data[position]
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift >= bits:
                raise CorruptBatch(f"a varint takes more than {bits} bits")
    except IndexError:
        raise CorruptBatch("a batch ends inside a varint") from None
    if raw >> bits:
        raise CorruptBatch(f"a varint takes more than {bits} bits")
    return (raw >> 1) ^ -(raw & 1), position + 1


def _walk_record(data: Bytes, start: int) -> Extent:
    end, position = _record_end(data, start)
    timestamp_delta, position = decode_varint(data, position + 1, 64)
    offset_delta, position = decode_varint(data, position)
    key_start, key_size, position = _walk_bytes(data, position, end)
    value_start, value_size, position = _walk_bytes(data, position, end)
    count, headers_start = decode_varint(data, position)
    _walk_headers(data, headers_start, end, count)
    return Extent(
        start,
        end - start,
        timestamp_delta,
        offset_delta,
        key_start,
        key_size,
        value_start,
        value_size,
        headers_start,
        count,
    )


def _record_end(data: Bytes, position: int) -> tuple[int, int]:
    length, position = decode_varint(data, position)
    if length < MIN_RECORD_BYTES - 1 or position + length > len(data):
        raise CorruptBatch(f"a record says {length} bytes where {len(data) - position} are left")
    return position + length, position


def _check_all_read(data: Bytes, position: int, count: int) -> None:
    if position != len(data):
        raise CorruptBatch(f"{len(data) - position} bytes follow the last of {count} records")


def _walk_bytes(data: Bytes, position: int, end: int) -> tuple[int, int, int]:
    """Where bytes begin, how many they are (-1 for null), and where they end."""
    size, start = decode_varint(data, position)
    after = start + size if size > 0 else start
    if size < -1 or after > end:
        raise CorruptBatch(f"a length of {size} in a record that has {end - start} bytes left")
    return start, size, after


def _walk_headers(data: Bytes, position: int, end: int, count: int) -> None:
    if not 0 <= count <= max(0, end - position) // 2:
        raise CorruptBatch(f"a record counts {count} headers in {end - position} bytes")
    for _ in range(count):
        _, name_size, position = _walk_bytes(data, position, end)
        if name_size < 0:
            raise CorruptBatch("a record has a header without a name")
        _, _, position = _walk_bytes(data, position, end)
    if position != end:
        raise CorruptBatch(f"{end - position} bytes follow the last header of a record")


def _decode_headers(data: Bytes, position: int, count: int) -> Headers:
    """Headers that a walk has found to be sound."""
    headers = []
    for _ in range(count):
        start, size, position = _walk_bytes(data, position, len(data))
        value_start, value_size, position = _walk_bytes(data, position, len(data))
        # As the Java client does: one name that is not UTF-8 does not make its record unreadable.
        name = bytes(data[start : start + size]).decode(errors="replace")
        headers.append((name, _cut(data, value_start, value_size)))
    return tuple(headers)


def _cut(data: Bytes, start: int, size: int) -> bytes | None:
    return None if size < 0 else bytes(data[start : start + size])


def _encode_body(record: NewRecord, timestamp_delta: int, delta: int) -> bytes:
    # One list and no generators: writers of single records spend most of their time here.
    parts = [b"\x00", encode_varint(timestamp_delta), encode_varint(delta)]
    parts += _encode_bytes(record.key)
    parts += _encode_bytes(record.value)
    parts.append(encode_varint(len(record.headers)))
    for name, value in record.headers:
        parts += _encode_bytes(name.encode())
        parts += _encode_bytes(value)
    return b"".join(parts)


def _encode_bytes(value: bytes | None) -> tuple[bytes, ...]:
    return (b"\x01",) if value is None else (encode_varint(len(value)), value)
