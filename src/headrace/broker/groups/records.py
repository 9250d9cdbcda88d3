"""The records of `__consumer_offsets` in Apache Kafka's formats, which its tools can read.

Every key and value begins with an int16 version. Written are the newest versions without tagged fields:
OffsetCommitKey 1, OffsetCommitValue 3 (1 if the client set an expiry time), GroupMetadataKey 2,
GroupMetadataValue 3. Older versions, and version 4 with its compact types, are read as well.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.broker.record_fields import FieldReader, FieldWriter
from headrace.broker.state_log import UnknownRecord

OFFSET_KEY: Final = 1
"""Keys of versions 0 and 1 are those of offsets."""
GROUP_KEY: Final = 2
"""Keys of version 2 are those of classic groups."""
NO_TIME: Final = -1

# Offsets are written with every commit and all are read at startup. Packing their usual versions as a whole
# takes about half the time of encoding field by field.
_KEY_HEAD: Final = struct.Struct(">hh")
_OFFSET_HEAD: Final = struct.Struct(">hqih")
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_I64: Final = struct.Struct(">q")
_GROUP_PREFIX: Final = _I16.pack(GROUP_KEY)
_OFFSET_PREFIX: Final = _I16.pack(3)


class OffsetKey(NamedTuple):
    """A group and a partition."""

    group_id: str
    topic: str
    partition: int


class CommittedOffset(NamedTuple):
    """The offset of the next record that a group reads in a partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_at_ms: int = 0
    expires_at_ms: int = NO_TIME
    """Set only by old clients that send a retention time with each commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMember:
    """A member in the record of its group, with the metadata of the elected protocol only."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGroup:
    """The record of a group."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    since_ms: int
    members: tuple[StoredMember, ...]


def write_offset_key(key: OffsetKey) -> bytes:
    """The key of an offset."""
    group_id, topic = key.group_id.encode(), key.topic.encode()
    head = _KEY_HEAD.pack(OFFSET_KEY, len(group_id))
    return head + group_id + _I16.pack(len(topic)) + topic + _I32.pack(key.partition)


def write_group_key(group_id: str) -> bytes:
    """The key of a group."""
    return FieldWriter().i16(GROUP_KEY).string(group_id).done()


def read_key(data: bytes) -> OffsetKey | str | None:
    """The offset key or the group id; None for the keys of other group types."""
    version, size = _KEY_HEAD.unpack_from(data)
    end = _KEY_HEAD.size + size
    if version == GROUP_KEY:
        return data[_KEY_HEAD.size : end].decode()
    if version not in {0, OFFSET_KEY}:
        return None
    topic = end + _I16.size
    topic_end = topic + _I16.unpack_from(data, end)[0]
    (partition,) = _I32.unpack_from(data, topic_end)
    return OffsetKey(data[_KEY_HEAD.size : end].decode(), data[topic:topic_end].decode(), partition)


def is_group_key(data: bytes) -> bool:
    """Whether a key is that of a group; cheaper than `read_key`."""
    return data.startswith(_GROUP_PREFIX)


def write_offset(committed: CommittedOffset) -> bytes:
    """Encode the value of an offset."""
    if committed.expires_at_ms == NO_TIME:
        metadata = committed.metadata.encode()
        head = _OFFSET_HEAD.pack(3, committed.offset, committed.leader_epoch, len(metadata))
        return head + metadata + _I64.pack(committed.committed_at_ms)
    writer = FieldWriter().i16(1).i64(committed.offset).string(committed.metadata)
    return writer.i64(committed.committed_at_ms).i64(committed.expires_at_ms).done()


def read_offset(data: bytes) -> CommittedOffset:
    """Decode the value of an offset in any version."""
    if data.startswith(_OFFSET_PREFIX) and len(data) >= _OFFSET_HEAD.size + _I64.size:
        _, offset, leader_epoch, size = _OFFSET_HEAD.unpack_from(data)
        end = _OFFSET_HEAD.size + size
        if end + _I64.size == len(data):
            metadata = data[_OFFSET_HEAD.size : end].decode()
            return CommittedOffset(offset, leader_epoch, metadata, _I64.unpack_from(data, end)[0])
    return _read_any_offset(data)


def _read_any_offset(data: bytes) -> CommittedOffset:
    reader, version = _open(data, "an offset")
    offset = reader.i64()
    return CommittedOffset(
        offset=offset,
        leader_epoch=reader.i32() if version >= 3 else -1,
        metadata=reader.string(),
        committed_at_ms=reader.i64(),
        expires_at_ms=reader.i64() if version == 1 else NO_TIME,
    )


def write_group(group: StoredGroup) -> bytes:
    """Encode the value of a group."""
    writer = FieldWriter().i16(3).string(group.protocol_type).i32(group.generation)
    writer.string(group.protocol).string(group.leader).i64(group.since_ms).i32(len(group.members))
    for member in group.members:
        writer.string(member.member_id).string(member.instance_id)
        writer.string(member.client_id).string(member.client_host)
        writer.i32(member.rebalance_timeout_ms).i32(member.session_timeout_ms)
        writer.blob(member.subscription).blob(member.assignment)
    return writer.done()


def read_group(data: bytes) -> StoredGroup:
    """Decode the value of a group in any version."""
    reader, version = _open(data, "a group")
    return StoredGroup(
        protocol_type=reader.string(),
        generation=reader.i32(),
        protocol=reader.nullable_string(),
        leader=reader.nullable_string(),
        since_ms=reader.i64() if version >= 2 else NO_TIME,
        members=tuple(_read_member(reader, version) for _ in range(reader.count())),
    )


def _read_member(reader: FieldReader, version: int) -> StoredMember:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.i32() if version >= 1 else -1
    session_timeout_ms = reader.i32()
    member = StoredMember(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        # Version 0 has one timeout for both.
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,
        session_timeout_ms=session_timeout_ms,
        subscription=reader.blob(),
        assignment=reader.blob(),
    )
    reader.tagged_fields()
    return member


def _open(data: bytes, what: str) -> tuple[FieldReader, int]:
    reader = FieldReader(data)
    version = reader.i16()
    if not 0 <= version <= 4:
        raise UnknownRecord(
            f"__consumer_offsets holds {what} in version {version}, which a newer broker wrote: "
            "start that version on this folder, or delete the group with it"
        )
    reader.compact = version >= 4
    return reader, version
