"""The offset map of a compaction: the latest offset of each key in the dirty part of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from headrace.protocol.records import (
    KEY_SIZE,
    KEY_START,
    OFFSET_DELTA,
    ROWS,
    SIZE,
    START,
    TIMESTAMP_DELTA,
    decode_varint,
    encode_varint,
    walk_records,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from headrace.protocol.compression import Bytes


class OffsetMap(Protocol):
    """Keys and their latest offsets, with a maximum size.

    `columns` are those of `headrace.protocol.records`; `section` is the decompressed records of one batch.
    """

    def walk(self, section: Bytes, count: int) -> NDArray[np.int64]:
        """The columns of the records in a section; raises `CorruptBatch`."""
        ...

    def add(self, section: Bytes, columns: NDArray[np.int64], base_offset: int, first: int) -> bool:
        """Add the offset of each key, from offset `first` on; False if the map is full."""
        ...

    def latest(self, section: Bytes, columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """The latest offset of the key of each record, or −1."""
        ...

    def restamp(self, section: Bytes, columns: NDArray[np.int64], shift: int) -> bytes:
        """The records with `shift` subtracted from their timestamp deltas, for a new base timestamp."""
        ...


class DictOffsetMap:
    """An offset map of at most `limit` keys in a dict."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._offsets: dict[bytes, int] = {}

    def walk(self, section: Bytes, count: int) -> NDArray[np.int64]:
        """The columns of the records in a section; raises `CorruptBatch`."""
        extents = list(walk_records(bytes(section), count))
        return np.array(extents, np.int64).reshape(count, ROWS).T

    def add(self, section: Bytes, columns: NDArray[np.int64], base_offset: int, first: int) -> bool:
        """Add the offset of each key, from offset `first` on; False if the map is full."""
        for key, delta in zip(_keys(section, columns), columns[OFFSET_DELTA].tolist(), strict=True):
            offset = base_offset + delta
            if key is not None and offset >= first:
                if key not in self._offsets and len(self._offsets) >= self._limit:
                    return False
                self._offsets[key] = offset
        return True

    def latest(self, section: Bytes, columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """The latest offset of the key of each record, or −1."""
        found = [-1 if key is None else self._offsets.get(key, -1) for key in _keys(section, columns)]
        return np.array(found, np.int64)

    def restamp(self, section: Bytes, columns: NDArray[np.int64], shift: int) -> bytes:
        """The records with `shift` subtracted from their timestamp deltas, for a new base timestamp."""
        parts: list[bytes] = []
        for start, size, delta in columns[[START, SIZE, TIMESTAMP_DELTA]].T.tolist():
            record = bytes(section[start : start + size])
            _, body = decode_varint(record, 0)
            _, after_delta = decode_varint(record, body + 1, 64)
            new_delta = encode_varint(_wrapped(delta - shift))
            new_body = record[body : body + 1] + new_delta + record[after_delta:]
            parts += (encode_varint(len(new_body)), new_body)
        return b"".join(parts)


def _keys(section: Bytes, columns: NDArray[np.int64]) -> Iterator[bytes | None]:
    for start, size in columns[[KEY_START, KEY_SIZE]].T.tolist():
        yield None if size < 0 else bytes(section[start : start + size])


def _wrapped(value: int) -> int:
    """`value` wrapped to 64 bits, as in compiled code and in Java."""
    return (value + 2**63) % 2**64 - 2**63
