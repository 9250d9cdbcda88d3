"""ShareFetch (key 78) and ShareAcknowledge (key 79) in version 2, packed and read by hand.

They are asked for each message or two: what a general writer takes for one would be most of the time.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from headrace.client.errors import BadResponse
from headrace.protocol.errors import ProtocolError
from headrace.protocol.wire import INT16, INT32, Cursor, pack_count, pack_string

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

FETCH: Final = 78
ACKNOWLEDGE: Final = 79
VERSION: Final = 2

ACCEPT: Final = 1
RELEASE: Final = 2
REJECT: Final = 3
RENEW: Final = 4

_FETCH = struct.Struct(">iiiiiib?")
_ACKNOWLEDGE = struct.Struct(">i?")
_RANGE = struct.Struct(">qqBbB")
_HEAD = struct.Struct(">ih")
_ACQUIRED = struct.Struct(">qqh")
_LEADER = struct.Struct(">ii")
STRICT: Final = 1

Place = tuple[UUID, int]


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
    acknowledged: Mapping[Place, Mapping[int, int]],
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


def pack_acknowledge(
    group: str, member: str, epoch: int, acknowledged: Mapping[Place, Mapping[int, int]]
) -> list[bytes]:
    """The body of a ShareAcknowledge."""
    renews = any(kind == RENEW for offsets in acknowledged.values() for kind in offsets.values())
    head = _ACKNOWLEDGE.pack(epoch, renews)
    parts = [pack_string(group, flexible=True), pack_string(member, flexible=True), head]
    _pack_places(parts, acknowledged)
    parts.append(b"\0")
    return parts


def _pack_places(parts: list[bytes], acknowledged: Mapping[Place, Mapping[int, int]]) -> None:
    # A topic for each partition, which the protocol allows: most queues have one.
    parts.append(pack_count(len(acknowledged), flexible=True))
    for (topic, index), offsets in acknowledged.items():
        parts += [topic.bytes, b"\2", INT32.pack(index), pack_count(len(offsets), flexible=True)]
        parts += [_RANGE.pack(offset, offset, 2, kind, 0) for offset, kind in sorted(offsets.items())]
        parts.append(b"\0\0")


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
