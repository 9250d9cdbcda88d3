"""The logs of in-memory topics, with a maximum size.

An append deletes the oldest batches that exceed `retention.bytes`. After a restart a log is empty, but its
offsets continue: otherwise a consumer would mistake offset 1,000 of the new log for that of the old one.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left, bisect_right
from io import BytesIO
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.protocol.batch import COPY_STEP_BYTES, HEADER_BYTES, BatchHeader, read_header
from headrace.storage.checkpoint import OffsetCheckpoint
from headrace.storage.errors import DiskError, InvalidConfig, RecordTooLarge
from headrace.storage.log import Log
from headrace.storage.time_search import search_latest_time, search_time

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from headrace.storage.config import TopicConfig
    from headrace.storage.time_search import Search


NO_TIMESTAMP: Final = -1
CHUNK_BYTES: Final = 256 * 1024
"""Small batches are joined to chunks of about this size before they are sent."""
MAX_DELETED: Final = 1024
"""Deleted batches at the start of the lists before they are compacted."""


class MemoryRange(NamedTuple):
    """Complete batches in memory, to be sent. They stay readable after the log has deleted them."""

    batches: list[bytes]
    size: int

    def read(self) -> bytes:
        """Join the batches."""
        return b"".join(self.batches)

    def header(self) -> BatchHeader:
        """The header of the first batch."""
        return read_header(self.batches[0])

    def chunks(self) -> Iterator[bytes]:
        """Yield the batches in chunks for one system call each; a large batch is not copied."""
        first, size = 0, 0
        for position, batch in enumerate(self.batches):
            if size and size + len(batch) > CHUNK_BYTES:
                yield b"".join(self.batches[first:position])
                first, size = position, 0
            size += len(batch)
        if size:
            yield b"".join(self.batches[first:])


class MemoryBatches:
    """Batches in the order of offsets. A position is the number of bytes since the log was created."""

    def __init__(self) -> None:
        self._batches: list[bytes] = []
        self._last_offsets = array("q")
        self._ends = array("q")
        self._times = array("q")
        """The largest timestamp of each batch, or its append time if it has none."""
        self._latest = array("q")
        """The largest timestamp up to each batch."""
        self._first = 0
        self._end = 0

    def __len__(self) -> int:
        return len(self._batches) - self._first

    @property
    def size(self) -> int:
        """The size of all batches in bytes."""
        return self._end - self._start(self._first)

    def _start(self, index: int) -> int:
        """The position of a batch."""
        return self._ends[index - 1] if index else 0

    def add(self, batch: bytes, header: BatchHeader, last_offset: int) -> None:
        """Append a batch."""
        timestamp = header.max_timestamp
        self._end += len(batch)
        self._batches.append(batch)
        self._last_offsets.append(last_offset)
        self._ends.append(self._end)
        self._times.append(timestamp if timestamp >= 0 else time.time_ns() // 1_000_000)
        self._latest.append(max(timestamp, self._latest[-1]) if len(self._latest) else timestamp)

    # ---------------------------------------------------------------- start of the log

    @property
    def oldest_ms(self) -> int | None:
        """The timestamp of the first batch."""
        return self._times[self._first] if len(self) else None

    @property
    def second_offset(self) -> int:
        """The offset after the first batch."""
        return self._last_offsets[self._first] + 1

    def drop_first(self) -> None:
        """Delete the first batch."""
        self._batches[self._first] = b""
        self._first += 1
        if self._first > MAX_DELETED and self._first > len(self):
            self._remove_deleted()

    def drop_before(self, offset: int) -> None:
        """Delete the batches that end before `offset`."""
        while len(self) and self._last_offsets[self._first] < offset:
            self.drop_first()

    def _remove_deleted(self) -> None:
        # One deleted entry stays: its end is the position of the first batch.
        deleted = self._first - 1
        for column in (self._last_offsets, self._ends, self._times, self._latest):
            del column[:deleted]
        del self._batches[:deleted]
        self._first = 1

    # ---------------------------------------------------------------- reading

    def _index(self, offset: int) -> int:
        """The index of the batch that holds `offset`, or of the next one."""
        return bisect_left(self._last_offsets, offset, lo=self._first)

    def select(
        self, offset: int, end_offset: int, max_bytes: int, *, at_least_one: bool
    ) -> MemoryRange | None:
        """The batches from the one that holds `offset` to before `end_offset`, up to `max_bytes`."""
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
        """The batches from the one that holds `offset` on."""
        return iter(self._batches[self._index(offset) :])

    def find(self, offset: int) -> bytes | None:
        """The batch that holds `offset`, or the next one."""
        index = self._index(offset)
        return self._batches[index] if index < len(self._batches) else None

    def size_from(self, offset: int) -> int:
        """The size of the batches from the one that holds `offset` on."""
        return self._end - self._start(self._index(offset))

    def offset_within(self, size: int) -> int:
        """The first offset from which on the batches have at most `size` bytes, if all have more."""
        return self._last_offsets[bisect_left(self._ends, self._end - size, lo=self._first)] + 1

    # ---------------------------------------------------------------- time

    def load_max_timestamp(self) -> int:
        """An upper bound of all timestamps."""
        return self._latest[-1] if len(self) else NO_TIMESTAMP

    def offset_before(self, timestamp: int) -> int:
        """An offset at or before the first record that is not older than `timestamp`."""
        index = bisect_left(self._latest, timestamp, lo=self._first)
        return self._last_offsets[index - 1] + 1 if index else 0

    def headers_from(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield index and header of the batches from the one that holds `offset` on."""
        while (index := self._index(offset)) < len(self._batches):
            # Indexes change if batches are deleted between two steps.
            offset = self._last_offsets[index] + 1
            yield index, read_header(self._batches[index])

    def read(self, index: int, _size: int) -> bytes:
        """The batch at an index from `headers_from`."""
        return self._batches[index]


BLOCK_OFFSETS: Final = 2**24
"""Offsets that are reserved with one write to the disk."""


def no_reservation(_end: int) -> None:
    """For a log that is never opened again."""


class _StagedBatch(NamedTuple):
    """A batch that is being appended, and its copy, whose header is not complete yet."""

    batch: memoryview
    copy: BytesIO


class MemoryLog(Log):
    """The log of a partition with `headrace.storage=memory`."""

    def __init__(
        self, config: TopicConfig, *, start_offset: int = 0, reserve: Callable[[int], None] = no_reservation
    ) -> None:
        super().__init__(config)
        self.needs_sync = False
        self.start_offset = self.end_offset = self.high_watermark = start_offset
        self.reserved_end = start_offset
        """After a restart the log continues at this offset."""
        self._reserve = reserve
        self._batches = MemoryBatches()
        self._staged: _StagedBatch | None = None

    @property
    def size(self) -> int:
        """The size of all batches in bytes."""
        return self._batches.size

    def _write(self, batch: memoryview | bytearray, header: BatchHeader, last_offset: int) -> None:
        limit = self.config.retention_bytes
        if len(batch) > limit:
            raise RecordTooLarge(
                f"a record batch of {len(batch)} bytes, and this topic holds {limit} bytes in memory "
                "(retention.bytes): send smaller batches or raise the topic's limit"
            )
        if last_offset >= self.reserved_end:
            end = last_offset + BLOCK_OFFSETS
            self._reserve(end)
            self.reserved_end = end
        while self._batches.size + len(batch) > limit:
            self._drop_first()
        self._batches.add(self._copy(batch), header, last_offset)

    def _copy(self, batch: memoryview | bytearray) -> bytes:
        """The bytes of a batch to keep; of a staged batch only the header is copied."""
        staged, self._staged = self._staged, None
        if staged is None or staged.batch is not batch:
            return bytes(batch)
        staged.copy.seek(0)
        staged.copy.write(batch[:HEADER_BYTES])
        return staged.copy.getvalue()  # copies nothing

    def stage(self, batch: memoryview) -> Generator[None, None, None]:
        """Copy a large batch in steps, so that `append` of the same buffer copies its header only."""
        if len(batch) > self.config.retention_bytes:
            return
        copy = BytesIO()
        for start in range(0, len(batch), COPY_STEP_BYTES):
            copy.write(batch[start : start + COPY_STEP_BYTES])
            yield
        self._staged = _StagedBatch(batch, copy)

    def discard_staged(self) -> None:
        """Free the copy of a batch that was staged and not appended."""
        self._staged = None

    def _appended(self) -> None:
        self.high_watermark = self.end_offset

    # ---------------------------------------------------------------- start of the log

    def _drop_first(self) -> None:
        self._set_start(self._batches.second_offset)

    def _set_start(self, offset: int) -> None:
        self.start_offset = max(self.start_offset, offset)
        self._batches.drop_before(self.start_offset)
        self.aborted.drop_before(self.start_offset)

    def move_start(self, offset: int) -> None:
        """Move the log start offset, and delete the batches before it."""
        self._check_start(offset)
        self._set_start(offset)

    def apply_retention(self, now_ms: int) -> int:
        """Delete batches beyond the retention; returns the deleted bytes."""
        before = self.size
        while self.size > self.config.retention_bytes or self._is_expired(now_ms):
            self._drop_first()
        return before - self.size

    def _is_expired(self, now_ms: int) -> bool:
        oldest_ms, retention_ms = self._batches.oldest_ms, self.config.retention_ms
        return oldest_ms is not None and retention_ms >= 0 and oldest_ms < now_ms - retention_ms

    # ---------------------------------------------------------------- reading

    def read(self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool) -> MemoryRange | None:
        """The batches from the one that holds `offset` to before `end_offset`; None if there are none yet."""
        if self._has_read_all(offset, end_offset):
            return None
        return self._batches.select(offset, end_offset, max_bytes, at_least_one=at_least_one)

    def batches(self, offset: int) -> Iterator[bytes]:
        """The batches from `offset` to the end."""
        return self._batches.from_offset(offset)

    def next_batch(self, offset: int) -> BatchHeader | None:
        """The header of the batch that holds `offset`, or of the next one."""
        batch = self._batches.find(offset)
        return None if batch is None else read_header(batch)

    def search_time(self, timestamp: int) -> Search:
        """Search in steps for the first record that is not older than `timestamp`."""
        return search_time([self._batches], timestamp, self.start_offset)

    def search_latest_time(self) -> Search:
        """Search in steps for the record with the largest timestamp."""
        return search_latest_time([self._batches], self.start_offset)

    def size_from(self, offset: int) -> int:
        """The size of the batches from the one that holds `offset` to the end."""
        return self._batches.size_from(offset)

    def offset_within(self, size: int) -> int:
        """The first offset from which on all batches together have at most `size` bytes."""
        return self.start_offset if self.size <= size else self._batches.offset_within(size)

    # ---------------------------------------------------------------- durability

    def sync(self) -> int:
        """Return the end offset: nothing is on disk."""
        return self.end_offset

    def synced(self, end_offset: int) -> None:
        """Do nothing: the high watermark is the end offset."""

    def delete(self) -> None:
        """Free the memory of a deleted topic."""
        self.is_deleted = True
        self._batches = MemoryBatches()


Key = tuple[str, int]


class MemoryPartitions:
    """All in-memory logs. A checkpoint file has their next offsets."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self._ends = OffsetCheckpoint(path)
        self._path = path
        self._limit_bytes = limit_bytes
        self._logs: dict[Key, MemoryLog] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._logs

    @property
    def reserved_bytes(self) -> int:
        """The maximum size of all partitions together."""
        return sum(log.config.retention_bytes for log in self._logs.values())

    def check_room(self, more_bytes: int) -> None:
        """Raise `InvalidConfig` if partitions with `more_bytes` would exceed the memory limit."""
        if self.reserved_bytes + more_bytes > self._limit_bytes:
            raise InvalidConfig(
                f"topics in memory may hold {self._limit_bytes} bytes together, {self.reserved_bytes} of "
                f"them are reserved for existing partitions, and this needs {more_bytes} more: lower "
                "retention.bytes, use fewer partitions, or start the broker with a larger "
                "--memory-topics-bytes"
            )

    def open(self, key: Key, config: TopicConfig) -> MemoryLog:
        """Open an empty log whose offsets continue those from before the restart."""
        start_offset = self._ends.take(key) or 0
        log = MemoryLog(config, start_offset=start_offset, reserve=lambda end: self._save({key: end}))
        self._logs[key] = log
        return log

    def delete(self, key: Key) -> None:
        """Delete a partition and its offsets: a new topic of that name starts at offset 0."""
        self._logs.pop(key).delete()
        self._save({})

    def discard(self, key: Key) -> None:
        """Delete the offset of a partition that is not open: the broker crashed while deleting the topic."""
        if self._ends.take(key) is not None:
            self._save({})

    def close(self) -> None:
        """Release reserved offsets that were not used."""
        for log in self._logs.values():
            log.reserved_end = log.end_offset
        self._save({})

    def _save(self, reserved: dict[Key, int]) -> None:
        ends = {key: log.reserved_end for key, log in self._logs.items()} | reserved
        try:
            self._ends.save({key: end for key, end in ends.items() if end})
        except OSError as fault:
            raise DiskError(
                f"{self._path} could not be written: {fault.strerror}; free disk space"
            ) from fault
