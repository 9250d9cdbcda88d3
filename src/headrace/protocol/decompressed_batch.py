"""A decompressed batch from which records are selected, for share groups.

Records are located one after another, as far as they are needed: ten records of a million take ten steps, and
the records before a corruption can be read. All lengths and counts are checked. A record with too many
headers counts as corrupt: to read them would keep the broker busy for long.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

from headrace.protocol.batch import CODEC_MASK, HEADER_BYTES, build_batch, read_header, seal_header
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import (
    MIN_RECORD_BYTES,
    decode_record,
    decompress_section,
    skip_record,
    view_record,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.protocol.batch import BatchHeader, SealedFields
    from headrace.protocol.compression import Bytes
    from headrace.protocol.records import Record, RecordView

MAX_HEADERS: Final = 5_000
"""The most headers of a record: to read them takes some milliseconds."""
HEADERS_PER_RECORD: Final = 4
"""Headers that take as long to locate as a record."""


class DecompressedBatch:
    """A batch whose records are located on demand."""

    __slots__ = ("_ends", "_offsets", "_origin", "data", "fault", "header", "section")

    def __init__(
        self, batch: bytes, section: bytes | bytearray | None = None, fault: str | None = None
    ) -> None:
        """`section` has the records of a compressed batch, if they are already decompressed.

        With a `fault` no record can be located.
        """
        self.header: BatchHeader = read_header(batch)
        self.data = batch
        # Uncompressed records are not copied: that would double the memory of a large batch.
        if not self.header.codec:
            section = batch
        elif section is None:
            section = bytes(decompress_section(batch, self.header))
        self.section = section
        self._origin = 0 if self.header.codec else HEADER_BYTES
        self.fault = fault
        """Why the records from `found` on cannot be decoded, or None."""
        room = len(self.section) - self._origin
        if fault is None and not 0 <= self.header.count <= room // MIN_RECORD_BYTES:
            self.fault = f"it has {self.header.count} records in {room} bytes"
        # The end of each located record and, with gaps, its offset.
        self._ends = array("i")
        has_gaps = self.header.count != self.header.last_offset_delta + 1
        self._offsets: array[int] | None = array("q") if has_gaps else None

    @property
    def has_gaps(self) -> bool:
        """Whether compaction has removed records."""
        return self._offsets is not None

    @property
    def found(self) -> int:
        """The number of located records."""
        return len(self._ends)

    @property
    def is_whole(self) -> bool:
        """Whether all records are located."""
        return self.fault is None and len(self._ends) == self.header.count

    @property
    def size(self) -> int:
        """Its size in memory when all records are located."""
        decompressed = len(self.section) if self.header.codec else 0
        ends = self._ends.itemsize * self.header.count if self.fault is None else 0
        return len(self.data) + decompressed + ends

    @property
    def next_offset(self) -> int:
        """The offset after the last located record; after the batch if all are located."""
        if len(self._ends) == self.header.count:
            return self.header.next_offset
        if self._offsets is None:
            return self.header.base_offset + len(self._ends)
        return self._offsets[-1] + 1 if self._offsets else self.header.base_offset

    def find(self, records: int) -> int:
        """Locate up to `records` more, fewer if they have many headers; returns what that cost, in records.

        `fault` has the reason if there are no more.
        """
        if self.fault is not None:
            return 0
        before = len(self._ends)
        headers = 0
        try:
            headers = self._find(before, records)
        except CorruptBatch as fault:
            self.fault = str(fault)
        return len(self._ends) - before + headers // HEADERS_PER_RECORD

    def _find(self, first: int, records: int) -> int:
        section, ends, last = self.section, self._ends, self.header.last_offset_delta
        position = ends[-1] if ends else self._origin
        previous = self.next_offset - self.header.base_offset - 1
        headers, max_headers = 0, records * HEADERS_PER_RECORD
        for index in range(first, min(first + records, self.header.count)):
            end, delta, count = skip_record(section, position, MAX_HEADERS)
            if not previous < delta <= last:
                raise CorruptBatch(f"record {index} has the offset delta {delta} after {previous}, of {last}")
            if index + 1 == self.header.count and end != len(section):
                raise CorruptBatch(f"{len(section) - end} bytes follow the last of its records")
            ends.append(end)
            if self._offsets is not None:
                self._offsets.append(self.header.base_offset + delta)
            position, previous = end, delta
            if count:
                headers += count
                if headers > max_headers:
                    break
        return headers

    def index_of(self, offset: int) -> int | None:
        """The index of the located record at an offset, or None."""
        if self._offsets is None:
            index = offset - self.header.base_offset
            return index if 0 <= index < len(self._ends) else None
        index = bisect_left(self._offsets, offset)
        return index if index < len(self._offsets) and self._offsets[index] == offset else None

    def offset_at(self, index: int) -> int:
        """The offset of a located record."""
        return self.header.base_offset + index if self._offsets is None else self._offsets[index]

    def first_from(self, offset: int) -> int:
        """The index of the first record from `offset` on."""
        if self._offsets is None:
            return max(offset - self.header.base_offset, 0)
        return bisect_left(self._offsets, offset)

    def size_of(self, first: int, end: int) -> int:
        """The size in bytes of the located records from index `first` to before `end`."""
        return self._ends[end - 1] - self._start(first) if first < end else 0

    def contains(self, text: bytes, first: int, end: int) -> bool:
        """Whether `text` occurs in the located records from index `first` to before `end`."""
        return first < end and self.section.find(text, self._start(first), self._ends[end - 1]) >= 0

    def record(self, index: int) -> Record:
        """Decode a located record."""
        return decode_record(self.section, self._start(index), self.header)

    def view(self, index: int) -> RecordView:
        """Decode a located record without copying its fields."""
        return view_record(self.section, self._start(index), self.header)

    def select(self, offsets: Iterable[int]) -> bytes:
        """An uncompressed batch of the located records at these offsets."""
        chosen = [index for offset in offsets if (index := self.index_of(offset)) is not None]
        section = b"".join(self.section[self._start(index) : self._ends[index]] for index in chosen)
        last = self.offset_at(chosen[-1]) if chosen else self.header.base_offset
        return bytes(build_batch(section, len(chosen), **self._fields(last)))

    def select_large(self, offset: int) -> list[Bytes]:
        """An uncompressed batch of one located record: its header, and a view of the record."""
        index = self.index_of(offset)
        assert index is not None
        record = memoryview(self.section)[self._start(index) : self._ends[index]]
        return [seal_header(record, 1, **self._fields(offset)), record]

    def _fields(self, last_offset: int) -> SealedFields:
        """The header of an uncompressed batch of some of the records."""
        header = self.header
        return {
            "base_timestamp": header.base_timestamp,
            "max_timestamp": header.max_timestamp,
            "base_offset": header.base_offset,
            "leader_epoch": header.leader_epoch,
            "attributes": header.attributes & ~CODEC_MASK,
            "last_offset_delta": last_offset - header.base_offset,
            "producer_id": header.producer_id,
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
        }

    def _start(self, index: int) -> int:
        return self._ends[index - 1] if index else self._origin
