"""Produce (API key 0), versions 3–13: decodes requests without copying batches, and encodes responses.

Version 9 adds flexible encoding, 13 topic ids.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from headrace.protocol.wire import FrameCursor, pack_count, pack_string, run_steps

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

VERSIONS: Final = (3, 13)
FLEXIBLE_FROM: Final = 9
TOPIC_IDS_FROM: Final = 13
STEP_PARTITIONS: Final = 128

_ACKS = struct.Struct(">hi")
_INDEX = struct.Struct(">i")
_RESULT = struct.Struct(">ihqqq")
_RESULT_WITHOUT_START = struct.Struct(">ihqq")
_THROTTLE = b"\0\0\0\0"


class TopicData(NamedTuple):
    """The batches for the partitions of one topic, as views of the frame."""

    topic: str | UUID
    partitions: list[tuple[int, memoryview | None]]


class ProduceRequest(NamedTuple):
    """A produce request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[TopicData]


class PartitionResult(NamedTuple):
    """The result for one partition."""

    partition: int
    error_code: int
    base_offset: int = -1
    append_time_ms: int = -1
    start_offset: int = -1
    message: str | None = None
    record_errors: Sequence[tuple[int, str]] = ()
    """Invalid records: their indexes and error messages."""


def read_produce(frame: memoryview, position: int, version: int) -> ProduceRequest:
    """Decode the request whose body starts at `position`."""
    return run_steps(produce_steps(frame, position, version))


def produce_steps(frame: memoryview, position: int, version: int) -> Generator[None, None, ProduceRequest]:
    """Decode the request in steps."""
    cursor = FrameCursor(frame, position, flexible=version >= FLEXIBLE_FROM)
    transactional_id = cursor.string()
    acks, timeout_ms = cursor.take(_ACKS)
    topics = []
    for _ in range(cursor.count()):
        topic = cursor.uuid() if version >= TOPIC_IDS_FROM else (cursor.string() or "")
        partitions: list[tuple[int, memoryview | None]] = []
        for number in range(1, cursor.count() + 1):
            (index,) = cursor.take(_INDEX)
            partitions.append((index, cursor.blob()))
            cursor.tags()
            if not number % STEP_PARTITIONS:
                yield
        cursor.tags()
        topics.append(TopicData(topic, partitions))
        if not len(topics) % STEP_PARTITIONS:
            yield
    cursor.tags()
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def pack_produce_response(
    version: int, correlation_id: int, topics: Sequence[tuple[str | UUID, Sequence[PartitionResult]]]
) -> bytes:
    """Encode the response, including its length prefix."""
    return run_steps(produce_response_steps(version, correlation_id, topics))


def produce_response_steps(
    version: int, correlation_id: int, topics: Sequence[tuple[str | UUID, Sequence[PartitionResult]]]
) -> Generator[None, None, bytes]:
    """Encode the response in steps."""
    flexible = version >= FLEXIBLE_FROM
    tags = b"\0" if flexible else b""
    parts = [_INDEX.pack(correlation_id), tags, pack_count(len(topics), flexible=flexible)]
    for topic, results in topics:
        parts.append(topic.bytes if isinstance(topic, UUID) else pack_string(topic, flexible=flexible))
        parts.append(pack_count(len(results), flexible=flexible))
        for number, result in enumerate(results, 1):
            parts.append(_pack_result(result, version, flexible=flexible))
            if not number % STEP_PARTITIONS:
                yield
        parts.append(tags)
    parts += [_THROTTLE, tags]
    body = b"".join(parts)
    return _INDEX.pack(len(body)) + body


def _pack_result(result: PartitionResult, version: int, *, flexible: bool) -> bytes:
    index, error_code, base_offset, append_time_ms, start_offset, message, record_errors = result
    if version < 5:
        return _RESULT_WITHOUT_START.pack(index, error_code, base_offset, append_time_ms)
    packed = _RESULT.pack(index, error_code, base_offset, append_time_ms, start_offset)
    if version < 8:
        return packed
    tags = b"\0" if flexible else b""
    parts = [packed, pack_count(len(record_errors), flexible=flexible)]
    for position, reason in record_errors:
        parts += (_INDEX.pack(position), pack_string(reason, flexible=flexible), tags)
    return b"".join((*parts, pack_string(message, flexible=flexible), tags))
