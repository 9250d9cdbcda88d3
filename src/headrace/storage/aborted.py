"""The aborted transactions of a partition, which read_committed consumers skip.

All are in memory, in the order of their markers: there are few. A closed segment has a `.txnindex` file in
Kafka's format with the transactions whose abort marker it holds. Those of the active segment are found by
scanning it.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from headrace.files import replace_file
from headrace.storage.errors import StorageError
from headrace.storage.producers import AbortedTransaction

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

ENTRY: Final = struct.Struct(">hqqqq")
VERSION: Final = 0
MAX_OFFSET: Final = 2**63 - 1


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
        ENTRY.pack(VERSION, e.producer_id, e.first_offset, e.last_offset, e.last_stable_offset)
        for e in entries
    )


def read_entries(path: Path, first: int = 0, end: int = MAX_OFFSET) -> list[AbortedTransaction]:
    """Read the file of the segment with the offsets from `first` to before `end`; empty if there is none.

    Raises `StorageError` if the file does not belong to such a segment.
    """
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = len(data) // ENTRY.size * ENTRY.size
    entries = [
        AbortedTransaction(producer_id=id_, first_offset=begin, last_offset=marker, last_stable_offset=stable)
        for version, id_, begin, marker, stable in ENTRY.iter_unpack(data[:whole])
        if version == VERSION and begin <= marker
    ]
    markers = [first, *(entry.last_offset for entry in entries), end - 1]
    if len(entries) * ENTRY.size != len(data) or markers != sorted(markers):
        raise StorageError(
            f"{path} is damaged: its entries are not transactions that ended in {first} to {end}"
        )
    return entries
