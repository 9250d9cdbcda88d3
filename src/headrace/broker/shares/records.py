"""The records of `__share_group_state`: groups, their settings, and what they have done.

Every key begins with its kind. A share partition has a record for where it starts, and one for each chunk of
offsets behind that of which there is something to say: a record is always the whole truth of its key, so that
compaction may keep the latest alone.
"""

from __future__ import annotations

import json
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from headrace.broker.record_fields import FieldReader, FieldWriter
from headrace.broker.shares.states import Reason, Run, StoredState
from headrace.broker.statelog import UnknownRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

GROUP: Final = 1
CONFIG: Final = 2
START: Final = 3
CHUNK: Final = 4

_START: Final = struct.Struct(">hq")
_RUN: Final = struct.Struct(">qqbhbq")
_VERSION: Final = 0


class ShareKey(NamedTuple):
    """Which group on which partition."""

    group: str
    topic: UUID
    partition: int


class StoredKey(NamedTuple):
    """The key of a record, taken apart."""

    kind: int
    group: str
    share: ShareKey | None = None
    chunk: int = -1


def write_group_key(group: str, kind: int = GROUP) -> bytes:
    """The key of a group, or of its settings."""
    return FieldWriter().i16(kind).string(group).done()


@lru_cache(maxsize=4096)
def write_start_key(share: ShareKey) -> bytes:
    """The key of where a share partition starts."""
    return _share_key(START, share).done()


def write_chunk_key(share: ShareKey, chunk: int) -> bytes:
    """The key of a chunk of a share partition."""
    return _share_key(CHUNK, share).i64(chunk).done()


def _share_key(kind: int, share: ShareKey) -> FieldWriter:
    return FieldWriter().i16(kind).string(share.group).blob(share.topic.bytes).i32(share.partition)


def read_key(data: bytes) -> StoredKey:
    """What a key names."""
    reader = FieldReader(data)
    kind, group = reader.i16(), reader.string()
    if kind not in (GROUP, CONFIG, START, CHUNK):
        raise _unknown(f"a key of kind {kind}")
    if kind in (GROUP, CONFIG):
        return StoredKey(kind, group)
    share = ShareKey(group, UUID(bytes=reader.blob()), reader.i32())
    return StoredKey(kind, group, share, reader.i64() if kind == CHUNK else -1)


def write_config(configs: Mapping[str, str]) -> bytes:
    """The settings of a group as a value."""
    return json.dumps(dict(configs)).encode()


def read_config(data: bytes) -> dict[str, str]:
    """The settings of a group."""
    configs: dict[str, str] = json.loads(data)
    return configs


def write_start(offset: int) -> bytes:
    """Where a share partition starts, as a value."""
    return _START.pack(_VERSION, offset)


def read_start(data: bytes) -> int:
    """Where a share partition starts."""
    version, offset = _START.unpack(data)
    if version != _VERSION:
        raise _unknown(f"a start of version {version}")
    return int(offset)


def _unknown(what: str) -> UnknownRecord:
    return UnknownRecord(
        f"__share_group_state holds {what}, which this broker does not know: a newer broker wrote it; start "
        "that one on this folder"
    )


def write_runs(runs: Iterable[Run]) -> bytes:
    """What is known of the records of a chunk, as a value."""
    return b"".join(_RUN.pack(*run) for run in runs)


def read_runs(data: bytes) -> list[Run]:
    """What is known of the records of a chunk."""
    return [
        Run(first, last, StoredState(state), deliveries, Reason(reason), position)
        for first, last, state, deliveries, reason, position in _RUN.iter_unpack(data)
    ]
