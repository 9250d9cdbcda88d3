"""ShareFetch (key 78) and ShareAcknowledge (key 79) in version 2, packed and read by hand.

They are asked for all the time: what a general writer takes for one would be most of the time.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from headrace.client.errors import BadResponse
from headrace.protocol.errors import ProtocolError
from headrace.protocol.share import pack_delay
from headrace.protocol.wire import INT16, INT32, Cursor, pack_count, pack_string

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

FETCH: Final = 78
ACKNOWLEDGE: Final = 79
VERSION: Final = 2

ACCEPT: Final = 1
RELEASE: Final = 2
REJECT: Final = 3
RENEW: Final = 4

_FETCH = struct.Struct(">iiiiiib?")
_ACKNOWLEDGE = struct.Struct(">i?")
_RANGE = struct.Struct(">qqBb")
_HEAD = struct.Struct(">ih")
_ACQUIRED = struct.Struct(">qqh")
_LEADER = struct.Struct(">ii")
STRICT: Final = 1

Place = tuple[UUID, int]


class Said(NamedTuple):
    """What is said of a message."""

    kind: int
    delay_ms: int = 0
    """For how long a message that is released is not delivered again; Apache Kafka passes over it."""


Acknowledged = Mapping[Place, Mapping[int, Said]]
"""What is said of messages, by partition and offset."""


class Taken(NamedTuple):
    """What one partition gave."""

    place: Place
    error: ErrorCode
    acknowledge_error: ErrorCode
    records: memoryview
    acquired: tuple[tuple[int, int, int], ...]


class Answer(NamedTuple):
    """The answer to either request."""

    error: ErrorCode
    lock_ms: int
    partitions: tuple[Taken, ...]


def pack_fetch(
    group: str,
    member: str,
    epoch: int,
    *,
    max_wait_ms: int,
    max_bytes: int,
    max_records: int,
    places: Iterable[Place],
    acknowledged: Acknowledged,
    forgotten: Sequence[Place] = (),
) -> list[bytes]:
    """The body of a ShareFetch; `places` are new to the session."""
    limits = _FETCH.pack(epoch, max_wait_ms, 1, max_bytes, max_records, max_records, STRICT, False)
    parts = [pack_string(group, flexible=True), pack_string(member, flexible=True), limits]
    _pack_places(parts, {place: {} for place in places} | dict(acknowledged))
    parts.append(pack_count(len(forgotten), flexible=True))
    for topic, index in forgotten:
        parts += [topic.bytes, b"\2", INT32.pack(index), b"\0"]
    parts.append(b"\0")
    return parts


def pack_acknowledge(group: str, member: str, epoch: int, acknowledged: Acknowledged) -> list[bytes]:
    """The body of a ShareAcknowledge."""
    renews = any(said.kind == RENEW for offsets in acknowledged.values() for said in offsets.values())
    head = _ACKNOWLEDGE.pack(epoch, renews)
    parts = [pack_string(group, flexible=True), pack_string(member, flexible=True), head]
    _pack_places(parts, acknowledged)
    parts.append(b"\0")
    return parts


def _pack_places(parts: list[bytes], acknowledged: Acknowledged) -> None:
    # A topic for each partition, which the protocol allows: most queues have one.
    parts.append(pack_count(len(acknowledged), flexible=True))
    for (topic, index), offsets in acknowledged.items():
        ranges = _ranges(offsets)
        parts += [topic.bytes, b"\2", INT32.pack(index), pack_count(len(ranges), flexible=True)]
        for first, last, said in ranges:
            parts += (_RANGE.pack(first, last, 2, said.kind), pack_delay(said.delay_ms))
        parts.append(b"\0\0")


def _ranges(offsets: Mapping[int, Said]) -> list[tuple[int, int, Said]]:
    """Messages in a row of which the same is said, as one."""
    ranges: list[tuple[int, int, Said]] = []
    for offset, said in sorted(offsets.items()):
        if ranges and ranges[-1][1] == offset - 1 and ranges[-1][2] == said:
            ranges[-1] = (ranges[-1][0], offset, said)
        else:
            ranges.append((offset, offset, said))
    return ranges


def read_fetched(frame: memoryview) -> Answer:
    """The answer in a ShareFetch response."""
    return _read(frame, _read_taken)


def read_acknowledged(frame: memoryview) -> Answer:
    """The answer in a ShareAcknowledge response."""
    return _read(frame, _read_result)


def _read(frame: memoryview, read_one: Callable[[Cursor, UUID], Taken]) -> Answer:
    cursor = Cursor(frame, INT32.size, flexible=True)
    try:
        cursor.tags()
        _throttle, error = cursor.take(_HEAD)
        cursor.string()
        (lock_ms,) = cursor.take(INT32)
        partitions: list[Taken] = []
        for _ in range(cursor.count()):
            topic = cursor.uuid()
            partitions += [read_one(cursor, topic) for _ in range(cursor.count())]
            cursor.tags()
    except ProtocolError as fault:
        raise BadResponse(f"the answer for a share group cannot be read: {fault}") from fault
    return Answer(ErrorCode(error), lock_ms, tuple(partitions))


def _read_taken(cursor: Cursor, topic: UUID) -> Taken:
    index, error = cursor.take(_HEAD)
    cursor.string()
    (acknowledge_error,) = cursor.take(INT16)
    cursor.string()
    cursor.take(_LEADER)
    cursor.tags()
    records = cursor.blob()
    acquired = []
    for _ in range(cursor.count()):
        first, last, deliveries = cursor.take(_ACQUIRED)
        cursor.tags()
        acquired.append((first, last, deliveries))
    cursor.tags()
    none = cursor.frame[:0]
    return Taken(
        (topic, index),
        ErrorCode(error),
        ErrorCode(acknowledge_error),
        none if records is None else records,
        tuple(acquired),
    )


def _read_result(cursor: Cursor, topic: UUID) -> Taken:
    index, error = cursor.take(_HEAD)
    cursor.string()
    cursor.take(_LEADER)
    cursor.tags()
    cursor.tags()
    return Taken((topic, index), ErrorCode.none, ErrorCode(error), cursor.frame[:0], ())
