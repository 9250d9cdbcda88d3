"""Kafka's rules of what stays in a compacted log; the one place where they are written down.

- Of each key the latest record stays, and offsets do not change. A record without a key goes.
- A tombstone (null value) stays until its batch's delete horizon has passed. The horizon is set when a batch
  with tombstones is first cleaned: attribute bit 6, and the horizon in place of the base timestamp (KIP-534).
- Records of aborted transactions go. The marker of a transaction stays until no batch of it is left, and
  then, like a tombstone, until a horizon: a reader may be in the middle of the transaction.
- The last batch of a producer stays, if need be without records, for it carries the producer's sequence; and
  so does the last batch of the range, for it carries the log's offset.
- What lies at or beyond `end` is not touched.

One difference from Kafka: a marker that has to stay for its producer's sake stays whole and not as an empty
batch, so that a replay finds the producer's epoch in it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.protocol.batch import DELETE_HORIZON
from headrace.protocol.extent import KEY_SIZE, OFFSET_DELTA, VALUE_SIZE
from headrace.protocol.records import decode_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np
    from numpy.typing import NDArray

    from headrace.protocol.batch import BatchHeader
    from headrace.storage.producers import AbortedTransaction


_LATEST_TIME: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRules:
    """The rules, for one compaction at one moment."""

    end: int
    clean_until: int
    now_ms: int
    delete_retention_ms: int
    active_producers: Mapping[int, int]

    @property
    def horizon_ms(self) -> int:
        """Until when a tombstone or marker that is cleaned now for the first time stays."""
        return min(self.now_ms + self.delete_retention_ms, _LATEST_TIME)

    def is_out_of_reach(self, header: BatchHeader) -> bool:
        """Whether the batch must be copied as it is."""
        return header.next_offset > self.end

    def must_stay(self, header: BatchHeader) -> bool:
        """Whether the batch stays even without records."""
        is_last_of_producer = self.active_producers.get(header.producer_id) == header.last_offset
        return is_last_of_producer or header.next_offset == self.clean_until

    def has_expired(self, header: BatchHeader) -> bool:
        """Whether the tombstones or the marker in the batch have been there long enough."""
        return bool(header.attributes & DELETE_HORIZON) and header.base_timestamp <= self.now_ms

    def retained(
        self, header: BatchHeader, columns: NDArray[np.int64], latest: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Which records of a batch stay, when `latest` has the last offset of each one's key."""
        stays: NDArray[np.bool_] = columns[KEY_SIZE] >= 0
        stays &= columns[OFFSET_DELTA] + header.base_offset >= latest
        if self.has_expired(header):
            stays &= columns[VALUE_SIZE] >= 0
        return stays


_MARKER_KEY = struct.Struct(">hh")
ABORT: Final = 0
COMMIT: Final = 1


class CompactionTransactions:
    """What a pass over the log has seen of each producer's transaction.

    Batches are shown in the order of the log. A marker is spent when the pass met no batch of its
    transaction: then only readers inside the transaction need it.
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
