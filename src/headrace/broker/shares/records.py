"""The records of `__share_group_state`: groups, their settings, and the state of share partitions.

Every key begins with its type. A share partition has a record for its start offset, and one for each chunk of
later offsets that have a state to store. Each record contains the complete state of its key, so that
compaction can keep the latest alone.
"""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from headrace.broker.record_fields import FieldReader, FieldWriter
from headrace.broker.shares.progress import ArchiveReason, StoredRange, StoredState
from headrace.broker.shares.settings import ShareGroupConfig
from headrace.broker.state_log import StateRecord, UnknownRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.broker.shares.partitions import SharePartition
    from headrace.broker.state_log import StateLog

GROUP: Final = 1
CONFIG: Final = 2
START_OFFSET: Final = 3
CHUNK: Final = 4

_START_OFFSET: Final = struct.Struct(">hq")
_RANGE: Final = struct.Struct(">qqbhbq")
_VERSION: Final = 0


class SharePartitionKey(NamedTuple):
    """A share group and a partition."""

    group: str
    topic: UUID
    partition: int


class StoredKey(NamedTuple):
    """The decoded key of a record."""

    kind: int
    group: str
    share_partition: SharePartitionKey | None = None
    chunk: int = -1


def write_group_key(group: str, kind: int = GROUP) -> bytes:
    """The key of a group, or of its settings."""
    return FieldWriter().i16(kind).string(group).done()


@lru_cache(maxsize=4096)
def write_start_offset_key(key: SharePartitionKey) -> bytes:
    """The key of the start offset of a share partition."""
    return _write_key(START_OFFSET, key).done()


def write_chunk_key(key: SharePartitionKey, chunk: int) -> bytes:
    """The key of a chunk of a share partition."""
    return _write_key(CHUNK, key).i64(chunk).done()


def _write_key(kind: int, key: SharePartitionKey) -> FieldWriter:
    return FieldWriter().i16(kind).string(key.group).blob(key.topic.bytes).i32(key.partition)


def read_key(data: bytes) -> StoredKey:
    """Decode a key."""
    reader = FieldReader(data)
    kind, group = reader.i16(), reader.string()
    if kind not in (GROUP, CONFIG, START_OFFSET, CHUNK):
        raise _unknown(f"a key of type {kind}")
    if kind in (GROUP, CONFIG):
        return StoredKey(kind, group)
    key = SharePartitionKey(group, UUID(bytes=reader.blob()), reader.i32())
    return StoredKey(kind, group, key, reader.i64() if kind == CHUNK else -1)


def write_config(configs: Mapping[str, str]) -> bytes:
    """Encode the settings of a group."""
    return json.dumps(dict(configs)).encode()


def read_config(data: bytes) -> dict[str, str]:
    """Decode the settings of a group."""
    configs: dict[str, str] = json.loads(data)
    return configs


def write_start_offset(offset: int) -> bytes:
    """Encode the start offset of a share partition."""
    return _START_OFFSET.pack(_VERSION, offset)


def read_start_offset(data: bytes) -> int:
    """Decode the start offset of a share partition."""
    version, offset = _START_OFFSET.unpack(data)
    if version != _VERSION:
        raise _unknown(f"a start offset of version {version}")
    return int(offset)


def _unknown(what: str) -> UnknownRecord:
    return UnknownRecord(
        f"__share_group_state holds {what}, which a newer broker wrote: start that version on this folder"
    )


def write_ranges(ranges: Iterable[StoredRange]) -> bytes:
    """Encode the stored states of a chunk."""
    return b"".join(_RANGE.pack(*each) for each in ranges)


def read_ranges(data: bytes) -> list[StoredRange]:
    """Decode the stored states of a chunk."""
    return [
        StoredRange(first, last, StoredState(state), deliveries, ArchiveReason(reason), position)
        for first, last, state, deliveries, reason, position in _RANGE.iter_unpack(data)
    ]


KeyValue = tuple[bytes, bytes | None]


class StoredShareState(NamedTuple):
    """The complete stored state of all share groups."""

    groups: set[str]
    configs: dict[str, ShareGroupConfig]
    start_offsets: dict[SharePartitionKey, int]
    chunks: dict[SharePartitionKey, dict[int, list[StoredRange]]]


class ShareStateLog:
    """Writes and reads the state of share groups in the state log."""

    def __init__(self, state: StateLog) -> None:
        self._state = state

    async def durable(self) -> None:
        """Return when all that was stored is as durable as the flush setting promises."""
        await self._state.durable()

    def load(self) -> StoredShareState:
        """The latest state."""
        latest = {entry.key: entry.value for entry in self._state.replay() if isinstance(entry, StateRecord)}
        stored = StoredShareState(set(), {}, {}, {})
        for data, value in latest.items():
            if value is None:
                continue
            key = read_key(data)
            if key.kind == GROUP:
                stored.groups.add(key.group)
            elif key.kind == CONFIG:
                stored.configs[key.group] = ShareGroupConfig.parse(read_config(value))
            elif key.share_partition is not None and key.kind == START_OFFSET:
                stored.start_offsets[key.share_partition] = read_start_offset(value)
            elif key.share_partition is not None:
                chunks = stored.chunks.setdefault(key.share_partition, {})
                chunks[key.chunk] = read_ranges(value)
        return stored

    def save(self, share_partitions: Iterable[SharePartition]) -> bool:
        """Store the changes of share partitions; False if there are none."""
        taken = [(each, *each.state.progress.take_changes()) for each in share_partitions]
        pairs = [pair for each, start, chunks in taken for pair in _changes(each.key, start, chunks)]
        try:
            self._append(pairs)
        except BaseException:
            for each, _, chunks in taken:
                each.state.progress.chunks.undo_take(chunks)
            raise
        return bool(pairs)

    def save_group(self, group: str) -> None:
        """Store a group."""
        self._append([(write_group_key(group), b"{}")])

    def save_config(self, group: str, configs: Mapping[str, str]) -> None:
        """Store the settings of a group."""
        value = write_config(configs) if configs else None
        self._append([(write_group_key(group, CONFIG), value)])

    def delete_group(self, group: str) -> None:
        """Delete a group; its settings remain, as in Apache Kafka."""
        self._append([(write_group_key(group), None)])

    def delete(self, keys: Mapping[SharePartitionKey, Iterable[int]]) -> None:
        """Delete share partitions with their chunks."""
        self._append([pair for key, chunks in keys.items() for pair in _tombstones(key, chunks)])

    def _append(self, pairs: Sequence[KeyValue]) -> None:
        if pairs:
            self._state.append(pairs)


def _changes(
    key: SharePartitionKey, start_offset: int | None, chunks: Mapping[int, Sequence[StoredRange]]
) -> Iterable[KeyValue]:
    if start_offset is not None:
        yield write_start_offset_key(key), write_start_offset(start_offset)
    for chunk, ranges in chunks.items():
        yield write_chunk_key(key, chunk), write_ranges(ranges) if ranges else None


def _tombstones(key: SharePartitionKey, chunks: Iterable[int]) -> Iterable[KeyValue]:
    yield write_start_offset_key(key), None
    for chunk in chunks:
        yield write_chunk_key(key, chunk), None
