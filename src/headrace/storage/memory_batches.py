"""The batches of a memory topic: each as the bytes that came, beside arrays that find one by offset or time.

Batches come at the end and go at the beginning. What goes is forgotten at once; its place in the arrays is
given back when more places are empty than used, so that both ends cost the same however long the log is.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.protocol.batch import BatchHeader, read_header

if TYPE_CHECKING:
    from collections.abc import Iterator

NO_TIMESTAMP: Final = -1
PIECE_BYTES: Final = 256 * 1024
"""Small batches are joined to pieces of about this size before they are sent."""
EMPTY_PLACES: Final = 1024


class MemoryRange(NamedTuple):
    """Whole batches in memory, ready to be sent; whoever holds it may read on when the log forgets them."""

    batches: list[bytes]
    size: int

    def read(self) -> bytes:
        """All of its bytes."""
        return b"".join(self.batches)

    def pieces(self) -> Iterator[bytes]:
        """Its bytes in pieces of which each is worth a system call."""
        first, size = 0, 0
        for position, batch in enumerate(self.batches):
            size += len(batch)
            if size >= PIECE_BYTES:
                yield b"".join(self.batches[first : position + 1])
                first, size = position + 1, 0
        if size:
            yield b"".join(self.batches[first:])


class MemoryBatches:
    """Batches in the order of their offsets. Positions are bytes since the log began, and never change."""

    def __init__(self) -> None:
        self._batches: list[bytes] = []
        self._last_offsets = array("q")
        self._ends = array("q")
        self._times = array("q")
        """By batch, its largest time or, where its records have none, when it came."""
        self._latest = array("q")
        """By batch, the largest time of it and of all before it."""
        self._first = 0
        self._end = 0

    def __len__(self) -> int:
        return len(self._batches) - self._first

    @property
    def size(self) -> int:
        """Bytes of all batches."""
        return self._end - self._start(self._first)

    def _start(self, index: int) -> int:
        """The position at which a batch begins."""
        return self._ends[index - 1] if index else 0

    def add(self, batch: bytes, header: BatchHeader, last_offset: int) -> None:
        """Keep a batch at the end."""
        timestamp = header.max_timestamp
        self._end += len(batch)
        self._batches.append(batch)
        self._last_offsets.append(last_offset)
        self._ends.append(self._end)
        self._times.append(timestamp if timestamp >= 0 else time.time_ns() // 1_000_000)
        self._latest.append(max(timestamp, self._latest[-1]) if len(self._latest) else timestamp)

    # ---------------------------------------------------------------- the beginning

    @property
    def oldest_ms(self) -> int | None:
        """The time of the first batch."""
        return self._times[self._first] if len(self) else None

    @property
    def first_offsets_end(self) -> int:
        """The offset after the first batch, which is there."""
        return self._last_offsets[self._first] + 1

    def drop_first(self) -> None:
        """Forget the first batch."""
        self._batches[self._first] = b""
        self._first += 1
        if self._first > EMPTY_PLACES and self._first > len(self):
            self._close_up()

    def drop_before(self, offset: int) -> None:
        """Forget the batches that end before `offset`."""
        while len(self) and self._last_offsets[self._first] < offset:
            self.drop_first()

    def _close_up(self) -> None:
        # One empty place stays: its end is where the first batch begins.
        empty = self._first - 1
        for column in (self._last_offsets, self._ends, self._times, self._latest):
            del column[:empty]
        del self._batches[:empty]
        self._first = 1

    # ---------------------------------------------------------------- reading

    def _index(self, offset: int) -> int:
        """The place of the batch that holds `offset`, or of the first after it."""
        return bisect_left(self._last_offsets, offset, lo=self._first)

    def select(
        self, offset: int, end_offset: int, max_bytes: int, *, at_least_one: bool
    ) -> MemoryRange | None:
        """The batches from the one that holds `offset`, below `end_offset`, as many as `max_bytes` allow."""
        first = self._index(offset)
        end = bisect_left(self._last_offsets, end_offset, lo=first)
        start = self._start(first)
        fitting = bisect_right(self._ends, start + max_bytes, lo=first, hi=end)
        if fitting == first and at_least_one:
            fitting = min(first + 1, end)
        if fitting == first:
            return None
        return MemoryRange(self._batches[first:fitting], self._ends[fitting - 1] - start)

    def from_offset(self, offset: int) -> Iterator[bytes]:
        """Each batch from the one that holds `offset` on."""
        return iter(self._batches[self._index(offset) :])

    def find(self, offset: int) -> bytes | None:
        """The batch that holds `offset`, or the first after it."""
        index = self._index(offset)
        return self._batches[index] if index < len(self._batches) else None

    def size_from(self, offset: int) -> int:
        """Bytes of the batches from the one that holds `offset` on."""
        return self._end - self._start(self._index(offset))

    def offset_within(self, size: int) -> int:
        """The first offset from which on the batches have at most `size` bytes, which all have more than."""
        return self._last_offsets[bisect_left(self._ends, self._end - size, lo=self._first)] + 1

    # ---------------------------------------------------------------- time

    def load_max_timestamp(self) -> int:
        """A time that no batch is later than."""
        return self._latest[-1] if len(self) else NO_TIMESTAMP

    def offset_before(self, timestamp: int) -> int:
        """An offset at or before the first record that is not older than `timestamp`."""
        index = bisect_left(self._latest, timestamp, lo=self._first)
        return self._last_offsets[index - 1] + 1 if index else 0

    def headers_from(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Place and header of each batch from the one that holds `offset` on."""
        while (index := self._index(offset)) < len(self._batches):
            # Found again after each batch: places move when batches are forgotten meanwhile.
            offset = self._last_offsets[index] + 1
            yield index, read_header(self._batches[index])

    def read(self, index: int, _size: int) -> bytes:
        """The batch at a place that `headers_from` gave."""
        return self._batches[index]
