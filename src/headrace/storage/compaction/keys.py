"""The latest offset of each key in the dirty part of a log: what a compaction has to remember."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.protocol.compression import Bytes


class Keys(Protocol):
    """Keys and their latest offsets, within a bound, and the walks over records that go with them.

    Columns are as `headrace.protocol.extent` says; `section` is always the decompressed records of one batch.
    """

    def walk(self, section: Bytes, count: int) -> NDArray[np.int64]:
        """The columns of the records in a section, or `CorruptBatch`."""
        ...

    def note(self, section: Bytes, columns: NDArray[np.int64], base_offset: int, first: int) -> bool:
        """Remember each key's offset, from offset `first` on; False when there is no room left."""
        ...

    def latest(self, section: Bytes, columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each record the latest offset that was noted of its key, or −1."""
        ...

    def restamp(self, section: Bytes, columns: NDArray[np.int64], shift: int) -> bytes:
        """The records with `shift` taken off their timestamp deltas, for a base timestamp that moved."""
        ...
