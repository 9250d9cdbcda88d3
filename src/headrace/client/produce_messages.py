"""Produce (key 0) in version 9, packed by hand: batches go out from where they are, without a copy.

Version 9 names topics by name, and every Kafka since 2.8 serves it. From version 12 on a transactional write
adds its partition to the transaction by itself, which many writers at once do slowly: they add them before. A
single writer saves a request by it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.client.errors import BadResponse
from headrace.client.partition import TopicPartition, by_topic
from headrace.protocol.errors import ProtocolError
from headrace.protocol.wire import INT32, Cursor, pack_count, pack_string, pack_unsigned_varint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.protocol.compression import Bytes

API_KEY: Final = 0
VERSION: Final = 9
ADDING_VERSION: Final = 12
"""The same on the wire; a transactional write adds its partition."""

_ACKS = struct.Struct(">hi")
_RESULT = struct.Struct(">ihqqq")
_NO_TAGS: Final = b"\0"


class Stored(NamedTuple):
    """What became of the batch of one partition."""

    partition: TopicPartition
    code: ErrorCode
    base_offset: int
    message: str | None


def pack_produce(
    batches: Mapping[TopicPartition, Bytes], *, transactional_id: str | None, acks: int, timeout_ms: int
) -> list[Bytes]:
    """The parts of a request's body; the batches among them are those that were given."""
    topics = by_topic(batches.items())
    begin = pack_string(transactional_id, flexible=True) + _ACKS.pack(acks, timeout_ms)
    parts: list[Bytes] = [begin + pack_count(len(topics), flexible=True)]
    for topic, partitions in topics.items():
        parts.append(pack_string(topic, flexible=True) + pack_count(len(partitions), flexible=True))
        for index, batch in partitions:
            parts += [INT32.pack(index) + pack_unsigned_varint(len(batch) + 1), batch, _NO_TAGS]
        parts.append(_NO_TAGS)
    parts.append(_NO_TAGS)
    return parts


def read_stored(frame: memoryview) -> list[Stored]:
    """What a Produce response says about each partition."""
    cursor = Cursor(frame, INT32.size, flexible=True)
    try:
        cursor.tags()
        return [stored for _ in range(cursor.count()) for stored in _read_topic(cursor)]
    except ProtocolError as fault:
        raise BadResponse(f"the answer to a Produce cannot be read: {fault}") from fault


def _read_topic(cursor: Cursor) -> Iterator[Stored]:
    topic = cursor.string() or ""
    for _ in range(cursor.count()):
        index, code, base_offset, _append_time, _start = cursor.take(_RESULT)
        for _ in range(cursor.count()):
            cursor.take(INT32)
            cursor.string()
            cursor.tags()
        message = cursor.string()
        cursor.tags()
        yield Stored(TopicPartition(topic, index), ErrorCode(code), base_offset, message)
    cursor.tags()
