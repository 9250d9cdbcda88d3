"""Fetch (API key 1), versions 4–18: decodes requests, and encodes responses around payloads in files.

Version 7 adds fetch sessions, 12 flexible encoding, 13 topic ids; 15 has the replica id in a tagged field.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from headrace.protocol.wire import FrameCursor, pack_count, pack_string, pack_unsigned_varint, run_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

VERSIONS: Final = (4, 18)
FLEXIBLE_FROM: Final = 12
TOPIC_IDS_FROM: Final = 13
SESSIONS_FROM: Final = 7
STEP_PARTITIONS: Final = 128

_INT32 = struct.Struct(">i")
_LIMITS = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")
_ABORTED = struct.Struct(">qq")


class PartitionFetch(NamedTuple):
    """The offset and size of a fetch from one partition."""

    partition: int
    leader_epoch: int
    offset: int
    max_bytes: int


class TopicFetch(NamedTuple):
    """The partitions of one topic."""

    topic: str | UUID
    partitions: list[PartitionFetch]


class FetchRequest(NamedTuple):
    """A fetch request."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool
    session_id: int
    session_epoch: int
    topics: list[TopicFetch]
    forgotten: list[tuple[str | UUID, list[int]]]


class PartitionData(NamedTuple):
    """The response for one partition, without its records."""

    partition: int
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    records_bytes: int = 0


def _partition_layout(version: int) -> tuple[struct.Struct, Callable[[tuple[int, ...]], PartitionFetch]]:
    """The layout of a partition in this version, and a function that selects its fields."""
    epoch = "i" if version >= 9 else ""
    last_epoch = "i" if version >= 12 else ""
    start = "q" if version >= 5 else ""
    layout = struct.Struct(f">i{epoch}q{last_epoch}{start}i")
    if epoch:
        return layout, lambda f: PartitionFetch(f[0], f[1], f[2], f[-1])
    return layout, lambda f: PartitionFetch(f[0], -1, f[1], f[-1])


_PARTITION_LAYOUTS = {version: _partition_layout(version) for version in range(VERSIONS[0], VERSIONS[1] + 1)}


def read_fetch(frame: memoryview, position: int, version: int) -> FetchRequest:
    """Decode the request whose body starts at `position`."""
    return run_steps(fetch_steps(frame, position, version))


def fetch_steps(frame: memoryview, position: int, version: int) -> Generator[None, None, FetchRequest]:
    """Decode the request in steps."""
    cursor = FrameCursor(frame, position, flexible=version >= FLEXIBLE_FROM)
    if version < 15:
        cursor.take(_INT32)
    max_wait_ms, min_bytes, max_bytes, isolation = cursor.take(_LIMITS)
    session_id, session_epoch = cursor.take(_SESSION) if version >= SESSIONS_FROM else (0, -1)
    topics, forgotten = [], []
    for number in range(1, cursor.count() + 1):
        topics.append((yield from _topic_steps(cursor, version)))
        if not number % STEP_PARTITIONS:
            yield
    if version >= SESSIONS_FROM:
        for number in range(1, cursor.count() + 1):
            forgotten.append(_read_forgotten(cursor, version))
            if not number % STEP_PARTITIONS:
                yield
    return FetchRequest(
        max_wait_ms, min_bytes, max_bytes, isolation == 1, session_id, session_epoch, topics, forgotten
    )


def _read_name(cursor: FrameCursor, version: int) -> str | UUID:
    return cursor.uuid() if version >= TOPIC_IDS_FROM else (cursor.string() or "")


def _topic_steps(cursor: FrameCursor, version: int) -> Generator[None, None, TopicFetch]:
    topic = _read_name(cursor, version)
    layout, pick = _PARTITION_LAYOUTS[version]
    partitions = []
    for number in range(1, cursor.count() + 1):
        partitions.append(pick(cursor.take(layout)))
        cursor.tags()
        if not number % STEP_PARTITIONS:
            yield
    cursor.tags()
    return TopicFetch(topic, partitions)


def _read_forgotten(cursor: FrameCursor, version: int) -> tuple[str | UUID, list[int]]:
    topic = _read_name(cursor, version)
    indexes = [cursor.take(_INT32)[0] for _ in range(cursor.count())]
    cursor.tags()
    return topic, indexes


class FetchResponse:
    """Encodes a response as a list of bytes and payloads."""

    def __init__(self, version: int, correlation_id: int) -> None:
        self.version = version
        self.flexible = version >= FLEXIBLE_FROM
        self._correlation_id = correlation_id
        self._tags = b"\0" if self.flexible else b""
        self._parts: list[bytes] = []
        self._chunks: list[object] = []
        self._payload_bytes = 0
        self._layout = struct.Struct(">ihqqq" if version >= 5 else ">ihqq")

    def begin(self, error_code: int, session_id: int, topics: int) -> None:
        """Add the fields before the topics."""
        self._parts += [_INT32.pack(self._correlation_id), self._tags, b"\0\0\0\0"]
        if self.version >= SESSIONS_FROM:
            self._parts.append(struct.pack(">hi", error_code, session_id))
        self._parts.append(pack_count(topics, flexible=self.flexible))

    def begin_topic(self, topic: str | UUID, partitions: int) -> None:
        """Add the fields before the partitions of a topic."""
        named = topic.bytes if isinstance(topic, UUID) else pack_string(topic, flexible=self.flexible)
        self._parts += [named, pack_count(partitions, flexible=self.flexible)]

    def add_partition(self, data: PartitionData, payload: object | None) -> None:
        """Add the response for a partition, with the payload of its records."""
        index, error_code, high, stable, start, aborted, size = data
        fields = (index, error_code, high, stable, start)
        self._parts.append(self._layout.pack(*fields[: 5 if self.version >= 5 else 4]))
        self._pack_aborted(aborted)
        if self.version >= 11:
            self._parts.append(b"\xff\xff\xff\xff")
        self._parts.append(pack_unsigned_varint(size + 1) if self.flexible else _INT32.pack(size))
        if payload is not None and size:
            self._chunks += [b"".join(self._parts), payload]
            self._parts.clear()
            self._payload_bytes += size
        self._parts.append(self._tags)

    def _pack_aborted(self, aborted: Sequence[tuple[int, int]] | None) -> None:
        self._parts.append(pack_count(-1 if aborted is None else len(aborted), flexible=self.flexible))
        for entry in aborted or ():
            self._parts += [_ABORTED.pack(*entry), self._tags]

    def end_topic(self) -> None:
        """Add the fields after the partitions of a topic."""
        self._parts.append(self._tags)

    def finish(self) -> list[object]:
        """The response: bytes and payloads in the order of the frame."""
        self._parts.append(self._tags)
        self._chunks.append(b"".join(self._parts))
        size = sum(len(chunk) for chunk in self._chunks if isinstance(chunk, bytes)) + self._payload_bytes
        first = self._chunks[0]
        assert isinstance(first, bytes)
        self._chunks[0] = _INT32.pack(size) + first
        return self._chunks
