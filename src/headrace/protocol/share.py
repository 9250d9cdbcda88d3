"""ShareFetch (key 78) and ShareAcknowledge (key 79), versions 1–2: how members of share groups take records.

Both carry acknowledgements, and both are asked for all the time: they are read and packed by hand. Version 2
adds the renewal of locks, and a strict limit of records. A release may carry a delay, as a tagged field.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.protocol.steps import run_steps
from headrace.protocol.wire import INT8, INT32, INT64, Cursor, pack_count, pack_string, pack_unsigned_varint

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from uuid import UUID

VERSIONS: Final = (1, 2)

_LIMITS = struct.Struct(">iiiiii")
_MODE = struct.Struct(">b?")
_RANGE = struct.Struct(">qq")
_NEIGHBOUR = struct.Struct(">qqBBB")
"""A whole range with one type: first and last offset, the compact length of the types, the type, no tags."""
_ONE_TYPE: Final = 2
_FETCHED = struct.Struct(">ih")
_LEADER = struct.Struct(">iib")
_ACQUIRED = struct.Struct(">qqhb")
_SHORT = struct.Struct(">h")
_HEAD = struct.Struct(">ibih")
NO_TAGS: Final = b"\0"

_DELAY_TAG: Final = pack_unsigned_varint(1) + pack_unsigned_varint(20_000) + pack_unsigned_varint(INT64.size)
"""One tagged field of a range of acknowledgements, with a number that Apache Kafka does not use: the delay of
a release, as an int64 of milliseconds. Brokers that do not know a tagged field pass over it."""
STEP_ITEMS: Final = 128
"""Partitions, or ranges of a partition, that are read in one step."""
MAX_DELAY_MS: Final = 366 * 24 * 3600 * 1000


class AcknowledgeType(IntEnum):
    """How a member acknowledges a record, with Kafka's numbers."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AcknowledgedRange(NamedTuple):
    """What a member says of records in a row; one word for all of them, or one for each."""

    first: int
    last: int
    types: tuple[int, ...]
    delay_ms: int = 0
    """For how long records that are released are not delivered again."""


class SharePartitionRequest(NamedTuple):
    """One partition, and what is acknowledged of it."""

    topic: UUID
    partition: int
    acknowledged: list[AcknowledgedRange]


class ShareFetchRequest(NamedTuple):
    """What a member asks for, and what it is done with."""

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
    """What a member is done with."""

    group: str
    member: str
    epoch: int
    renews: bool
    partitions: list[SharePartitionRequest]


class ShareResult(NamedTuple):
    """The answer for one partition."""

    topic: UUID
    partition: int
    error: int = 0
    acknowledge_error: int = 0
    batches: Sequence[bytes] = ()
    acquired: Sequence[tuple[int, int, int]] = ()
    """First and last offset, and how often they have been delivered."""


def read_share_fetch(frame: memoryview, position: int, version: int) -> ShareFetchRequest:
    """The request whose body begins at `position`."""
    return run_steps(share_fetch_steps(frame, position, version))


def share_fetch_steps(
    frame: memoryview, position: int, version: int
) -> Generator[None, None, ShareFetchRequest]:
    """The same request; yields where many partitions or ranges have been read."""
    cursor = Cursor(frame, position, flexible=True)
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
    """The request whose body begins at `position`."""
    return run_steps(share_acknowledge_steps(frame, position, version))


def share_acknowledge_steps(
    frame: memoryview, position: int, version: int
) -> Generator[None, None, ShareAcknowledgeRequest]:
    """The same request; yields where many partitions or ranges have been read."""
    cursor = Cursor(frame, position, flexible=True)
    group, member = cursor.string() or "", cursor.string() or ""
    (epoch,) = cursor.take(INT32)
    renews = version >= 2 and bool(cursor.take(INT8)[0])
    partitions = yield from _read_partitions(cursor)
    return ShareAcknowledgeRequest(group, member, epoch, renews, partitions)


def _read_partitions(cursor: Cursor) -> Generator[None, None, list[SharePartitionRequest]]:
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


def _read_ranges(cursor: Cursor) -> Generator[None, None, list[AcknowledgedRange]]:
    """What is said of a partition's records; neighbours of which the same is said are one range."""
    ranges: list[AcknowledgedRange] = []
    left = cursor.count()
    while left > 0:
        one = _read_range(cursor)
        left -= 1
        if left and len(one.types) == 1:
            last, joined = _join_neighbours(cursor, one, left)
            one, left = one._replace(last=last), left - joined
        ranges.append(one)
        if not len(ranges) % STEP_ITEMS:
            yield
    return ranges


def _join_neighbours(cursor: Cursor, one: AcknowledgedRange, most: int) -> tuple[int, int]:
    """Where the row of ranges that continue this one ends, and how many they are; they have been read then.

    librdkafka sends a range for each record, hundreds in a row: here each costs a third of a microsecond,
    and no object.
    """
    frame, position, last, kind = cursor.frame, cursor.position, one.last, one.types[0]
    end = min(position + most * _NEIGHBOUR.size, len(frame))
    joined = 0
    while position + _NEIGHBOUR.size <= end:
        first, to, count, said, tags = _NEIGHBOUR.unpack_from(frame, position)
        if first != last + 1 or to < first or count != _ONE_TYPE or said != kind or tags:
            break
        last = to
        position += _NEIGHBOUR.size
        joined += 1
    cursor.position = position
    return last, joined


def _read_range(cursor: Cursor) -> AcknowledgedRange:
    first, last = cursor.take(_RANGE)
    types = tuple(cursor.view(max(cursor.count(), 0)))
    return AcknowledgedRange(first, last, types, _read_delay(cursor))


def _read_delay(cursor: Cursor) -> int:
    """The delay in the tagged fields of a range, or 0; other fields are passed over."""
    start = cursor.position
    if cursor.frame[start : start + len(_DELAY_TAG)] != _DELAY_TAG:
        cursor.tags()
        return 0
    cursor.position += len(_DELAY_TAG)
    (delay_ms,) = cursor.take(INT64)
    return min(max(delay_ms, 0), MAX_DELAY_MS)


def pack_delay(delay_ms: int) -> bytes:
    """The tagged fields of a range of records that are not to be delivered again for so long."""
    return _DELAY_TAG + INT64.pack(min(delay_ms, MAX_DELAY_MS)) if delay_ms > 0 else NO_TAGS


def pack_share_fetch(
    correlation_id: int, error: int, message: str | None, lock_ms: int, results: Iterable[ShareResult]
) -> list[object]:
    """The whole answer to a ShareFetch, records included."""
    parts = [
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


def _pack_fetched(parts: list[bytes], result: ShareResult) -> None:
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
    """The whole answer to a ShareAcknowledge."""
    parts = [_HEAD.pack(correlation_id, 0, 0, error), pack_string(message, flexible=True)]
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


def _finish(parts: list[bytes]) -> list[object]:
    """The frame: no endpoints of other leaders, no tags."""
    parts.append(b"\x01\0")
    body = b"".join(parts)
    return [INT32.pack(len(body)) + body]
