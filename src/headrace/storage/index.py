"""The indexes of a segment in Kafka's file formats, and the aborted transactions of a partition.

An entry of the offset index has the last offset of a batch and the position of the batch. An entry of the
time index has the largest timestamp up to an offset. The indexes of the active segment are in memory; they
are saved when it is closed, and can be rebuilt by scanning the segment.

`read_committed` consumers skip aborted transactions. There are few, so all of them are in memory, in the
order of their markers. A closed segment has a `.txnindex` file with the transactions whose abort marker it
holds; those of the active segment are found by scanning it.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from headrace.folders import replace_file
from headrace.storage.errors import StorageError
from headrace.storage.producers import AbortedTransaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


OFFSET_ENTRY: Final = struct.Struct(">ii")
TIME_ENTRY: Final = struct.Struct(">qi")
NO_TIMESTAMP: Final = -1

ABORTED_ENTRY: Final = struct.Struct(">hqqqq")
ABORTED_VERSION: Final = 0
MAX_OFFSET: Final = 2**63 - 1


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


class AbortedTransactions:
    """Aborted transactions in the order of their markers."""

    def __init__(self) -> None:
        self._entries: list[AbortedTransaction] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: AbortedTransaction) -> None:
        """Add a transaction, whose marker is the newest."""
        self._entries.append(entry)

    def between(self, first: int, end: int) -> list[AbortedTransaction]:
        """The transactions with records or a marker from `first` to before `end`."""
        if not self._entries:
            return []
        return [entry for entry in self._entries[self._position(first) :] if entry.first_offset < end]

    def ended_between(self, first: int, end: int) -> list[AbortedTransaction]:
        """The transactions with a marker from `first` to before `end`, as in the file of a segment."""
        return self._entries[self._position(first) : self._position(end)]

    def replace_between(self, first: int, end: int, entries: Iterable[AbortedTransaction]) -> None:
        """Replace the transactions with a marker from `first` to before `end`."""
        self._entries[self._position(first) : self._position(end)] = entries

    def _position(self, offset: int) -> int:
        """The index of the first transaction whose marker is at or after `offset`."""
        return bisect_left(self._entries, offset, key=attrgetter("last_offset"))

    def drop_before(self, offset: int) -> None:
        """Drop the transactions whose marker is before the start of the log."""
        del self._entries[: self._position(offset)]


def save_entries(path: Path, entries: Sequence[AbortedTransaction]) -> None:
    """Write the file of a closed segment; deletes it if there are no entries."""
    if entries:
        replace_file(path, pack_entries(entries))
    else:
        path.unlink(missing_ok=True)


def pack_entries(entries: Iterable[AbortedTransaction]) -> bytes:
    """Encode a `.txnindex` file."""
    return b"".join(
        ABORTED_ENTRY.pack(
            ABORTED_VERSION, e.producer_id, e.first_offset, e.last_offset, e.last_stable_offset
        )
        for e in entries
    )


def read_entries(path: Path, first: int = 0, end: int = MAX_OFFSET) -> list[AbortedTransaction]:
    """Read the file of the segment with the offsets from `first` to before `end`; empty if there is none.

    Raises `StorageError` if the file does not belong to such a segment.
    """
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = len(data) // ABORTED_ENTRY.size * ABORTED_ENTRY.size
    entries = [
        AbortedTransaction(producer_id=id_, first_offset=begin, last_offset=marker, last_stable_offset=stable)
        for version, id_, begin, marker, stable in ABORTED_ENTRY.iter_unpack(data[:whole])
        if version == ABORTED_VERSION and begin <= marker
    ]
    markers = [first, *(entry.last_offset for entry in entries), end - 1]
    if len(entries) * ABORTED_ENTRY.size != len(data) or markers != sorted(markers):
        raise StorageError(
            f"{path} is damaged: its entries are not transactions that ended in {first} to {end}"
        )
    return entries
