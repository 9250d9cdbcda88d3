"""Transactions as compaction meets them: whose records are void, and which markers still mean something."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from headrace.protocol.records import decode_batch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.protocol.batch import BatchHeader
    from headrace.storage.producers import AbortedTransaction

_MARKER_KEY = struct.Struct(">hh")
ABORT: Final = 0
COMMIT: Final = 1


class Transactions:
    """What a pass over the log has seen of each producer's transaction.

    Batches are shown in the order of the log. A marker is spent when the pass met no batch of its
    transaction: then nobody needs it except readers that are in the middle just now.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        for entry in aborted:
            self._aborted.setdefault(entry.producer_id, []).append(entry)
        self._seen: set[int] = set()
        self.kept_aborts: list[AbortedTransaction] = []
        """Aborted transactions whose marker was met and is not spent, since this list was last emptied."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Whether the batch holds records of a transaction that was aborted."""
        return header.is_transactional and any(
            entry.first_offset <= header.base_offset <= entry.last_offset
            for entry in self._aborted.get(header.producer_id, ())
        )

    def meet(self, header: BatchHeader) -> None:
        """Note a batch of records."""
        if header.is_transactional:
            self._seen.add(header.producer_id)

    def meet_marker(self, header: BatchHeader, batch: memoryview) -> bool:
        """Note a control batch; whether it is spent."""
        if header.count == 0:
            return True
        if _marker_kind(batch) not in (ABORT, COMMIT):
            return False
        if header.producer_id not in self._seen:
            return True
        self._seen.remove(header.producer_id)
        self.kept_aborts += (
            entry
            for entry in self._aborted.get(header.producer_id, ())
            if entry.last_offset == header.base_offset
        )
        return False


def _marker_kind(batch: memoryview) -> int | None:
    """What the control record says; None when it is not a marker of a transaction."""
    key = decode_batch(batch)[0].key
    if key is None or len(key) < _MARKER_KEY.size:
        return None
    _, kind = _MARKER_KEY.unpack_from(key)
    return int(kind)
