"""ShareFetch (key 78) and ShareAcknowledge (key 79) in version 2, encoded and decoded by hand for speed."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from headrace.client.errors import BadResponse
from headrace.protocol.errors import ProtocolError
from headrace.protocol.share import AcknowledgeType, pack_delay
from headrace.protocol.wire import INT16, INT32, Cursor, pack_count, pack_string

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

FETCH: Final = 78
ACKNOWLEDGE: Final = 79
VERSION: Final = 2

_FETCH = struct.Struct(">iiiiiib?")
_ACKNOWLEDGE = struct.Struct(">i?")
_RANGE = struct.Struct(">qqBb")
_HEAD = struct.Struct(">ih")
_ACQUIRED = struct.Struct(">qqh")
_LEADER = struct.Struct(">ii")
STRICT: Final = 1

TopicIdPartition = tuple[UUID, int]


class Acknowledgment(NamedTuple):
    """The acknowledgment of a message."""

    kind: int
    delay_ms: int = 0
    """The delay before a released message is delivered again; Apache Kafka ignores it."""


Acknowledgments = Mapping[TopicIdPartition, Mapping[int, Acknowledgment]]
"""Acknowledgments by partition and offset."""


class SharePartitionResponse(NamedTuple):
    """The response for one partition."""

    partition: TopicIdPartition
    error: ErrorCode
    acknowledge_error: ErrorCode
    records: memoryview
    acquired: tuple[tuple[int, int, int], ...]


class ShareResponse(NamedTuple):
    """The response to ShareFetch or ShareAcknowledge."""

    error: ErrorCode
    lock_ms: int
    partitions: tuple[SharePartitionResponse, ...]


def pack_fetch(
    group: str,
    member: str,
    epoch: int,
    *,
    max_wait_ms: int,
    max_bytes: int,
    max_records: int,
    partitions: Iterable[TopicIdPartition],
    acknowledged: Acknowledgments,
    forgotten: Sequence[TopicIdPartition] = (),
) -> list[bytes]:
    """The body of a ShareFetch; `partitions` are new to the session."""
    limits = _FETCH.pack(epoch, max_wait_ms, 1, max_bytes, max_records, max_records, STRICT, False)
    parts = [pack_string(group, flexible=True), pack_string(member, flexible=True), limits]
    _pack_partitions(parts, {partition: {} for partition in partitions} | dict(acknowledged))
    parts.append(pack_count(len(forgotten), flexible=True))
    for topic, index in forgotten:
        parts += [topic.bytes, b"\2", INT32.pack(index), b"\0"]
    parts.append(b"\0")
    return parts


def pack_acknowledge(group: str, member: str, epoch: int, acknowledged: Acknowledgments) -> list[bytes]:
    """The body of a ShareAcknowledge."""
    renews = any(
        each.kind == AcknowledgeType.RENEW for offsets in acknowledged.values() for each in offsets.values()
    )
    head = _ACKNOWLEDGE.pack(epoch, renews)
    parts = [pack_string(group, flexible=True), pack_string(member, flexible=True), head]
    _pack_partitions(parts, acknowledged)
    parts.append(b"\0")
    return parts


def _pack_partitions(parts: list[bytes], acknowledged: Acknowledgments) -> None:
    # One topic entry per partition, which the protocol allows: most queues have one partition.
    parts.append(pack_count(len(acknowledged), flexible=True))
    for (topic, index), offsets in acknowledged.items():
        ranges = _ranges(offsets)
        parts += [topic.bytes, b"\2", INT32.pack(index), pack_count(len(ranges), flexible=True)]
        for first, last, acknowledgment in ranges:
            parts += (_RANGE.pack(first, last, 2, acknowledgment.kind), pack_delay(acknowledgment.delay_ms))
        parts.append(b"\0\0")


def _ranges(offsets: Mapping[int, Acknowledgment]) -> list[tuple[int, int, Acknowledgment]]:
    """Consecutive messages with the same acknowledgment as one range."""
    ranges: list[tuple[int, int, Acknowledgment]] = []
    for offset, acknowledgment in sorted(offsets.items()):
        if ranges and ranges[-1][1] == offset - 1 and ranges[-1][2] == acknowledgment:
            ranges[-1] = (ranges[-1][0], offset, acknowledgment)
        else:
            ranges.append((offset, offset, acknowledgment))
    return ranges


def read_fetched(frame: memoryview) -> ShareResponse:
    """Decode a ShareFetch response."""
    return _read(frame, _read_fetched_partition)


def read_acknowledged(frame: memoryview) -> ShareResponse:
    """Decode a ShareAcknowledge response."""
    return _read(frame, _read_acknowledged_partition)


def _read(frame: memoryview, read_one: Callable[[Cursor, UUID], SharePartitionResponse]) -> ShareResponse:
    cursor = Cursor(frame, INT32.size, flexible=True)
    try:
        cursor.tags()
        _throttle, error = cursor.take(_HEAD)
        cursor.string()
        (lock_ms,) = cursor.take(INT32)
        partitions: list[SharePartitionResponse] = []
        for _ in range(cursor.count()):
            topic = cursor.uuid()
            partitions += [read_one(cursor, topic) for _ in range(cursor.count())]
            cursor.tags()
    except ProtocolError as fault:
        raise BadResponse(f"the response for a share group cannot be decoded: {fault}") from fault
    return ShareResponse(ErrorCode(error), lock_ms, tuple(partitions))


def _read_fetched_partition(cursor: Cursor, topic: UUID) -> SharePartitionResponse:
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
    return SharePartitionResponse(
        (topic, index),
        ErrorCode(error),
        ErrorCode(acknowledge_error),
        none if records is None else records,
        tuple(acquired),
    )


def _read_acknowledged_partition(cursor: Cursor, topic: UUID) -> SharePartitionResponse:
    index, error = cursor.take(_HEAD)
    cursor.string()
    cursor.take(_LEADER)
    cursor.tags()
    cursor.tags()
    return SharePartitionResponse((topic, index), ErrorCode.none, ErrorCode(error), cursor.frame[:0], ())
