"""The headers of many batches at once, as columns of numbers, and which of the batches a reader may see."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import numpy as np
from crc32c import crc32c

from headrace.columns.record_kernels import count_batches, find_batches
from headrace.protocol.batch import CONTROL, CRC_START, HEADER_BYTES, LENGTH_OVERHEAD, MAGIC, TRANSACTIONAL
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import decode_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from headrace.protocol.kernels import Octets

_HEADER: Final = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", ">i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("count", ">i4"),
    ]
)
_ABORT: Final = 0
"""The type of an abort marker, in the third and fourth byte of its key."""


class BatchHeaders:
    """The headers of the whole batches that `data` consists of; `CorruptBatch` if it does not.

    The checksum of every batch is verified, also of those that are then passed over: damage in a header could
    make records look like a marker. `faults` says of each batch that cannot be read, by its index, why.
    """

    def __init__(self, data: Octets) -> None:
        count = count_batches(data)
        if count < 0:
            raise CorruptBatch(f"no whole record batch begins at byte {-count - 1} of {len(data)}")
        self._data = data
        self.starts: NDArray[np.int64] = np.empty(count, np.int64)
        find_batches(data, self.starts)
        self._fields = data[self.starts[:, np.newaxis] + np.arange(HEADER_BYTES)].view(_HEADER).reshape(count)
        self.ends = self.starts + self["length"] + LENGTH_OVERHEAD
        self.attributes = self["attributes"]
        self.last_offsets = self["base_offset"] + self["last_offset_delta"]
        self.faults = self._find_faults()

    def __getitem__(self, field: str) -> NDArray[np.int64]:
        return np.asarray(self._fields[field], np.int64)

    def visible(self, first: int, end: int, aborted: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
        """The indexes of the batches that may hold records a reader of the offsets [first, end) sees.

        Those are no markers, and none of the `aborted` transactions: pairs of a producer id and the offset
        at which its transaction began, exactly as the fetch that brought these batches listed them. What a
        batch with a fault holds is unknown, so that it is never left out as a marker or as aborted.
        """
        seen = self.attributes & CONTROL == 0
        if aborted:
            seen[self._aborted(aborted)] = False
        seen[list(self.faults)] = True
        return np.flatnonzero(seen & (self.last_offsets >= first) & (self["base_offset"] < end))

    def _find_faults(self) -> dict[int, str]:
        faults: dict[int, str] = {}
        view = self._data.data
        numbers = (self.starts, self.ends, self["magic"], self["crc"])
        rows = zip(*(column.tolist() for column in numbers), strict=True)
        for index, (start, end, magic, crc) in enumerate(rows):
            if magic != MAGIC:
                faults[index] = f"record batch of format {magic}: only format 2 can be read"
            elif crc32c(view[start + CRC_START : end]) != crc:
                faults[index] = "the record batch fails its checksum"
        return faults

    def _aborted(self, aborted: Sequence[tuple[int, int]]) -> list[int]:
        """The indexes of the batches that belong to aborted transactions.

        As in Kafka's consumers, a producer's batches are dropped from the first offset of its aborted
        transaction on, until its abort marker comes by.
        """
        to_come = deque(sorted(aborted, key=lambda entry: entry[1]))
        aborting: set[int] = set()
        dropped: list[int] = []
        candidates = np.flatnonzero(self.attributes & TRANSACTIONAL)
        producers = self["producer_id"][candidates].tolist()
        last_offsets = self.last_offsets[candidates].tolist()
        for index, producer, last_offset in zip(candidates.tolist(), producers, last_offsets, strict=True):
            while to_come and to_come[0][1] <= last_offset:
                aborting.add(to_come.popleft()[0])
            if producer not in aborting:
                continue
            if not self.attributes[index] & CONTROL:
                dropped.append(index)
            elif self._is_abort_marker(index):
                aborting.remove(producer)
        return dropped

    def _is_abort_marker(self, index: int) -> bool:
        try:
            records = decode_batch(self._data.data[self.starts[index] : self.ends[index]])
        except CorruptBatch:
            # Of a producer that is aborting it can only be that: without it, all that follows would be lost.
            return True
        # Compaction may have left a marker's batch behind without the marker.
        return bool(records) and int.from_bytes((records[0].key or b"")[2:4], signed=True) == _ABORT
