"""The aborted transactions of a partition: what readers of committed records are told to skip.

All of them are in memory, in the order of their markers, for they are few. A closed segment has a `.txnindex`
file in Kafka's format with the transactions whose abort marker it holds; for the active one a scan of the log
gives the same.
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
        """Remember a transaction; its marker is the last so far."""
        self._entries.append(entry)

    def between(self, first: int, end: int) -> list[AbortedTransaction]:
        """Those with records or marker in the offsets [first, end)."""
        if not self._entries:
            return []
        return [entry for entry in self._entries[self._position(first) :] if entry.first_offset < end]

    def ended_between(self, first: int, end: int) -> list[AbortedTransaction]:
        """Those with the marker in the offsets [first, end): what the file of a segment holds."""
        return self._entries[self._position(first) : self._position(end)]

    def replace_between(self, first: int, end: int, entries: Iterable[AbortedTransaction]) -> None:
        """Put `entries` in the place of those with the marker in the offsets [first, end)."""
        self._entries[self._position(first) : self._position(end)] = entries

    def _position(self, offset: int) -> int:
        """Where the first is whose marker does not lie before `offset`."""
        return bisect_left(self._entries, offset, key=attrgetter("last_offset"))

    def forget_before(self, offset: int) -> None:
        """Drop what ended before the start of the log."""
        del self._entries[: self._position(offset)]


def save_entries(path: Path, entries: Sequence[AbortedTransaction]) -> None:
    """Write a closed segment's file; a segment without aborted transactions has none."""
    if entries:
        replace_file(path, pack_entries(entries))
    else:
        path.unlink(missing_ok=True)


def pack_entries(entries: Iterable[AbortedTransaction]) -> bytes:
    """The bytes of a `.txnindex` file."""
    return b"".join(
        ENTRY.pack(VERSION, e.producer_id, e.first_offset, e.last_offset, e.last_stable_offset)
        for e in entries
    )


def read_entries(path: Path, first: int = 0, end: int = MAX_OFFSET) -> list[AbortedTransaction]:
    """The transactions in the file of the segment with the offsets [first, end); none when there is no file.

    A file that cannot be such a segment's raises `StorageError`.
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
        raise StorageError(f"{path} is damaged: it is no list of transactions that ended in {first} to {end}")
    return entries
