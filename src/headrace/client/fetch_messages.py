"""Fetch (key 1) in version 12, packed and read by hand: records stay views of the answer.

Version 12 is the last one that names topics by name, and every Kafka since 2.7 serves it. One request is
about one partition. No session is kept: the ranges that are read are over before one would pay.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.client.errors import BadResponse
from headrace.protocol.batch import HEADER_BYTES, LENGTH_OVERHEAD, MIN_LENGTH
from headrace.protocol.errors import ProtocolError
from headrace.protocol.wire import INT32, Cursor, pack_string

if TYPE_CHECKING:
    from headrace.client.partition import TopicPartition

API_KEY: Final = 1
VERSION: Final = 12
MAX_WAIT_MS: Final = 100
"""How long the broker may hold an answer back that would be empty."""

# Replica id, longest wait, least bytes, most bytes, isolation level, session id and epoch, and one topic.
_BEGIN = struct.Struct(">iiiibiib")
# One partition: index, leader epoch, offset, last fetched epoch, log start, most bytes, no tags.
_PARTITION = struct.Struct(">biiqiqib")
# No tags of the topic, no forgotten topics, no rack, no tags.
_END: Final = b"\0\1\1\0"
_ANSWER = struct.Struct(">ihi")
_PARTITION_ANSWER = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_PLACE = struct.Struct(">qi")
_OFFSETS = struct.Struct(">q15xi")


class Answer(NamedTuple):
    """What a broker answered about the one partition that it was asked for."""

    throttle_ms: int
    code: ErrorCode
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    records: memoryview


def pack_fetch(partition: TopicPartition, offset: int, *, max_bytes: int, read_committed: bool) -> bytes:
    """The body of a request for what follows `offset`: as many batches as fit, and at least one."""
    return b"".join(
        (
            _BEGIN.pack(-1, MAX_WAIT_MS, 1, max_bytes, read_committed, 0, -1, 2),
            pack_string(partition.topic, flexible=True),
            _PARTITION.pack(2, partition.partition, -1, offset, -1, -1, max_bytes, 0),
            _END,
        )
    )


def read_answer(frame: memoryview) -> Answer:
    """The answer in a Fetch response that is about one partition."""
    try:
        return _read_answer(frame)
    except ProtocolError as fault:
        raise BadResponse(f"the answer to a Fetch cannot be read: {fault}") from fault


def _read_answer(frame: memoryview) -> Answer:
    cursor = Cursor(frame, INT32.size, flexible=True)
    cursor.tags()
    throttle_ms, code, _session = cursor.take(_ANSWER)
    if code or cursor.count() != 1:
        return Answer(throttle_ms, ErrorCode(code or -1), -1, -1, -1, (), frame[:0])
    cursor.string()
    if cursor.count() != 1:
        raise ProtocolError("it is about another number of partitions than one")
    _index, code, high, stable, start = cursor.take(_PARTITION_ANSWER)
    aborted = tuple(_read_aborted(cursor) for _ in range(cursor.count()))
    cursor.take(INT32)
    records = cursor.blob()
    return Answer(
        throttle_ms, ErrorCode(code), high, stable, start, aborted, frame[:0] if records is None else records
    )


def _read_aborted(cursor: Cursor) -> tuple[int, int]:
    producer_id, first_offset = cursor.take(_ABORTED)
    cursor.tags()
    return producer_id, first_offset


def measure_batches(records: memoryview, end: int) -> tuple[int, int]:
    """The bytes of the whole batches that begin before `end`, and the offset that follows them.

    A broker cuts its answer where the limit falls, so the last batch may be torn. Without any batch the
    offset is −1. A batch that begins at or after `end` shows that nothing before `end` is left to come.
    """
    position, last, reached = 0, -1, -1
    readable = len(records) - HEADER_BYTES
    place = _PLACE.unpack_from
    # There may be a batch for every record, and this loop sees them all: as little as can be in it.
    while position <= readable:
        base_offset, length = place(records, position)
        if base_offset >= end:
            reached = end
            break
        if length < MIN_LENGTH:
            raise BadResponse(f"a record batch of {length} bytes at offset {base_offset}")
        following = position + length + LENGTH_OVERHEAD
        if following > len(records):
            break
        last, position = position, following
    return position, max(reached, _offset_after(records, last))


def _offset_after(records: memoryview, position: int) -> int:
    if position < 0:
        return -1
    base_offset, last_offset_delta = _OFFSETS.unpack_from(records, position)
    return int(base_offset + last_offset_delta + 1)
