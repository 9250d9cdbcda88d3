"""Sparse indexes of a segment, in Kafka's file formats: offset → position, and time → offset.

An entry of the offset index names the last offset of a batch and the position where that batch begins; one of
the time index names the largest time seen so far and the offset that had it. While a segment is written its
indexes live in memory; they are saved when it is closed, and a scan of the segment makes them again.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

OFFSET_ENTRY: Final = struct.Struct(">ii")
TIME_ENTRY: Final = struct.Struct(">qi")
NO_TIMESTAMP: Final = -1


class OffsetIndex:
    """Where, at the latest, to begin looking for an offset."""

    __slots__ = ("base_offset", "offsets", "positions")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.offsets = array("q")
        self.positions = array("q")

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, last_offset: int, position: int) -> None:
        """Note that the batch at `position` ends with `last_offset`."""
        self.offsets.append(last_offset)
        self.positions.append(position)

    def floor(self, offset: int) -> int:
        """A position at or before the batch that holds `offset`."""
        entry = bisect_right(self.offsets, offset) - 1
        return self.positions[entry] if entry >= 0 else 0

    def boundary(self, low: int, high: int) -> int:
        """The largest known batch boundary in (low, high], or `low` when none is known there."""
        entry = bisect_right(self.positions, high) - 1
        return max(self.positions[entry], low) if entry >= 0 else low

    def dump(self) -> bytes:
        """The index file's bytes."""
        pairs = array("i", [0]) * (2 * len(self.offsets))
        base = self.base_offset
        pairs[::2] = array("i", [offset - base for offset in self.offsets])
        pairs[1::2] = array("i", self.positions)
        return _big_endian(pairs)

    @classmethod
    def load(cls, base_offset: int, data: bytes) -> OffsetIndex:
        """The index in a file's bytes, up to the first entry that does not follow the one before it.

        Zeroes at the end (Kafka preallocates) are no entries.
        """
        index = cls(base_offset)
        pairs = array("i")
        pairs.frombytes(data[: len(data) // OFFSET_ENTRY.size * OFFSET_ENTRY.size])
        if sys.byteorder == "little":
            pairs.byteswap()
        last_relative, last_position = -1, 0
        for relative, position in zip(pairs[::2], pairs[1::2], strict=True):
            if relative <= last_relative or position <= last_position:
                break
            index.add(base_offset + relative, position)
            last_relative, last_position = relative, position
        return index


class TimeIndex:
    """From which offset on to look for a time."""

    __slots__ = ("base_offset", "offsets", "times")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.times = array("q")
        self.offsets = array("q")

    def __len__(self) -> int:
        return len(self.times)

    @property
    def max_timestamp(self) -> int:
        """The largest time that was noted."""
        return self.times[-1] if self.times else NO_TIMESTAMP

    def add(self, timestamp: int, offset: int) -> None:
        """Note that no record up to `offset` is later than `timestamp`; out-of-order times are not noted."""
        if timestamp > self.max_timestamp:
            self.times.append(timestamp)
            self.offsets.append(offset)

    def floor(self, timestamp: int) -> int:
        """An offset at or before the first record that is not older than `timestamp`."""
        entry = bisect_left(self.times, timestamp) - 1
        return self.offsets[entry] if entry >= 0 else self.base_offset

    def dump(self) -> bytes:
        """The index file's bytes."""
        base = self.base_offset
        return b"".join(TIME_ENTRY.pack(t, o - base) for t, o in zip(self.times, self.offsets, strict=True))

    @classmethod
    def load(cls, base_offset: int, data: bytes) -> TimeIndex:
        """The index in a file's bytes."""
        index = cls(base_offset)
        whole = len(data) // TIME_ENTRY.size * TIME_ENTRY.size
        for timestamp, relative in TIME_ENTRY.iter_unpack(data[:whole]):
            index.add(timestamp, base_offset + relative)
        return index


def _big_endian(values: array[int]) -> bytes:
    if sys.byteorder == "little":
        values.byteswap()
    return values.tobytes()
