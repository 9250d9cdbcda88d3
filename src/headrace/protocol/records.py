"""Encodes and decodes the records of a batch in plain Python. `kernels` does it in bulk.

A record is

    length · attributes i8 · timestamp delta · offset delta · key length · key · value length · value ·
    header count · (name length · name · value length · value)*

where every length, delta and count is a zigzag varint, and a length of −1 means null. All lengths and counts
are checked against the size of the section.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.protocol.batch import (
    COPY_STEP_BYTES,
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

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from headrace.protocol.compression import Bytes

MIN_RECORD_BYTES: Final = 7
"""The smallest size of a record: one byte for each of its seven parts."""


# The rows of a matrix of record layouts, with one column per record: the fields of `RecordLayout`.
START: Final = 0
SIZE: Final = 1
TIMESTAMP_DELTA: Final = 2
OFFSET_DELTA: Final = 3
KEY_START: Final = 4
KEY_SIZE: Final = 5
VALUE_START: Final = 6
VALUE_SIZE: Final = 7
HEADERS_START: Final = 8
HEADER_COUNT: Final = 9
ROWS: Final = 10

Headers = tuple[tuple[str, bytes | None], ...]


class NewRecord(NamedTuple):
    """A record without an offset."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Headers = ()


class Record(NamedTuple):
    """A record in the log."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class RecordView(NamedTuple):
    """A record in the log whose fields are views: nothing is copied, however large it is."""

    offset: int
    timestamp: int
    key: memoryview | None
    value: memoryview | None
    headers: tuple[tuple[str, memoryview | None], ...]


class RecordLayout(NamedTuple):
    """The positions of a record and its fields in the records section; a size of −1 means null."""

    start: int
    """The position of the record, which starts with its length."""
    size: int
    """The size of the record with its length."""
    timestamp_delta: int
    offset_delta: int
    key_start: int
    key_size: int
    value_start: int
    value_size: int
    headers_start: int
    """The position of the headers, after their count."""
    header_count: int


def decompress_section(batch: Bytes, header: BatchHeader, limit: int = RECORDS_LIMIT) -> Bytes:
    """Decompress the records section of a batch."""
    return decompress(header.codec, memoryview(batch)[HEADER_BYTES : header.size], limit)


def decompress_records(batch: Bytes, header: BatchHeader, limit: int = RECORDS_LIMIT) -> Bytes:
    """Decompress the records section of a batch, and check that the count in the header is possible."""
    section = decompress_section(batch, header, limit)
    if not 0 <= header.count <= len(section) // MIN_RECORD_BYTES:
        raise CorruptBatch(f"a batch has {header.count} records in {len(section)} bytes")
    return section


def decode_batch(batch: Bytes, limit: int = RECORDS_LIMIT) -> list[Record]:
    """Decode the records of a batch; raises `CorruptBatch`. `check_batch` verifies the checksum."""
    header = read_header(batch)
    data = bytes(decompress_records(batch, header, limit))
    return [_record(data, layout, header) for layout in walk_records(data, header.count)]


def _record(data: Bytes, layout: RecordLayout, header: BatchHeader) -> Record:
    return Record(
        header.base_offset + layout.offset_delta,
        _timestamp(layout, header),
        _slice(data, layout.key_start, layout.key_size),
        _slice(data, layout.value_start, layout.value_size),
        _decode_headers(data, layout.headers_start, layout.header_count) if layout.header_count else (),
    )


def walk_records(section: bytes, count: int) -> Iterator[RecordLayout]:
    """Yield the layouts of `count` records in a section; raises `CorruptBatch`.

    `kernels.walk` accepts and refuses the same bytes.
    """
    position = 0
    last_delta = -1
    for _ in range(count):
        layout = _walk_record(section, position)
        if layout.offset_delta <= last_delta:
            raise CorruptBatch(f"the offset delta {layout.offset_delta} follows {last_delta}")
        last_delta = layout.offset_delta
        position += layout.size
        yield layout
    _check_all_read(section, position, count)


def records_without_key(batch: Bytes, limit: int = RECORDS_LIMIT, most: int = 1) -> list[int]:
    """The indexes of the first `most` records without a key.

    Raises `CorruptBatch` for invalid lengths, and for offset deltas other than 0, 1, 2 … Values and headers
    are skipped: a producer waits for this.
    """
    header = read_header(batch)
    data = decompress_records(batch, header, limit)
    if len(data) <= COPY_STEP_BYTES:
        data = bytes(data)  # twice as fast to read as a view; a copy of a large batch would pause the broker
    keyless: list[int] = []
    position = 0
    for index in range(header.count):
        end, position = _record_end(data, position)
        # Most deltas take one byte; a function call would double the time of this loop.
        _, position = (
            (0, position + 2) if data[position + 1] < 0x80 else decode_varint(data, position + 1, 64)
        )
        delta, position = decode_varint(data, position)
        if delta != index:
            raise CorruptBatch(f"record {index} of a batch has the offset delta {delta}")
        size, position = decode_varint(data, position)
        if size < -1 or position + size > end:
            raise CorruptBatch(f"a key of {size} bytes in a record that has {end - position} left")
        if size < 0 and len(keyless) < most:
            keyless.append(index)
        position = end
    _check_all_read(data, position, header.count)
    return keyless


def max_records(codec: int, size: int) -> int:
    """The most records that a section of `size` bytes in `codec` can hold."""
    room = size if not codec else min(size * MAX_RATIOS.get(codec, 1), RECORDS_LIMIT)
    return room // MIN_RECORD_BYTES


def skip_record(data: Bytes, start: int, max_headers: int = RECORDS_LIMIT) -> tuple[int, int, int]:
    """The end of the record at `start`, its offset delta and its number of headers; raises `CorruptBatch`.

    Accepts and refuses the same bytes as `walk_records`, in half the time: it builds no layout, and decodes
    varints of one byte, which are the most, without a function call. A record with more than `max_headers`
    is refused before they are read.
    """
    count = 0
    try:
        byte = data[start]
        if byte < 0x80:
            length, position = (byte >> 1) ^ -(byte & 1), start + 1
        else:
            length, position = decode_varint(data, start)
        end = position + length
        if length < MIN_RECORD_BYTES - 1 or end > len(data):
            raise CorruptBatch(f"a record of {length} bytes, and {len(data) - position} are left")
        position += 1
        position = position + 1 if data[position] < 0x80 else decode_varint(data, position, 64)[1]
        byte = data[position]
        if byte < 0x80:
            delta, position = (byte >> 1) ^ -(byte & 1), position + 1
        else:
            delta, position = decode_varint(data, position)
        position = _skip_bytes(data, _skip_bytes(data, position, end), end)
        if data[position]:
            count, position = decode_varint(data, position)
            if count > max_headers:
                raise CorruptBatch(f"a record has {count} headers, and more than {max_headers} are not read")
            _walk_headers(data, position, end, count)
        elif position + 1 != end:
            raise CorruptBatch(f"{end - position - 1} bytes follow the last header of a record")
    except IndexError:
        raise CorruptBatch("a batch ends within a record") from None
    return end, delta, count


def _skip_bytes(data: Bytes, position: int, end: int) -> int:
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
    """Decode the record at `start` of a section; raises `CorruptBatch`."""
    return _record(data, _walk_record(data, start), header)


def view_record(data: Bytes, start: int, header: BatchHeader) -> RecordView:
    """Decode the record at `start` of a section without copying its fields; raises `CorruptBatch`."""
    layout = _walk_record(data, start)
    view = memoryview(data)
    headers = []
    position = layout.headers_start
    for _ in range(layout.header_count):
        name_start, name_size, position = _walk_bytes(data, position, len(data))
        value_start, value_size, position = _walk_bytes(data, position, len(data))
        name = bytes(view[name_start : name_start + name_size]).decode(errors="replace")
        headers.append((name, _view(view, value_start, value_size)))
    return RecordView(
        header.base_offset + layout.offset_delta,
        _timestamp(layout, header),
        _view(view, layout.key_start, layout.key_size),
        _view(view, layout.value_start, layout.value_size),
        tuple(headers),
    )


def _timestamp(layout: RecordLayout, header: BatchHeader) -> int:
    has_append_time = header.attributes & LOG_APPEND_TIME
    return header.max_timestamp if has_append_time else header.base_timestamp + layout.timestamp_delta


def _view(data: memoryview, start: int, size: int) -> memoryview | None:
    return None if size < 0 else data[start : start + size]


def record_times(section: Bytes, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """Yield offset and timestamp of each record in a decompressed section."""
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
    """Encode an uncompressed records section."""
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
    """Encode a batch of at least one record."""
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
    """Encode a zigzag varint of at most 64 bits."""
    if 0 <= value < len(_SHORT):  # the common case
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
    """The zigzag varint at `position` and the position after it; raises `CorruptBatch`."""
    try:
        byte = data[position]
        if byte < 0x80:  # the common case
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
        raise CorruptBatch("a batch ends within a varint") from None
    if raw >> bits:
        raise CorruptBatch(f"a varint takes more than {bits} bits")
    return (raw >> 1) ^ -(raw & 1), position + 1


def _walk_record(data: Bytes, start: int) -> RecordLayout:
    end, position = _record_end(data, start)
    timestamp_delta, position = decode_varint(data, position + 1, 64)
    offset_delta, position = decode_varint(data, position)
    key_start, key_size, position = _walk_bytes(data, position, end)
    value_start, value_size, position = _walk_bytes(data, position, end)
    count, headers_start = decode_varint(data, position)
    _walk_headers(data, headers_start, end, count)
    return RecordLayout(
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
        raise CorruptBatch(f"a record of {length} bytes, and {len(data) - position} are left")
    return position + length, position


def _check_all_read(data: Bytes, position: int, count: int) -> None:
    if position != len(data):
        raise CorruptBatch(f"{len(data) - position} bytes follow the last of {count} records")


def _walk_bytes(data: Bytes, position: int, end: int) -> tuple[int, int, int]:
    """Position, size (−1 for null) and end of a field of bytes."""
    size, start = decode_varint(data, position)
    after = start + size if size > 0 else start
    if size < -1 or after > end:
        raise CorruptBatch(f"a length of {size} in a record that has {end - start} bytes left")
    return start, size, after


def _walk_headers(data: Bytes, position: int, end: int, count: int) -> None:
    if not 0 <= count <= max(0, end - position) // 2:
        raise CorruptBatch(f"a record has {count} headers in {end - position} bytes")
    for _ in range(count):
        _, name_size, position = _walk_bytes(data, position, end)
        if name_size < 0:
            raise CorruptBatch("a record has a header without a name")
        _, _, position = _walk_bytes(data, position, end)
    if position != end:
        raise CorruptBatch(f"{end - position} bytes follow the last header of a record")


def _decode_headers(data: Bytes, position: int, count: int) -> Headers:
    """Decode headers that were checked."""
    headers = []
    for _ in range(count):
        start, size, position = _walk_bytes(data, position, len(data))
        value_start, value_size, position = _walk_bytes(data, position, len(data))
        # As in the Java client: a header name need not be UTF-8.
        name = bytes(data[start : start + size]).decode(errors="replace")
        headers.append((name, _slice(data, value_start, value_size)))
    return tuple(headers)


def _slice(data: Bytes, start: int, size: int) -> bytes | None:
    return None if size < 0 else bytes(data[start : start + size])


def encode_record_parts(
    key: Bytes | None, value: Bytes | None, headers: Sequence[tuple[str, Bytes | None]], offset_delta: int
) -> list[Bytes]:
    """Encode a record with the timestamp of its batch as parts: a large key or value is not copied."""
    parts: list[Bytes] = [b"\x00\x00", encode_varint(offset_delta)]
    parts += (*_encode_bytes(key), *_encode_bytes(value), encode_varint(len(headers)))
    for name, content in headers:
        parts += _encode_bytes(name.encode())
        parts += _encode_bytes(content)
    return [encode_varint(sum(map(len, parts))), *parts]


def _encode_body(record: NewRecord, timestamp_delta: int, delta: int) -> bytes:
    # One list and no generators, for speed.
    parts: list[Bytes] = [b"\x00", encode_varint(timestamp_delta), encode_varint(delta)]
    parts += _encode_bytes(record.key)
    parts += _encode_bytes(record.value)
    parts.append(encode_varint(len(record.headers)))
    for name, value in record.headers:
        parts += _encode_bytes(name.encode())
        parts += _encode_bytes(value)
    return b"".join(parts)


def _encode_bytes(value: Bytes | None) -> tuple[Bytes, ...]:
    return (b"\x01",) if value is None else (encode_varint(len(value)), value)
