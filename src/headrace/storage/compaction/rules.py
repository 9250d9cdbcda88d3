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

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.protocol.batch import DELETE_HORIZON
from headrace.protocol.extent import KEY_SIZE, OFFSET_DELTA, VALUE_SIZE

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from headrace.protocol.batch import BatchHeader

_LATEST_TIME: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
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
