"""ShareFetch (API key 78) and ShareAcknowledge (79), versions 1–2: decodes requests, and encodes responses.

Both have acknowledgments, and are frequent: they are encoded and decoded by hand. Version 2 adds the renewal
of locks, and a strict limit of records. A release may have a delay, as a tagged field.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.protocol.wire import (
    INT8,
    INT32,
    INT64,
    FrameCursor,
    pack_count,
    pack_string,
    pack_unsigned_varint,
    run_steps,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from uuid import UUID

    from headrace.protocol.compression import Bytes

VERSIONS: Final = (1, 2)

_LIMITS = struct.Struct(">iiiiii")
_MODE = struct.Struct(">b?")
_RANGE = struct.Struct(">qq")
_SINGLE_TYPE_RANGE = struct.Struct(">qqBBB")
"""A range with one type: first and last offset, compact length of the types, type, no tagged fields."""
_ONE_TYPE: Final = 2
_FETCHED = struct.Struct(">ih")
_LEADER = struct.Struct(">iib")
_ACQUIRED = struct.Struct(">qqhb")
_SHORT = struct.Struct(">h")
_HEAD = struct.Struct(">ibih")
NO_TAGS: Final = b"\0"
LARGE_PART_BYTES: Final = 256 * 1024
"""Records of this size are not copied into the response."""

_DELAY_TAG: Final = pack_unsigned_varint(1) + pack_unsigned_varint(20_000) + pack_unsigned_varint(INT64.size)
"""A tagged field that Apache Kafka does not have: the delay of a release in milliseconds (int64). Brokers
skip unknown tagged fields."""
STEP_ITEMS: Final = 128
"""Partitions or ranges that are decoded in one step."""
MAX_DELAY_MS: Final = 366 * 24 * 3600 * 1000


class AcknowledgeType(IntEnum):
    """Kafka's types of acknowledgments."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AcknowledgedRange(NamedTuple):
    """The acknowledgment of a range of offsets, with one type for all or one for each."""

    first: int
    last: int
    types: tuple[int, ...]
    delay_ms: int = 0
    """The delay before released records are delivered again."""


class SharePartitionRequest(NamedTuple):
    """A partition and its acknowledgments."""

    topic: UUID
    partition: int
    acknowledged: list[AcknowledgedRange]


class ShareFetchRequest(NamedTuple):
    """A request for records, with acknowledgments."""

    group: str
    member: str
    epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    max_records: int
    renews: bool
    partitions: list[SharePartitionRequest]
    forgotten: list[tuple[UUID, int]]


class ShareAcknowledgeRequest(NamedTuple):
    """A request with acknowledgments."""

    group: str
    member: str
    epoch: int
    renews: bool
    partitions: list[SharePartitionRequest]


class ShareResult(NamedTuple):
    """The result for one partition."""

    topic: UUID
    partition: int
    error: int = 0
    acknowledge_error: int = 0
    batches: Sequence[Bytes] = ()
    acquired: Sequence[tuple[int, int, int]] = ()
    """First offset, last offset and delivery count."""


def read_share_fetch(frame: memoryview, position: int, version: int) -> ShareFetchRequest:
    """Decode the request whose body starts at `position`."""
    return run_steps(share_fetch_steps(frame, position, version))


def share_fetch_steps(
    frame: memoryview, position: int, version: int
) -> Generator[None, None, ShareFetchRequest]:
    """Decode the request in steps."""
    cursor = FrameCursor(frame, position, flexible=True)
    group, member = cursor.string() or "", cursor.string() or ""
    epoch, max_wait_ms, min_bytes, max_bytes, max_records, _ = cursor.take(_LIMITS)
    renews = version >= 2 and bool(cursor.take(_MODE)[1])
    partitions = yield from _read_partitions(cursor)
    forgotten = []
    for _ in range(cursor.count()):
        topic = cursor.uuid()
        forgotten += [(topic, cursor.take(INT32)[0]) for _ in range(cursor.count())]
        cursor.tags()
    return ShareFetchRequest(
        group, member, epoch, max_wait_ms, min_bytes, max_bytes, max_records, renews, partitions, forgotten
    )


def read_share_acknowledge(frame: memoryview, position: int, version: int) -> ShareAcknowledgeRequest:
    """Decode the request whose body starts at `position`."""
    return run_steps(share_acknowledge_steps(frame, position, version))


def share_acknowledge_steps(
    frame: memoryview, position: int, version: int
) -> Generator[None, None, ShareAcknowledgeRequest]:
    """Decode the request in steps."""
    cursor = FrameCursor(frame, position, flexible=True)
    group, member = cursor.string() or "", cursor.string() or ""
    (epoch,) = cursor.take(INT32)
    renews = version >= 2 and bool(cursor.take(INT8)[0])
    partitions = yield from _read_partitions(cursor)
    return ShareAcknowledgeRequest(group, member, epoch, renews, partitions)


def _read_partitions(cursor: FrameCursor) -> Generator[None, None, list[SharePartitionRequest]]:
    partitions: list[SharePartitionRequest] = []
    for _ in range(cursor.count()):
        topic = cursor.uuid()
        for _ in range(cursor.count()):
            (index,) = cursor.take(INT32)
            ranges = yield from _read_ranges(cursor)
            cursor.tags()
            partitions.append(SharePartitionRequest(topic, index, ranges))
            if not len(partitions) % STEP_ITEMS:
                yield
        cursor.tags()
    return partitions


def _read_ranges(cursor: FrameCursor) -> Generator[None, None, list[AcknowledgedRange]]:
    """Decode the ranges of a partition; adjacent ranges with the same type are merged."""
    ranges: list[AcknowledgedRange] = []
    left = cursor.count()
    while left > 0:
        one = _read_range(cursor)
        left -= 1
        if left and len(one.types) == 1:
            last, merged = _merge_adjacent(cursor, one, left)
            one, left = one._replace(last=last), left - merged
        ranges.append(one)
        if not len(ranges) % STEP_ITEMS:
            yield
    return ranges


def _merge_adjacent(cursor: FrameCursor, one: AcknowledgedRange, most: int) -> tuple[int, int]:
    """Skip up to `most` ranges that continue this one; returns the last offset and their number.

    librdkafka sends a range for each record: here each takes a third of a microsecond.
    """
    frame, position, last, kind = cursor.frame, cursor.position, one.last, one.types[0]
    end = min(position + most * _SINGLE_TYPE_RANGE.size, len(frame))
    merged = 0
    while position + _SINGLE_TYPE_RANGE.size <= end:
        first, to, count, next_kind, tags = _SINGLE_TYPE_RANGE.unpack_from(frame, position)
        if first != last + 1 or to < first or count != _ONE_TYPE or next_kind != kind or tags:
            break
        last = to
        position += _SINGLE_TYPE_RANGE.size
        merged += 1
    cursor.position = position
    return last, merged


def _read_range(cursor: FrameCursor) -> AcknowledgedRange:
    first, last = cursor.take(_RANGE)
    types = tuple(cursor.view(max(cursor.count(), 0)))
    return AcknowledgedRange(first, last, types, _read_delay(cursor))


def _read_delay(cursor: FrameCursor) -> int:
    """The delay in the tagged fields of a range, or 0; other tagged fields are skipped."""
    start = cursor.position
    if cursor.frame[start : start + len(_DELAY_TAG)] != _DELAY_TAG:
        cursor.tags()
        return 0
    cursor.position += len(_DELAY_TAG)
    (delay_ms,) = cursor.take(INT64)
    return min(max(delay_ms, 0), MAX_DELAY_MS)


def pack_delay(delay_ms: int) -> bytes:
    """Encode the tagged fields of a range with a delay."""
    return _DELAY_TAG + INT64.pack(min(delay_ms, MAX_DELAY_MS)) if delay_ms > 0 else NO_TAGS


def pack_share_fetch(
    correlation_id: int, error: int, message: str | None, lock_ms: int, results: Iterable[ShareResult]
) -> list[object]:
    """Encode a ShareFetch response."""
    parts: list[Bytes] = [
        _HEAD.pack(correlation_id, 0, 0, error),
        pack_string(message, flexible=True),
        INT32.pack(lock_ms),
    ]
    topics = _by_topic(results)
    parts.append(pack_count(len(topics), flexible=True))
    for topic, partitions in topics.items():
        parts += [topic.bytes, pack_count(len(partitions), flexible=True)]
        for result in partitions:
            _pack_fetched(parts, result)
        parts.append(NO_TAGS)
    return _finish(parts)


def _pack_fetched(parts: list[Bytes], result: ShareResult) -> None:
    size = sum(map(len, result.batches))
    parts += [
        _FETCHED.pack(result.partition, result.error),
        NO_TAGS,  # no message
        _SHORT.pack(result.acknowledge_error),
        NO_TAGS,
        _LEADER.pack(-1, -1, 0),
        pack_unsigned_varint(size + 1),
        *result.batches,
        pack_count(len(result.acquired), flexible=True),
        *(_ACQUIRED.pack(*run, 0) for run in result.acquired),
        NO_TAGS,
    ]


def pack_share_acknowledge(
    version: int,
    correlation_id: int,
    error: int,
    message: str | None,
    lock_ms: int,
    results: Iterable[ShareResult],
) -> list[object]:
    """Encode a ShareAcknowledge response."""
    parts: list[Bytes] = [_HEAD.pack(correlation_id, 0, 0, error), pack_string(message, flexible=True)]
    if version >= 2:
        parts.append(INT32.pack(lock_ms))
    topics = _by_topic(results)
    parts.append(pack_count(len(topics), flexible=True))
    for topic, partitions in topics.items():
        parts += [topic.bytes, pack_count(len(partitions), flexible=True)]
        for result in partitions:
            code = result.error or result.acknowledge_error
            parts += [_FETCHED.pack(result.partition, code), NO_TAGS, _LEADER.pack(-1, -1, 0), NO_TAGS]
        parts.append(NO_TAGS)
    return _finish(parts)


def _by_topic(results: Iterable[ShareResult]) -> dict[UUID, list[ShareResult]]:
    topics: dict[UUID, list[ShareResult]] = {}
    for result in results:
        topics.setdefault(result.topic, []).append(result)
    return topics


def _finish(parts: list[Bytes]) -> list[object]:
    """The frame, without node endpoints and tagged fields; large parts are not copied."""
    parts.append(b"\x01\0")
    chunks: list[object] = []
    joined: list[Bytes] = [INT32.pack(sum(map(len, parts)))]
    for part in parts:
        if len(part) < LARGE_PART_BYTES:
            joined.append(part)
        else:
            chunks += [b"".join(joined), part]
            joined = []
    chunks.append(b"".join(joined))
    return chunks
