"""Segments as compaction reads and writes them, at a limited number of bytes per second."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Final

from headrace.protocol.batch import HEADER_BYTES, MIN_LENGTH, BatchHeader, check_batch, read_header
from headrace.protocol.errors import CorruptBatch
from headrace.storage.aborted import pack_entries
from headrace.storage.compaction.request import CleanedGroup
from headrace.storage.compaction.swap import CLEANED
from headrace.storage.index import NO_TIMESTAMP, OffsetIndex, TimeIndex
from headrace.storage.segment import segment_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.protocol.compression import Bytes
    from headrace.storage.producers import AbortedTransaction


class Throttle:
    """Lets `bytes_per_s` pass on average since it was made, by waiting; None lets all pass."""

    def __init__(
        self,
        bytes_per_s: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._started = clock()
        self._spent = 0

    def spend(self, count: int) -> None:
        """Return when `count` more bytes are within the limit."""
        if self._bytes_per_s is None:
            return
        self._spent += count
        due = self._started + self._spent / self._bytes_per_s
        wait = due - self._clock()
        if wait > 0:
            self._sleep(wait)


CHUNK_BYTES: Final = 1024 * 1024


def read_batches(
    path: Path, throttle: Throttle, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Header and bytes of each batch in the file, checked; the bytes are good until the next is asked for.

    No more than `chunk_bytes`, or one batch where that is larger, is in memory. A batch that is torn or fails
    its checksum raises `CorruptBatch`: a closed segment has none, unless the disk lost it.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        position = 0
        while position < size:
            buffer = memoryview(os.pread(file.fileno(), chunk_bytes, position))
            throttle.spend(len(buffer))
            used = 0
            for header, batch in _whole_batches(buffer):
                yield header, batch
                used += header.size
            if used == 0:
                chunk_bytes = _needed_bytes(path, buffer, position, size)
            position += used


def _whole_batches(buffer: memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
    position = 0
    while len(buffer) - position >= HEADER_BYTES:
        header = read_header(buffer, position)
        if header.length < MIN_LENGTH or position + header.size > len(buffer):
            return
        batch = buffer[position : position + header.size]
        check_batch(batch, header)
        yield header, batch
        position += header.size


def _needed_bytes(path: Path, buffer: memoryview, position: int, size: int) -> int:
    """How much to read for the batch that did not fit into `buffer`."""
    if len(buffer) >= HEADER_BYTES:
        header = read_header(buffer)
        if header.length >= MIN_LENGTH and len(buffer) < header.size <= size - position:
            return header.size
    raise CorruptBatch(f"{path} holds no whole batch at {position}: restore it, or delete the segment")


_BUFFER_BYTES = 1024 * 1024


class CleanedSegment:
    """The one segment into which neighbours are cleaned."""

    def __init__(self, directory: Path, base_offset: int, interval_bytes: int, throttle: Throttle) -> None:
        self.base_offset = base_offset
        self.size = 0
        self.sources: list[int] = []
        self.changed = False
        """Whether anything differs from the one segment that was read."""
        self._directory = directory
        self._interval_bytes = interval_bytes
        self._throttle = throttle
        self._offsets = OffsetIndex(base_offset)
        self._times = TimeIndex(base_offset)
        self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = base_offset
        self._unindexed_bytes = 0
        # Whatever a dead compactor left is not written into, for it might not be quite dead.
        self._path(".log").unlink(missing_ok=True)
        self._file = self._path(".log").open("xb", buffering=_BUFFER_BYTES)

    def append(self, batch: Bytes) -> None:
        """Write one batch behind the others."""
        header = read_header(batch)
        self._index(header)
        self._file.write(batch)
        self._throttle.spend(header.size)
        self.size += header.size

    def finish(self, aborted: list[AbortedTransaction], modified_ns: int) -> CleanedGroup:
        """Write the indexes and sync every file; the log file keeps the age of what it replaces."""
        self._times.add(self._max_timestamp, self._max_timestamp_offset)
        contents = {".index": self._offsets.dump(), ".timeindex": self._times.dump()}
        if aborted:
            contents[".txnindex"] = pack_entries(aborted)
        for suffix, content in contents.items():
            with self._path(suffix).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        self._file.flush()
        os.utime(self._file.fileno(), ns=(modified_ns, modified_ns))
        os.fsync(self._file.fileno())
        self._file.close()
        return CleanedGroup(replaces=tuple(self.sources), suffixes=(".log", *contents))

    def discard(self) -> None:
        """Delete what was written."""
        with contextlib.suppress(OSError):  # a full disk refuses the last bytes, which are not needed
            self._file.close()
        for suffix in (".log", ".index", ".timeindex", ".txnindex"):
            self._path(suffix).unlink(missing_ok=True)

    def _index(self, header: BatchHeader) -> None:
        """Note the batch in the indexes once enough bytes have passed since their last entries."""
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp = header.max_timestamp
            self._max_timestamp_offset = header.last_offset
        if self._unindexed_bytes > self._interval_bytes:
            self._offsets.add(header.last_offset, self.size)
            self._times.add(self._max_timestamp, self._max_timestamp_offset)
            self._unindexed_bytes = 0
        self._unindexed_bytes += header.size

    def _path(self, suffix: str) -> Path:
        return self._directory / (segment_name(self.base_offset, suffix) + CLEANED)
