"""Produce (key 0): reading requests of versions 3–13 without copying their batches, and packing the answers.

Version 9 and later are flexible; version 13 names topics by id instead of by name.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from headrace.protocol.wire import Cursor, pack_count, pack_string

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSIONS: Final = (3, 13)
FLEXIBLE_FROM: Final = 9
TOPIC_IDS_FROM: Final = 13

_ACKS = struct.Struct(">hi")
_INDEX = struct.Struct(">i")
_RESULT = struct.Struct(">ihqqq")
_RESULT_WITHOUT_START = struct.Struct(">ihqq")
_THROTTLE = b"\0\0\0\0"


class TopicData(NamedTuple):
    """The batches for one topic, by partition; `records` is a view of the request's frame."""

    topic: str | UUID
    partitions: list[tuple[int, memoryview | None]]


class ProduceRequest(NamedTuple):
    """What a producer asks to be stored."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[TopicData]


class PartitionResult(NamedTuple):
    """What became of one partition's batch."""

    partition: int
    error_code: int
    base_offset: int = -1
    append_time_ms: int = -1
    start_offset: int = -1
    message: str | None = None


def read_produce(frame: memoryview, position: int, version: int) -> ProduceRequest:
    """The request whose body begins at `position`."""
    cursor = Cursor(frame, position, flexible=version >= FLEXIBLE_FROM)
    transactional_id = cursor.string()
    acks, timeout_ms = cursor.take(_ACKS)
    topics = [_read_topic(cursor, version) for _ in range(cursor.count())]
    cursor.tags()
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _read_topic(cursor: Cursor, version: int) -> TopicData:
    topic = cursor.uuid() if version >= TOPIC_IDS_FROM else (cursor.string() or "")
    partitions = []
    for _ in range(cursor.count()):
        (index,) = cursor.take(_INDEX)
        partitions.append((index, cursor.blob()))
        cursor.tags()
    cursor.tags()
    return TopicData(topic, partitions)


def pack_produce_response(
    version: int, correlation_id: int, topics: Sequence[tuple[str | UUID, Sequence[PartitionResult]]]
) -> bytes:
    """The whole answer, length prefix included."""
    flexible = version >= FLEXIBLE_FROM
    tags = b"\0" if flexible else b""
    parts = [_INDEX.pack(correlation_id), tags, pack_count(len(topics), flexible=flexible)]
    for topic, results in topics:
        parts.append(topic.bytes if isinstance(topic, UUID) else pack_string(topic, flexible=flexible))
        parts.append(pack_count(len(results), flexible=flexible))
        parts += [_pack_result(result, version, flexible=flexible) for result in results]
        parts.append(tags)
    parts += [_THROTTLE, tags]
    body = b"".join(parts)
    return _INDEX.pack(len(body)) + body


def _pack_result(result: PartitionResult, version: int, *, flexible: bool) -> bytes:
    index, error_code, base_offset, append_time_ms, start_offset, message = result
    if version < 5:
        return _RESULT_WITHOUT_START.pack(index, error_code, base_offset, append_time_ms)
    packed = _RESULT.pack(index, error_code, base_offset, append_time_ms, start_offset)
    if version < 8:
        return packed
    no_record_errors = pack_count(0, flexible=flexible)
    return packed + no_record_errors + pack_string(message, flexible=flexible) + (b"\0" if flexible else b"")
