"""One segment of a partition: a `.log` file of batches, and its indexes.

The last segment of a partition is active: its indexes grow in memory. A file is open only while it is used:
those that were written or read last stay open, as many as the pool allows. Positions are bytes in the log
file; all of them are boundaries of batches.
"""

from __future__ import annotations

import errno
import os
import struct
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.files import replace_file
from headrace.protocol.batch import HEADER_BYTES, LENGTH_OVERHEAD, MIN_LENGTH, BatchHeader, read_header
from headrace.storage.errors import DiskError
from headrace.storage.files import FilePool, LogFile
from headrace.storage.index import NO_TIMESTAMP, OffsetIndex, TimeIndex

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


CHUNK_BYTES: Final = 8192
MAX_UNINDEXED_BYTES: Final = 2**20
"""An offset index that ends further than this before the last batch has lost entries, and is made again."""
SUFFIXES: Final = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")

# Base offset, length and last offset delta: all that a walk along batches needs.
_STEP = struct.Struct(">qi11xi")


class FileRange(NamedTuple):
    """Bytes of a log file that hold whole batches, ready to be sent."""

    file: LogFile
    position: int
    size: int

    def read(self) -> bytes:
        """All of its bytes."""
        return os.pread(self.file.fd, self.size, self.position)


class BatchPosition(NamedTuple):
    """One batch met on a walk along a log file."""

    position: int
    size: int
    base_offset: int
    last_offset: int


def segment_name(base_offset: int, suffix: str = ".log") -> str:
    """The file name of a segment, as Kafka writes it."""
    return f"{base_offset:020d}{suffix}"


def walk(file: LogFile, position: int, end: int, chunk_bytes: int = CHUNK_BYTES) -> Iterator[BatchPosition]:
    """Each whole batch of the file from `position` to `end`; stops at the first that is torn."""
    buffer, start = b"", position
    while position + HEADER_BYTES <= end:
        at = position - start
        if at + HEADER_BYTES > len(buffer):
            buffer, start, at = os.pread(file.fd, chunk_bytes, position), position, 0
            if len(buffer) < HEADER_BYTES:
                return
        base_offset, length, delta = _STEP.unpack_from(buffer, at)
        size = length + LENGTH_OVERHEAD
        if length < MIN_LENGTH or position + size > end:
            return
        yield BatchPosition(position, size, base_offset, base_offset + delta)
        position += size


class Segment:
    """Batches from `base_offset` on, up to the next segment."""

    __slots__ = (
        "_active_file",
        "_offset_index",
        "_pool",
        "_time_index",
        "_unindexed_bytes",
        "base_offset",
        "directory",
        "first_timestamp",
        "is_deleted",
        "max_timestamp",
        "max_timestamp_offset",
        "path",
        "size",
    )

    def __init__(self, directory: Path, base_offset: int, pool: FilePool) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.path = directory / segment_name(base_offset)
        self.size = self.path.stat().st_size if self.path.exists() else 0
        self.first_timestamp = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.is_deleted = False
        self._pool = pool
        self._active_file: LogFile | None = None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._unindexed_bytes = 0

    def activate(self) -> None:
        """Let the segment be written; one that holds batches goes on with the indexes that it has."""
        try:
            LogFile(self.path, os.O_RDWR | os.O_CREAT)  # closed again at once
        except OSError as fault:
            raise DiskError(f"{self.path} could not be made: {fault.strerror}; free some space") from fault
        if self.size == 0:
            self.begin_indexes()
        else:
            self.load_max_timestamp()
            self.load_first_timestamp()
            self._unindexed_bytes = self.size
        # From here on they are in memory; on disk they are the sign of a segment that was closed.
        for suffix in (".index", ".timeindex"):
            self.path.with_suffix(suffix).unlink(missing_ok=True)

    def load_first_timestamp(self) -> int:
        """The time of the first batch, read from the file when it is not known."""
        if self.first_timestamp == NO_TIMESTAMP and self.size:
            self.first_timestamp = next((header.max_timestamp for _, header in self.headers()), NO_TIMESTAMP)
        return self.first_timestamp

    def truncate(self, size: int) -> None:
        """Cut the log file at a boundary between batches."""
        os.truncate(self.path, size)
        self.size = size

    @property
    def file(self) -> LogFile:
        """The open log file."""
        return self._active_file or self._pool.open(self.path)

    def append(self, batch: bytes | bytearray | memoryview) -> int:
        """Write one placed batch at the end; gives its position. A failed write leaves nothing behind."""
        position, file = self.size, self._active_file or self._open_for_writing()
        try:
            written = os.pwrite(file.fd, batch, position)
            if written != len(batch):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as fault:
            os.ftruncate(file.fd, position)
            raise DiskError(f"{self.path} could not be written: {fault.strerror}; free some space") from fault
        self.size = position + written
        return position

    def _open_for_writing(self) -> LogFile:
        try:
            file = self._active_file = LogFile(self.path, os.O_RDWR)
        except OSError as fault:
            raise DiskError(f"{self.path} could not be opened: {fault.strerror}") from fault
        self._pool.keep_open(self)
        return file

    def close_file(self) -> None:
        """Close the file: others were written later, and there are only so many descriptors."""
        self._active_file = None

    def note(self, header: BatchHeader, position: int, last_offset: int, interval_bytes: int) -> None:
        """Index the batch at `position` once `interval_bytes` have passed since the last entry."""
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = last_offset
        if self.first_timestamp == NO_TIMESTAMP:
            # Not the base timestamp: that stays the client's own when the broker stamps its time on a batch.
            self.first_timestamp = header.max_timestamp
        if self._unindexed_bytes > interval_bytes:
            self.offset_index.add(last_offset, position)
            self.time_index.add(self.max_timestamp, self.max_timestamp_offset)
            self._unindexed_bytes = 0
        self._unindexed_bytes += header.length + LENGTH_OVERHEAD

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index, read from its file or made again from the log."""
        if self._offset_index is None:
            self._load_indexes()
        assert self._offset_index is not None
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        """The time index, read from its file or made again from the log."""
        if self._time_index is None:
            self._load_indexes()
        assert self._time_index is not None
        return self._time_index

    def load_max_timestamp(self) -> int:
        """The largest time in a closed segment, and the offset that had it, from its time index."""
        if self.max_timestamp == NO_TIMESTAMP and len(self.time_index):
            self.max_timestamp = self.time_index.max_timestamp
            self.max_timestamp_offset = self.time_index.offsets[-1]
        return self.max_timestamp

    def load_age_ms(self) -> int:
        """The largest time in the segment or, where its records have none, when it was last written."""
        timestamp = self.load_max_timestamp()
        return timestamp if timestamp >= 0 else self.path.stat().st_mtime_ns // 1_000_000

    def _load_indexes(self) -> None:
        try:
            offsets = OffsetIndex.load(self.base_offset, self.path.with_suffix(".index").read_bytes())
            times = TimeIndex.load(self.base_offset, self.path.with_suffix(".timeindex").read_bytes())
        except FileNotFoundError:
            self.rebuild_indexes()
            self.save_indexes()
            return
        if self._agrees_with(offsets, times):
            self._offset_index, self._time_index = offsets, times
        else:
            self.rebuild_indexes()

    def _agrees_with(self, offsets: OffsetIndex, times: TimeIndex) -> bool:
        """Whether indexes fit the log: their last entries are true, and they reach as far as it does."""
        if not self.size or not len(times):
            return not self.size
        start = offsets.positions[-1] if len(offsets) else 0
        tail = list(self.headers(start))
        if not tail or (len(offsets) and tail[0][1].last_offset != offsets.offsets[-1]):
            return False
        reaches_end = tail[-1][0] - start <= MAX_UNINDEXED_BYTES
        is_latest = max(header.max_timestamp for _, header in tail) <= times.max_timestamp
        return reaches_end and is_latest and self._holds_time(offsets, times)

    def _holds_time(self, offsets: OffsetIndex, times: TimeIndex) -> bool:
        """Whether the batch that the last entry of the time index names has that time."""
        latest = times.offsets[-1]
        for _, header in self.headers(offsets.floor(latest)):
            if header.last_offset >= latest:
                return header.last_offset == latest and header.max_timestamp == times.max_timestamp
        return False

    def rebuild_indexes(self, interval_bytes: int = 4096) -> None:
        """Make both indexes again from the log file, and save them."""
        self.begin_indexes()
        for position, header in self.headers():
            self.note(header, position, header.last_offset, interval_bytes)
        self.save_indexes()

    def begin_indexes(self) -> None:
        """Forget the indexes, because every batch is about to be noted again."""
        self._offset_index, self._time_index = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        self.first_timestamp = NO_TIMESTAMP
        self._unindexed_bytes = 0

    def save_indexes(self) -> None:
        """Write both index files; the time index ends with the largest time of the segment."""
        self.time_index.add(self.max_timestamp, self.max_timestamp_offset)
        replace_file(self.path.with_suffix(".index"), self.offset_index.dump(), durable=False)
        replace_file(self.path.with_suffix(".timeindex"), self.time_index.dump(), durable=False)

    def hold(self) -> None:
        """Keep the file and the indexes as they are now, while another file takes the segment's name."""
        self._active_file = self.file
        self.load_max_timestamp()

    def close(self) -> None:
        """Close the segment for writing; readers open it again by name."""
        self._active_file = None
        self._pool.closed(self)

    def sync(self) -> None:
        """Make the log file survive power loss."""
        try:
            file = self.file
        except FileNotFoundError:
            if not self.is_deleted:
                raise
            return  # retention was quicker than the thread that syncs
        os.fdatasync(file.fd)

    def locate(self, offset: int) -> BatchPosition | None:
        """The batch that holds `offset`, or the first one after it when compaction removed it."""
        for step in self.walk(self.offset_index.floor(offset)):
            if step.last_offset >= offset:
                return step
        return None

    def walk(self, position: int) -> Iterator[BatchPosition]:
        """Each batch from `position` on."""
        return walk(self.file, position, self.size)

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Position and whole header of each batch from `position` on."""
        file = self.file
        for step in walk(file, position, self.size):
            yield step.position, read_header(os.pread(file.fd, HEADER_BYTES, step.position))

    def headers_from(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch, from the one that holds `offset` or a few before it."""
        return self.headers(self.offset_index.floor(offset))

    def offset_before(self, timestamp: int) -> int:
        """An offset at or before the first record that is not older than `timestamp`."""
        return self.time_index.floor(timestamp)

    def read(self, position: int, size: int) -> bytes:
        """The bytes of one batch, or of a part of it."""
        # The name keeps the file open: a thread of the disk may close the segment between two instructions.
        file = self.file
        return os.pread(file.fd, size, position)

    def delete(self) -> None:
        """Forget the segment; its files stay until `unlink`."""
        self.is_deleted = True
        self.close()
        self._pool.forget(self.path)

    def unlink(self) -> None:
        """Remove the files; a reader in the middle of the log file is not disturbed."""
        for suffix in SUFFIXES:
            self.path.with_suffix(suffix).unlink(missing_ok=True)


class LocatedBatch(NamedTuple):
    """One batch, and the segment in which it is."""

    segment: Segment
    step: BatchPosition


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def find_batch(segments: Sequence[Segment], offset: int) -> LocatedBatch | None:
    """The batch that holds `offset`, or the next one where compaction left a gap."""
    index = bisect_right(segments, offset, key=_base_offset) - 1
    for segment in segments[max(index, 0) :]:
        step = segment.locate(offset)
        if step is not None:
            return LocatedBatch(segment, step)
    return None


def fitting_range(found: LocatedBatch, limit: int, max_bytes: int, *, at_least_one: bool) -> FileRange | None:
    """Whole batches from the one found to the position `limit`, as many as `max_bytes` allow.

    With `at_least_one` the first batch comes even if it is larger.
    """
    segment, step = found
    position = step.position
    size = limit - position
    if size > max_bytes:
        size = segment.offset_index.boundary(position, position + max_bytes) - position
        if size <= 0:
            size = step.size if step.size <= max_bytes or at_least_one else 0
    return FileRange(segment.file, position, size) if size > 0 else None


def bytes_from(segments: Sequence[Segment], offset: int) -> int:
    """Bytes of the batches from the one that holds `offset` to the end."""
    found = find_batch(segments, offset)
    if found is None:
        return 0
    later = sum(segment.size for segment in segments if segment.base_offset > found.segment.base_offset)
    return found.segment.size - found.step.position + later


def first_offset_within(segments: Sequence[Segment], size: int) -> int | None:
    """The first offset from which on the batches have at most `size` bytes; None when all of them have."""
    for segment in reversed(segments):
        if segment.size > size:
            return _offset_at(segment, segment.size - size)
        size -= segment.size
    return None


def _offset_at(segment: Segment, position: int) -> int:
    """The offset after the first batch that ends at or behind `position`."""
    start = segment.offset_index.boundary(0, position - 1)
    return next(step.last_offset + 1 for step in segment.walk(start) if step.position + step.size >= position)
