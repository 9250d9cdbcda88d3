"""The aborted transactions of a partition: what readers of committed records are told to skip.

Each segment has a `.txnindex` file in Kafka's format with the transactions whose abort marker it holds; all
of them are in memory too, in the order of their markers, for they are few.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from headrace.storage.producers import AbortedTransaction

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

ENTRY: Final = struct.Struct(">hqqqq")
VERSION: Final = 0


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
        start = bisect_left(self._entries, first, key=attrgetter("last_offset"))
        return [entry for entry in self._entries[start:] if entry.first_offset < end]

    def forget_before(self, offset: int) -> None:
        """Drop what ended before the start of the log."""
        start = bisect_left(self._entries, offset, key=attrgetter("last_offset"))
        del self._entries[:start]


def append_entry(path: Path, entry: AbortedTransaction) -> None:
    """Add a transaction to a segment's file."""
    with path.open("ab") as file:
        file.write(pack_entries([entry]))


def pack_entries(entries: Iterable[AbortedTransaction]) -> bytes:
    """The bytes of a `.txnindex` file."""
    return b"".join(
        ENTRY.pack(VERSION, e.producer_id, e.first_offset, e.last_offset, e.last_stable_offset)
        for e in entries
    )


def read_entries(path: Path) -> list[AbortedTransaction]:
    """The transactions in a segment's file; none when there is no file, a torn last entry is left out."""
    if not path.exists():
        return []
    data = path.read_bytes()
    whole = len(data) // ENTRY.size * ENTRY.size
    return [
        AbortedTransaction(producer_id=p, first_offset=first, last_offset=last, last_stable_offset=stable)
        for _, p, first, last, stable in ENTRY.iter_unpack(data[:whole])
    ]
