"""Sparse indexes of a segment, in Kafka's file formats: offset → position, and timestamp → offset.

An entry of the offset index has the last offset of a batch and the position of the batch. An entry of the
time index has the largest timestamp up to an offset. The indexes of the active segment are in memory; they
are saved when it is closed, and can be rebuilt by scanning the segment.
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
    """Maps offsets to positions in the log file."""

    __slots__ = ("base_offset", "offsets", "positions")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.offsets = array("q")
        self.positions = array("q")

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, last_offset: int, position: int) -> None:
        """Add an entry: the batch at `position` ends with `last_offset`."""
        self.offsets.append(last_offset)
        self.positions.append(position)

    def floor(self, offset: int) -> int:
        """A position at or before the batch that holds `offset`."""
        entry = bisect_right(self.offsets, offset) - 1
        return self.positions[entry] if entry >= 0 else 0

    def boundary(self, low: int, high: int) -> int:
        """The largest batch boundary in (low, high] that is in the index, or `low`."""
        entry = bisect_right(self.positions, high) - 1
        return max(self.positions[entry], low) if entry >= 0 else low

    def dump(self) -> bytes:
        """Encode the index file."""
        pairs = array("i", [0]) * (2 * len(self.offsets))
        base = self.base_offset
        pairs[::2] = array("i", [offset - base for offset in self.offsets])
        pairs[1::2] = array("i", self.positions)
        return _big_endian(pairs)

    @classmethod
    def load(cls, base_offset: int, data: bytes) -> OffsetIndex:
        """Decode an index file, up to the first entry that is not greater than the previous one.

        Kafka preallocates files: zeros at the end are not entries.
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
    """Maps timestamps to offsets."""

    __slots__ = ("base_offset", "offsets", "times")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.times = array("q")
        self.offsets = array("q")

    def __len__(self) -> int:
        return len(self.times)

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp in the index."""
        return self.times[-1] if self.times else NO_TIMESTAMP

    def add(self, timestamp: int, offset: int) -> None:
        """Add an entry: no record up to `offset` is later than `timestamp`. Ignores smaller timestamps."""
        if timestamp > self.max_timestamp:
            self.times.append(timestamp)
            self.offsets.append(offset)

    def floor(self, timestamp: int) -> int:
        """An offset at or before the first record that is not older than `timestamp`."""
        entry = bisect_left(self.times, timestamp) - 1
        return self.offsets[entry] if entry >= 0 else self.base_offset

    def dump(self) -> bytes:
        """Encode the index file."""
        base = self.base_offset
        return b"".join(TIME_ENTRY.pack(t, o - base) for t, o in zip(self.times, self.offsets, strict=True))

    @classmethod
    def load(cls, base_offset: int, data: bytes) -> TimeIndex:
        """Decode an index file."""
        index = cls(base_offset)
        whole = len(data) // TIME_ENTRY.size * TIME_ENTRY.size
        for timestamp, relative in TIME_ENTRY.iter_unpack(data[:whole]):
            index.add(timestamp, base_offset + relative)
        return index


def _big_endian(values: array[int]) -> bytes:
    if sys.byteorder == "little":
        values.byteswap()
    return values.tobytes()
