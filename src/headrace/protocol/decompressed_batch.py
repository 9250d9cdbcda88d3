"""Some records of a batch as a batch of their own, at their offsets: what a queue takes of a large one.

No length or count is trusted before it is held against the bytes. Records are found one after another, as
far as they are wanted: a reader of ten records of a million takes ten steps, and a batch that turns out to be
corrupt still gives the records before the corruption.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING

from headrace.protocol.batch import CODEC_MASK, HEADER_BYTES, build_batch, read_header
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import MIN_RECORD_BYTES, decode_record, open_section, step_over_record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.protocol.batch import BatchHeader
    from headrace.protocol.records import Record


class DecompressedBatch:
    """A batch whose records are found as they are wanted; cut as often as one likes."""

    __slots__ = ("_ends", "_offsets", "_origin", "data", "fault", "header", "section")

    def __init__(
        self, batch: bytes, section: bytes | bytearray | None = None, fault: str | None = None
    ) -> None:
        """`section` holds the records of a compressed batch, if the caller has decompressed them.

        With a `fault` no record is looked for.
        """
        self.header: BatchHeader = read_header(batch)
        self.data = batch
        # Not compressed, they are walked where they are: a copy would double the memory of a large batch.
        if not self.header.codec:
            section = batch
        elif section is None:
            section = bytes(open_section(batch, self.header))
        self.section = section
        self._origin = 0 if self.header.codec else HEADER_BYTES
        self.fault = fault
        """Why the records from `found` on cannot be read; None while they can."""
        room = len(self.section) - self._origin
        if fault is None and not 0 <= self.header.count <= room // MIN_RECORD_BYTES:
            self.fault = f"it counts {self.header.count} records in {room} bytes"
        # Where each record that was found ends; with gaps, at which offset it is.
        self._ends = array("i")
        has_gaps = self.header.count != self.header.last_offset_delta + 1
        self._offsets: array[int] | None = array("q") if has_gaps else None

    @property
    def has_gaps(self) -> bool:
        """Whether offsets are missing between its records: compaction removes records."""
        return self._offsets is not None

    @property
    def found(self) -> int:
        """How many records have been found."""
        return len(self._ends)

    @property
    def is_whole(self) -> bool:
        """Whether all records have been found, and nothing else is in the batch."""
        return self.fault is None and len(self._ends) == self.header.count

    @property
    def size(self) -> int:
        """Bytes that it takes in memory when all its records have been found."""
        opened = len(self.section) if self.header.codec else 0
        places = self._ends.itemsize * self.header.count if self.fault is None else 0
        return len(self.data) + opened + places

    @property
    def next_offset(self) -> int:
        """The offset behind the last record that was found; behind the batch when all were."""
        if len(self._ends) == self.header.count:
            return self.header.next_offset
        if self._offsets is None:
            return self.header.base_offset + len(self._ends)
        return self._offsets[-1] + 1 if self._offsets else self.header.base_offset

    def find(self, records: int) -> int:
        """Find up to `records` more; gives how many were found. `fault` says why there are no more."""
        if self.fault is not None:
            return 0
        before = len(self._ends)
        try:
            self._find(min(before + records, self.header.count))
        except CorruptBatch as fault:
            self.fault = str(fault)
        return len(self._ends) - before

    def _find(self, target: int) -> None:
        section, ends, last = self.section, self._ends, self.header.last_offset_delta
        position = ends[-1] if ends else self._origin
        previous = self.next_offset - self.header.base_offset - 1
        for index in range(len(ends), target):
            end, delta = step_over_record(section, position)
            if not previous < delta <= last:
                raise CorruptBatch(f"record {index} is numbered {delta}, after {previous} and up to {last}")
            if index + 1 == self.header.count and end != len(section):
                raise CorruptBatch(f"{len(section) - end} bytes follow the last of its records")
            ends.append(end)
            if self._offsets is not None:
                self._offsets.append(self.header.base_offset + delta)
            position, previous = end, delta

    def index_of(self, offset: int) -> int | None:
        """Which record is at an offset, among those that were found."""
        if self._offsets is None:
            index = offset - self.header.base_offset
            return index if 0 <= index < len(self._ends) else None
        index = bisect_left(self._offsets, offset)
        return index if index < len(self._offsets) and self._offsets[index] == offset else None

    def offset_at(self, index: int) -> int:
        """The offset of a record that was found."""
        return self.header.base_offset + index if self._offsets is None else self._offsets[index]

    def first_from(self, offset: int) -> int:
        """The index of the first record from `offset` on."""
        if self._offsets is None:
            return max(offset - self.header.base_offset, 0)
        return bisect_left(self._offsets, offset)

    def contains(self, mark: bytes, first: int, end: int) -> bool:
        """Whether bytes occur in the records from index `first` to before `end`, which have been found."""
        return first < end and self.section.find(mark, self._start(first), self._ends[end - 1]) >= 0

    def record(self, index: int) -> Record:
        """A record that was found."""
        return decode_record(self.section, self._start(index), self.header)

    def cut(self, offsets: Iterable[int]) -> bytes:
        """A batch of the records at these offsets, not compressed; those that were not found are left out."""
        chosen = [index for offset in offsets if (index := self.index_of(offset)) is not None]
        header = self.header
        last = self.offset_at(chosen[-1]) - header.base_offset if chosen else 0
        return bytes(
            build_batch(
                b"".join(self.section[self._start(index) : self._ends[index]] for index in chosen),
                len(chosen),
                base_timestamp=header.base_timestamp,
                max_timestamp=header.max_timestamp,
                base_offset=header.base_offset,
                leader_epoch=header.leader_epoch,
                attributes=header.attributes & ~CODEC_MASK,
                last_offset_delta=last,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
            )
        )

    def _start(self, index: int) -> int:
        return self._ends[index - 1] if index else self._origin
