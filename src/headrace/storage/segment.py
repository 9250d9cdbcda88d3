"""A log segment: a `.log` file of batches, and its indexes. A pool bounds the number of open files.

The last segment of a partition is active: its indexes are in memory. Files are opened on use, and the pool
keeps the most recently used ones open. A position is a byte offset in the log file, at a batch boundary.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from bisect import bisect_right
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headrace.folders import replace_file
from headrace.protocol.batch import (
    COPY_STEP_BYTES,
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MIN_LENGTH,
    BatchHeader,
    read_header,
)
from headrace.storage.errors import DiskError
from headrace.storage.index import NO_TIMESTAMP, OffsetIndex, TimeIndex

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence
    from pathlib import Path

    from headrace.storage.remote_segment import SegmentManifest


CHUNK_BYTES: Final = 8192
MAX_UNINDEXED_BYTES: Final = 2**20
"""An offset index that ends further before the last batch has lost entries, and is rebuilt."""
SUFFIXES: Final = (".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".remote")

# Base offset, length and last offset delta.
_BATCH_START = struct.Struct(">qi11xi")


class LogFile:
    """An open segment file. It stays readable after its segment was deleted."""

    __slots__ = ("fd",)

    def __init__(self, path: Path, flags: int = os.O_RDONLY) -> None:
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def __del__(self) -> None:
        # Missing after a failed open.
        if hasattr(self, "fd"):
            os.close(self.fd)


class SegmentWriter(Protocol):
    """A segment that keeps its file open for writing."""

    def close_file(self) -> None:
        """Close the file; the next write opens it again."""
        ...


class FilePool:
    """The most recently used files: up to `limit` for reading, and as many for writing."""

    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._files: OrderedDict[Path, LogFile] = OrderedDict()
        self._written: dict[SegmentWriter, None] = {}
        # The event loop reads, and background threads sync.
        self._lock = threading.Lock()

    def open(self, path: Path) -> LogFile:
        """Open the file at `path`, or return it if it is open."""
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = LogFile(path)
                if len(self._files) > self._limit:
                    self._files.popitem(last=False)
            else:
                self._files.move_to_end(path)
            return file

    def keep_open(self, writer: SegmentWriter) -> None:
        """Register a file that is open for writing; closes the oldest one above the limit."""
        with self._lock:
            self._written[writer] = None
            if len(self._written) > self._limit:
                first = next(iter(self._written))
                del self._written[first]
                first.close_file()

    def closed(self, writer: SegmentWriter) -> None:
        """Unregister a file."""
        with self._lock:
            self._written.pop(writer, None)

    def drop(self, path: Path) -> None:
        """Drop a file that was deleted or replaced; its readers keep it open."""
        with self._lock:
            self._files.pop(path, None)


class FileRange(NamedTuple):
    """A range of a log file with complete batches, to be sent."""

    file: LogFile
    position: int
    size: int

    def read(self) -> bytes:
        """Read the range."""
        return os.pread(self.file.fd, self.size, self.position)

    def header(self) -> BatchHeader:
        """The header of the first batch."""
        return read_header(os.pread(self.file.fd, HEADER_BYTES, self.position))


class BatchPosition(NamedTuple):
    """A batch in a log file."""

    position: int
    size: int
    base_offset: int
    last_offset: int


def segment_name(base_offset: int, suffix: str = ".log") -> str:
    """The file name of a segment, as in Kafka."""
    return f"{base_offset:020d}{suffix}"


def walk(file: LogFile, position: int, end: int, chunk_bytes: int = CHUNK_BYTES) -> Iterator[BatchPosition]:
    """Yield the complete batches from `position` to `end`; stops at the first incomplete one."""
    buffer, start = b"", position
    while position + HEADER_BYTES <= end:
        at = position - start
        if at + HEADER_BYTES > len(buffer):
            buffer, start, at = os.pread(file.fd, chunk_bytes, position), position, 0
            if len(buffer) < HEADER_BYTES:
                return
        base_offset, length, delta = _BATCH_START.unpack_from(buffer, at)
        size = length + LENGTH_OVERHEAD
        if length < MIN_LENGTH or position + size > end:
            return
        yield BatchPosition(position, size, base_offset, base_offset + delta)
        position += size


class LogSegment:
    """The batches from `base_offset` to before the next segment."""

    __slots__ = (
        "_active_file",
        "_offset_index",
        "_pool",
        "_staged",
        "_time_index",
        "_unindexed_bytes",
        "base_offset",
        "directory",
        "first_timestamp",
        "is_deleted",
        "manifest",
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
        self.manifest: SegmentManifest | None = None
        """Describes the copy in the archive; None if there is none."""
        self._pool = pool
        self._active_file: LogFile | None = None
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        self._unindexed_bytes = 0
        self._staged: memoryview | bytearray | None = None

    def activate(self) -> None:
        """Make the segment writable; one with batches continues its indexes."""
        try:
            LogFile(self.path, os.O_RDWR | os.O_CREAT)  # closed again at once
        except OSError as fault:
            raise DiskError(f"{self.path} could not be created: {fault.strerror}; free disk space") from fault
        if self.size == 0:
            self.begin_indexes()
        else:
            self.load_max_timestamp()
            self.load_first_timestamp()
            self._unindexed_bytes = self.size
        # They are in memory now; on disk they show that a segment was closed.
        for suffix in (".index", ".timeindex"):
            self.path.with_suffix(suffix).unlink(missing_ok=True)

    def load_first_timestamp(self) -> int:
        """The timestamp of the first batch, read from the file if it is not known."""
        if self.first_timestamp == NO_TIMESTAMP and self.size:
            self.first_timestamp = next((header.max_timestamp for _, header in self.headers()), NO_TIMESTAMP)
        return self.first_timestamp

    def truncate(self, size: int) -> None:
        """Truncate the log file at a batch boundary."""
        os.truncate(self.path, size)
        self.size = size

    @property
    def file(self) -> LogFile:
        """The open log file."""
        return self._active_file or self._pool.open(self.path)

    def append(self, batch: bytes | bytearray | memoryview) -> int:
        """Append a batch; returns its position. A failed write is undone."""
        position, file = self.size, self._active_file or self._open_for_writing()
        unwritten = batch if self._staged is None else self._take_staged(batch)
        try:
            if os.pwrite(file.fd, unwritten, position) != len(unwritten):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as fault:
            os.ftruncate(file.fd, position)
            raise DiskError(f"{self.path} could not be written: {fault.strerror}; free disk space") from fault
        self.size = position + len(batch)
        return position

    def stage(self, batch: memoryview) -> Generator[None, None, None]:
        """Write a large batch behind the end of the segment, without its header; yields between the steps.

        `append` of the same batch then writes its header only. Until then the segment ends before it, also
        after a crash: where its header would be there are zeros. An append of another batch discards it.
        """
        self.discard_staged()
        position = self.size
        self._staged = batch
        for start in range(HEADER_BYTES, len(batch), COPY_STEP_BYTES):
            if self._staged is not batch:
                return
            piece = batch[start : start + COPY_STEP_BYTES]
            try:
                file = self._active_file or self._open_for_writing()
                is_written = os.pwrite(file.fd, piece, position + start) == len(piece)
            except (OSError, DiskError):
                is_written = False
            if not is_written:
                self.discard_staged()  # `append` meets the same fault, and reports it
                return
            yield

    def _take_staged(self, batch: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
        """What of a batch is not in the file yet."""
        if self._staged is not batch:
            self.discard_staged()
            return batch
        self._staged = None
        return batch[:HEADER_BYTES]

    def discard_staged(self) -> None:
        """Remove what was staged and not appended."""
        if self._staged is not None:
            self._staged = None
            with suppress(FileNotFoundError):  # the topic was deleted meanwhile
                os.truncate(self.path, self.size)

    def _open_for_writing(self) -> LogFile:
        try:
            file = self._active_file = LogFile(self.path, os.O_RDWR)
        except OSError as fault:
            raise DiskError(f"{self.path} could not be opened: {fault.strerror}") from fault
        self._pool.keep_open(self)
        return file

    def close_file(self) -> None:
        """Close the file; the pool calls this above its limit."""
        self._active_file = None

    def index_batch(self, header: BatchHeader, position: int, last_offset: int, interval_bytes: int) -> None:
        """Add index entries for the batch at `position`, at most one per `interval_bytes`."""
        if header.max_timestamp > self.max_timestamp:
            self.max_timestamp = header.max_timestamp
            self.max_timestamp_offset = last_offset
        if self.first_timestamp == NO_TIMESTAMP:
            # Not the base timestamp: with LogAppendTime that is still the client's.
            self.first_timestamp = header.max_timestamp
        if self._unindexed_bytes > interval_bytes:
            self.offset_index.add(last_offset, position)
            self.time_index.add(self.max_timestamp, self.max_timestamp_offset)
            self._unindexed_bytes = 0
        self._unindexed_bytes += header.length + LENGTH_OVERHEAD

    @property
    def offset_index(self) -> OffsetIndex:
        """The offset index, from its file or rebuilt from the log."""
        if self._offset_index is None:
            self._load_indexes()
        assert self._offset_index is not None
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        """The time index, from its file or rebuilt from the log."""
        if self._time_index is None:
            self._load_indexes()
        assert self._time_index is not None
        return self._time_index

    def load_max_timestamp(self) -> int:
        """The largest timestamp of a closed segment, from its time index."""
        if self.max_timestamp == NO_TIMESTAMP and len(self.time_index):
            self.max_timestamp = self.time_index.max_timestamp
            self.max_timestamp_offset = self.time_index.offsets[-1]
        return self.max_timestamp

    def load_age_ms(self) -> int:
        """The largest timestamp of the segment, or its modification time if its records have none."""
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
        if self._matches(offsets, times):
            self._offset_index, self._time_index = offsets, times
        else:
            self.rebuild_indexes()

    def _matches(self, offsets: OffsetIndex, times: TimeIndex) -> bool:
        """Whether indexes match the log: their last entries are right, and they reach its end."""
        if not self.size or not len(times):
            return not self.size
        start = offsets.positions[-1] if len(offsets) else 0
        tail = list(self.headers(start))
        if not tail or (len(offsets) and tail[0][1].last_offset != offsets.offsets[-1]):
            return False
        reaches_end = tail[-1][0] - start <= MAX_UNINDEXED_BYTES
        is_latest = max(header.max_timestamp for _, header in tail) <= times.max_timestamp
        return reaches_end and is_latest and self._matches_time(offsets, times)

    def _matches_time(self, offsets: OffsetIndex, times: TimeIndex) -> bool:
        """Whether the last entry of the time index has the timestamp of its batch."""
        latest = times.offsets[-1]
        for _, header in self.headers(offsets.floor(latest)):
            if header.last_offset >= latest:
                return header.last_offset == latest and header.max_timestamp == times.max_timestamp
        return False

    def rebuild_indexes(self, interval_bytes: int = 4096) -> None:
        """Rebuild both indexes from the log file, and save them."""
        self.begin_indexes()
        for position, header in self.headers():
            self.index_batch(header, position, header.last_offset, interval_bytes)
        self.save_indexes()

    def begin_indexes(self) -> None:
        """Clear the indexes before they are rebuilt."""
        self._offset_index, self._time_index = OffsetIndex(self.base_offset), TimeIndex(self.base_offset)
        self.max_timestamp, self.max_timestamp_offset = NO_TIMESTAMP, self.base_offset
        self.first_timestamp = NO_TIMESTAMP
        self._unindexed_bytes = 0

    def save_indexes(self) -> None:
        """Write both index files; the time index ends with the largest timestamp of the segment."""
        self.time_index.add(self.max_timestamp, self.max_timestamp_offset)
        replace_file(self.path.with_suffix(".index"), self.offset_index.dump(), durable=False)
        replace_file(self.path.with_suffix(".timeindex"), self.time_index.dump(), durable=False)

    def hold(self) -> None:
        """Keep the file open and the indexes in memory while another file gets the segment's name."""
        self._active_file = self.file
        self.load_max_timestamp()

    def close(self) -> None:
        """Close the segment for writing."""
        self._active_file = None
        self._pool.closed(self)

    def sync(self) -> None:
        """Sync the log file."""
        try:
            file = self.file
        except FileNotFoundError:
            if not self.is_deleted:
                raise
            return  # retention deleted it meanwhile
        os.fdatasync(file.fd)

    def locate(self, offset: int) -> BatchPosition | None:
        """The batch that holds `offset`, or the next one after a compaction gap."""
        for step in self.walk(self.offset_index.floor(offset)):
            if step.last_offset >= offset:
                return step
        return None

    def walk(self, position: int) -> Iterator[BatchPosition]:
        """Yield the batches from `position` on."""
        return walk(self.file, position, self.size)

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of the batches from `position` on."""
        file = self.file
        for step in walk(file, position, self.size):
            yield step.position, read_header(os.pread(file.fd, HEADER_BYTES, step.position))

    def headers_from(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of the batches from the one that holds `offset`, or a few before it."""
        return self.headers(self.offset_index.floor(offset))

    def offset_before(self, timestamp: int) -> int:
        """An offset at or before the first record that is not older than `timestamp`."""
        return self.time_index.floor(timestamp)

    def read(self, position: int, size: int) -> bytes:
        """Read a batch, or a part of it."""
        # The variable keeps the file open: a background thread may close the segment meanwhile.
        file = self.file
        return os.pread(file.fd, size, position)

    def range(self, position: int, size: int) -> FileRange:
        """The batches from `position` on, with `size` bytes."""
        return FileRange(self.file, position, size)

    def delete(self) -> None:
        """Mark the segment as deleted; its files stay until `unlink`."""
        self.is_deleted = True
        self._staged = None
        self.close()
        self._pool.drop(self.path)

    def unlink(self) -> None:
        """Delete the files; readers keep the log file open. Objects in the archive are deleted later."""
        for suffix in (".uploading", ".remote"):
            with suppress(FileNotFoundError):
                self.path.with_suffix(suffix).rename(self.path.with_suffix(".remote-deleted"))
        for suffix in SUFFIXES:
            self.path.with_suffix(suffix).unlink(missing_ok=True)


class LocatedBatch(NamedTuple):
    """A batch and its segment."""

    segment: LogSegment
    step: BatchPosition


def _base_offset(segment: LogSegment) -> int:
    return segment.base_offset


def find_batch(segments: Sequence[LogSegment], offset: int) -> LocatedBatch | None:
    """The batch that holds `offset`, or the next one after a compaction gap."""
    index = bisect_right(segments, offset, key=_base_offset) - 1
    for segment in segments[max(index, 0) :]:
        step = segment.locate(offset)
        if step is not None:
            return LocatedBatch(segment, step)
    return None


def fitting_range(found: LocatedBatch, limit: int, max_bytes: int, *, at_least_one: bool) -> FileRange | None:
    """Batches from the one found to the position `limit`, up to `max_bytes`.

    With `at_least_one` the first batch is included even if it is larger.
    """
    segment, step = found
    position = step.position
    size = limit - position
    if size > max_bytes:
        size = segment.offset_index.boundary(position, position + max_bytes) - position
        if size <= 0:
            size = step.size if step.size <= max_bytes or at_least_one else 0
    return segment.range(position, size) if size > 0 else None


def bytes_from(segments: Sequence[LogSegment], offset: int) -> int:
    """The size of the batches from the one that holds `offset` to the end."""
    found = find_batch(segments, offset)
    if found is None:
        return 0
    later = sum(segment.size for segment in segments if segment.base_offset > found.segment.base_offset)
    return found.segment.size - found.step.position + later


def first_offset_within(segments: Sequence[LogSegment], size: int) -> int | None:
    """The first offset from which on the batches have at most `size` bytes; None if all have."""
    for segment in reversed(segments):
        if segment.size > size:
            return _offset_at(segment, segment.size - size)
        size -= segment.size
    return None


def _offset_at(segment: LogSegment, position: int) -> int:
    """The offset after the first batch that ends at or after `position`."""
    start = segment.offset_index.boundary(0, position - 1)
    return next(step.last_offset + 1 for step in segment.walk(start) if step.position + step.size >= position)
