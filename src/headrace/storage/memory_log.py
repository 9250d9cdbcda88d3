"""The logs of in-memory topics: offsets, transactions and reads as on disk, and a fixed size.

The oldest batches are deleted as soon as a new one would exceed `retention.bytes`, one by one and with the
append. A restart begins with an empty log, but offsets continue: a consumer that kept its position would
otherwise read offset 1,000 of the old log as offset 1,000 of the new one.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.protocol.batch import BatchHeader, read_header
from headrace.storage.base_log import BaseLog
from headrace.storage.checkpoint import Checkpoint
from headrace.storage.errors import DiskError, InvalidConfig, RecordTooLarge
from headrace.storage.time_search import search_latest_time, search_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.protocol.batch import BatchHeader
    from headrace.storage.config import TopicConfig
    from headrace.storage.time_search import Search


NO_TIMESTAMP: Final = -1
PIECE_BYTES: Final = 256 * 1024
"""Small batches are joined to pieces of about this size before they are sent."""
EMPTY_PLACES: Final = 1024


class MemoryRange(NamedTuple):
    """Whole batches in memory, ready to be sent; they stay readable after the log has deleted them."""

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


BLOCK_OFFSETS: Final = 2**24
"""Offsets that are reserved at once: one small write to the disk for so many records."""


def keep_nothing(_end: int) -> None:
    """The reservation of a log that is never opened again."""


class MemoryLog(BaseLog):
    """The log of one partition of a topic with `headrace.storage=memory`."""

    def __init__(
        self, config: TopicConfig, *, start_offset: int = 0, reserve: Callable[[int], None] = keep_nothing
    ) -> None:
        super().__init__(config)
        self.needs_sync = False
        self.start_offset = self.end_offset = self.high_watermark = start_offset
        self.reserved_end = start_offset
        """Below this offset a restart cannot give an offset a second time."""
        self._reserve = reserve
        self._batches = MemoryBatches()

    @property
    def size(self) -> int:
        """Bytes of the batches that are kept."""
        return self._batches.size

    def _write(self, batch: memoryview | bytearray, header: BatchHeader, last_offset: int) -> None:
        limit = self.config.retention_bytes
        if len(batch) > limit:
            raise RecordTooLarge(
                f"a record batch of {len(batch)} bytes, and this topic keeps {limit} bytes in memory "
                "(retention.bytes): send smaller batches or raise the topic's limit"
            )
        if last_offset >= self.reserved_end:
            end = last_offset + BLOCK_OFFSETS
            self._reserve(end)
            self.reserved_end = end
        while self._batches.size + len(batch) > limit:
            self._drop_first()
        self._batches.add(bytes(batch), header, last_offset)

    def _appended(self) -> None:
        self.high_watermark = self.end_offset

    # ---------------------------------------------------------------- the beginning

    def _drop_first(self) -> None:
        self._begin_at(self._batches.first_offsets_end)

    def _begin_at(self, offset: int) -> None:
        self.start_offset = max(self.start_offset, offset)
        self._batches.drop_before(self.start_offset)
        self.aborted.forget_before(self.start_offset)

    def move_start(self, offset: int) -> None:
        """Move the start of the log to `offset`, and forget the batches that lie before it."""
        self._check_start(offset)
        self._begin_at(offset)

    def apply_retention(self, now_ms: int) -> int:
        """Forget what is too old, or too much since the topic was altered; gives how many bytes went."""
        before = self.size
        while self.size > self.config.retention_bytes or self._is_expired(now_ms):
            self._drop_first()
        return before - self.size

    def _is_expired(self, now_ms: int) -> bool:
        oldest_ms, retention_ms = self._batches.oldest_ms, self.config.retention_ms
        return oldest_ms is not None and retention_ms >= 0 and oldest_ms < now_ms - retention_ms

    # ---------------------------------------------------------------- reading

    def read(self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool) -> MemoryRange | None:
        """Whole batches from the one that holds `offset`, below `end_offset`; None when there is nothing yet.

        With `at_least_one` the first batch comes even if it is larger than `max_bytes`.
        """
        if self._has_read_all(offset, end_offset):
            return None
        return self._batches.select(offset, end_offset, max_bytes, at_least_one=at_least_one)

    def batches(self, offset: int) -> Iterator[bytes]:
        """Each batch from `offset` to the end."""
        return self._batches.from_offset(offset)

    def next_batch(self, offset: int) -> BatchHeader | None:
        """The header of the batch that holds `offset`, or of the first after it."""
        batch = self._batches.find(offset)
        return None if batch is None else read_header(batch)

    def search_time(self, timestamp: int) -> Search:
        """The first record that is not older than `timestamp`, found in steps."""
        return search_time([self._batches], timestamp, self.start_offset)

    def search_latest_time(self) -> Search:
        """The record with the largest time, found in steps."""
        return search_latest_time([self._batches], self.start_offset)

    def size_from(self, offset: int) -> int:
        """Bytes of the batches from the one that holds `offset` to the end."""
        return self._batches.size_from(offset)

    def offset_within(self, size: int) -> int:
        """The first offset from which on all batches together have at most `size` bytes."""
        return self.start_offset if self.size <= size else self._batches.offset_within(size)

    # ---------------------------------------------------------------- life

    def sync(self) -> int:
        """Nothing gets safer than it is; gives the end of the log."""
        return self.end_offset

    def synced(self, end_offset: int) -> None:
        """Readers see everything already."""

    def forget(self) -> None:
        """The topic was deleted: give the memory back."""
        self.is_deleted = True
        self._batches = MemoryBatches()


Key = tuple[str, int]


class MemoryPartitions:
    """All memory logs; on disk is one small file with the offset from which each goes on."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._ends = Checkpoint(path)
        self._path = path
        self._limit_bytes = limit_bytes
        self._logs: dict[Key, MemoryLog] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._logs

    @property
    def promised_bytes(self) -> int:
        """What all partitions together may hold."""
        return sum(log.config.retention_bytes for log in self._logs.values())

    def check_room(self, more_bytes: int) -> None:
        """Pass when partitions may hold so much more, or raise `InvalidConfig`."""
        if self.promised_bytes + more_bytes > self._limit_bytes:
            raise InvalidConfig(
                f"topics in memory may hold {self._limit_bytes} bytes together, {self.promised_bytes} of "
                f"them are promised to partitions that exist, and this needs {more_bytes} more: lower "
                "retention.bytes, use fewer partitions, or start the broker with a larger "
                "--memory-topics-bytes"
            )

    def open(self, key: Key, config: TopicConfig) -> MemoryLog:
        """An empty log, whose offsets go on where an earlier one of this partition ended."""
        start_offset = self._ends.take(key) or 0
        log = MemoryLog(config, start_offset=start_offset, reserve=lambda end: self._save({key: end}))
        self._logs[key] = log
        return log

    def delete(self, key: Key) -> None:
        """Delete a partition and its offsets: a new topic of that name starts at offset 0."""
        self._logs.pop(key).forget()
        self._save({})

    def discard(self, key: Key) -> None:
        """Forget the offsets of a partition that is not open: the broker died while it deleted the topic."""
        if self._ends.take(key) is not None:
            self._save({})

    def close(self) -> None:
        """Give back the offsets that were reserved and not used."""
        for log in self._logs.values():
            log.reserved_end = log.end_offset
        self._save({})

    def _save(self, reserved: dict[Key, int]) -> None:
        ends = {key: log.reserved_end for key, log in self._logs.items()} | reserved
        try:
            self._ends.save({key: end for key, end in ends.items() if end})
        except OSError as fault:
            raise DiskError(
                f"{self._path} could not be written: {fault.strerror}; free some space"
            ) from fault
