"""Compacts the closed segments of a partition: two passes, in bounded memory and at a limited rate.

The first pass reads the dirty part and builds the offset map: the latest offset of each key. If the keys do
not fit, it stops, and the rest is left for the next compaction. The second pass reads from the start of the
log and writes the retained records into cleaned segments. Small adjacent segments are merged.
"""

from __future__ import annotations

import contextlib
import os
import time
from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from headrace.folders import sync_directory
from headrace.protocol.batch import HEADER_BYTES, MIN_LENGTH, BatchHeader, check_batch, read_header
from headrace.protocol.errors import CorruptBatch
from headrace.storage.compaction.offset_map import DictOffsetMap
from headrace.storage.compaction.plan import CLEANED, CleanedGroup, CompactionResult
from headrace.storage.compaction.rules import BatchFilter, CompactionRules, CompactionTransactions, walk_batch
from headrace.storage.errors import StorageError
from headrace.storage.index import NO_TIMESTAMP, OffsetIndex, TimeIndex, pack_entries
from headrace.storage.segment import segment_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.protocol.compression import Bytes
    from headrace.storage.compaction.offset_map import OffsetMap
    from headrace.storage.compaction.plan import CompactionRequest
    from headrace.storage.producers import AbortedTransaction

SMALL_BYTES: Final = 1024 * 1024
"""Below this size of the log a dict is faster than importing numba."""
_DICT_ENTRY_BYTES: Final = 256
_INT_MAX: Final = 2**31 - 1
CHUNK_BYTES: Final = 1024 * 1024
_BUFFER_BYTES: Final = 1024 * 1024


def compact(request: CompactionRequest, keys: OffsetMap | None = None) -> CompactionResult:
    """Write and sync cleaned segments next to the old ones; `swap_in` replaces them.

    After an error no file is left.
    """
    return _Compaction(request, keys or _new_offset_map(request)).run()


def _new_offset_map(request: CompactionRequest) -> OffsetMap:
    if sum(_log_path(request, base).stat().st_size for base in request.segments) < SMALL_BYTES:
        return DictOffsetMap(max(1, request.dedupe_buffer_bytes // _DICT_ENTRY_BYTES))
    from headrace.storage.compaction.hash_offset_map import HashOffsetMap

    return HashOffsetMap(request.dedupe_buffer_bytes, request.clean_until - request.first_dirty)


def _log_path(request: CompactionRequest, base_offset: int) -> Path:
    return request.directory / segment_name(base_offset)


class _Compaction:
    def __init__(self, request: CompactionRequest, keys: OffsetMap) -> None:
        self._request = request
        self._keys = keys
        self._throttle = Throttle(request.io_bytes_per_s)
        self._transactions = CompactionTransactions(request.aborted)
        self._bytes_before = 0
        self._bytes_after = 0

    def run(self) -> CompactionResult:
        request = self._request
        end = self._build_offset_map()
        rules = CompactionRules(
            end=end,
            clean_until=request.clean_until,
            now_ms=request.now_ms,
            delete_retention_ms=request.delete_retention_ms,
            active_producers=request.active_producers,
        )
        batch_filter = BatchFilter(rules, self._keys, self._transactions)
        groups = self._clean(batch_filter, end)
        sync_directory(request.directory)
        return CompactionResult(
            groups=tuple(groups),
            first_dirty=max(end, request.first_dirty),
            records_before=batch_filter.records_before,
            records_after=batch_filter.records_after,
            bytes_before=self._bytes_before,
            bytes_after=self._bytes_after,
            unreadable_batches=batch_filter.unreadable_batches,
        )

    def _segments(self) -> Iterator[tuple[int, int]]:
        """The base offset of each segment and of the next one."""
        return pairwise((*self._request.segments, self._request.segments_end))

    def _build_offset_map(self) -> int:
        """Add the keys of the dirty part; returns the end of the part that was read."""
        covered = self._request.first_dirty
        for header, batch in self._dirty_batches():
            if not self._add_batch(header, batch):
                if covered == self._request.first_dirty:
                    raise StorageError(
                        f"{self._request.directory} cannot be compacted: the keys of one batch do not fit "
                        f"into {self._request.dedupe_buffer_bytes} bytes; configure a larger buffer"
                    )
                return covered
            covered = header.next_offset
        return self._request.clean_until

    def _dirty_batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        request = self._request
        for base, following in self._segments():
            if following <= request.first_dirty or base >= request.clean_until:
                continue
            for header, batch in read_batches(_log_path(request, base), self._throttle):
                if header.next_offset > request.clean_until:
                    return
                if header.next_offset > request.first_dirty:
                    yield header, batch

    def _add_batch(self, header: BatchHeader, batch: memoryview) -> bool:
        """Add the keys of a batch; False if they do not fit."""
        if header.is_control or header.count == 0 or self._transactions.is_aborted(header):
            return True
        try:
            section, columns = walk_batch(self._keys, header, batch)
        except CorruptBatch:
            return True  # it is retained, and counted in the second pass
        return self._keys.add(section, columns, header.base_offset, self._request.first_dirty)

    def _clean(self, batch_filter: BatchFilter, end: int) -> list[CleanedGroup]:
        """Write cleaned segments for all segments that start before `end`."""
        groups: list[CleanedGroup] = []
        with ExitStack() as undo:
            target: CleanedSegment | None = None
            for base, following in self._segments():
                if base >= end:
                    break
                if target is None or not self._has_room(target, base, following):
                    if target is not None:
                        groups += self._finish(target)
                    target = self._open_target(base)
                    undo.callback(target.discard)
                self._clean_segment(batch_filter, target, base)
            if target is not None:
                groups += self._finish(target)
            undo.pop_all()
        return groups

    def _open_target(self, base: int) -> CleanedSegment:
        return CleanedSegment(
            self._request.directory, base, self._request.index_interval_bytes, self._throttle
        )

    def _has_room(self, target: CleanedSegment, base: int, following: int) -> bool:
        """Whether the segment at `base` fits into `target`, even if all of it is retained."""
        size = _log_path(self._request, base).stat().st_size
        fits = target.size + size <= self._request.segment_bytes
        # An index has 32-bit relative offsets.
        return fits and following - 1 - target.base_offset <= _INT_MAX

    def _clean_segment(self, batch_filter: BatchFilter, target: CleanedSegment, base: int) -> None:
        target.changed |= bool(target.sources)
        target.sources.append(base)
        for header, batch in read_batches(_log_path(self._request, base), self._throttle):
            self._bytes_before += header.size
            cleaned = batch_filter.apply(header, batch)
            target.changed |= cleaned is not batch
            if cleaned is not None:
                target.append(cleaned)
                self._bytes_after += len(cleaned)

    def _finish(self, target: CleanedSegment) -> list[CleanedGroup]:
        """The segments that `target` replaces; empty if it did not change."""
        aborted, self._transactions.kept_aborts = self._transactions.kept_aborts, []
        if not target.changed:
            target.discard()
            return []
        modified_ns = _log_path(self._request, target.sources[-1]).stat().st_mtime_ns
        return [target.finish(aborted, modified_ns)]


class Throttle:
    """Limits the average rate since it was created; None is no limit."""

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
        """Wait until `count` more bytes are within the limit."""
        if self._bytes_per_s is None:
            return
        self._spent += count
        due = self._started + self._spent / self._bytes_per_s
        wait = due - self._clock()
        if wait > 0:
            self._sleep(wait)


def read_batches(
    path: Path, throttle: Throttle, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Yield header and bytes of each batch, with verified checksums; the bytes are valid until the next one.

    At most `chunk_bytes`, or one larger batch, are in memory. Raises `CorruptBatch` for an incomplete or
    corrupt batch.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        position = 0
        while position < size:
            buffer = memoryview(os.pread(file.fileno(), chunk_bytes, position))
            throttle.spend(len(buffer))
            used = 0
            for header, batch in _complete_batches(buffer):
                yield header, batch
                used += header.size
            if used == 0:
                chunk_bytes = _needed_bytes(path, buffer, position, size)
            position += used


def _complete_batches(buffer: memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
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
    """The size of the batch that did not fit into `buffer`."""
    if len(buffer) >= HEADER_BYTES:
        header = read_header(buffer)
        if header.length >= MIN_LENGTH and len(buffer) < header.size <= size - position:
            return header.size
    raise CorruptBatch(f"{path} has no complete batch at {position}: restore it, or delete the segment")


class CleanedSegment:
    """The segment into which adjacent segments are cleaned."""

    def __init__(self, directory: Path, base_offset: int, interval_bytes: int, throttle: Throttle) -> None:
        self.base_offset = base_offset
        self.size = 0
        self.sources: list[int] = []
        self.changed = False
        """Whether it differs from the one segment that was read."""
        self._directory = directory
        self._interval_bytes = interval_bytes
        self._throttle = throttle
        self._offsets = OffsetIndex(base_offset)
        self._times = TimeIndex(base_offset)
        self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = base_offset
        self._unindexed_bytes = 0
        # A new file: a killed compactor may still write into the old one.
        self._path(".log").unlink(missing_ok=True)
        self._file = self._path(".log").open("xb", buffering=_BUFFER_BYTES)

    def append(self, batch: Bytes) -> None:
        """Append a batch."""
        header = read_header(batch)
        self._index(header)
        self._file.write(batch)
        self._throttle.spend(header.size)
        self.size += header.size

    def finish(self, aborted: list[AbortedTransaction], modified_ns: int) -> CleanedGroup:
        """Write the indexes and sync all files; the log file gets the time of its last source."""
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
        """Delete the files."""
        with contextlib.suppress(OSError):  # with a full disk the last bytes cannot be written
            self._file.close()
        for suffix in (".log", ".index", ".timeindex", ".txnindex"):
            self._path(suffix).unlink(missing_ok=True)

    def _index(self, header: BatchHeader) -> None:
        """Add index entries, at most one per `interval_bytes`."""
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
