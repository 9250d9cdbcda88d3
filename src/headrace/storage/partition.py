"""The log of one partition on disk, in segments.

The broker's event loop is the only writer, and never waits for the disk here: an append goes to the page
cache, and syncs (of closed segments, and with `flush=always`) run in the background.

The high watermark is below the end offset only while acknowledgments wait for a sync.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.folders import replace_file, sync_directory
from headrace.protocol.batch import HEADER_BYTES, BatchHeader, read_header
from headrace.storage.errors import DiskError
from headrace.storage.index import read_entries, save_entries
from headrace.storage.log import Log
from headrace.storage.segment import (
    FilePool,
    FileRange,
    LogSegment,
    bytes_from,
    find_batch,
    first_offset_within,
    fitting_range,
    segment_name,
)
from headrace.storage.tiering import apply_local_retention, archived_end, read_ahead
from headrace.storage.time_search import Search, search_latest_time, search_time

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from pathlib import Path

    from headrace.storage.config import TopicConfig
    from headrace.storage.producers import AbortedTransaction
    from headrace.storage.remote_cache import RemoteLogCache


log = logging.getLogger(__name__)

MAX_OFFSET_SPAN: Final = 2**31 - 1
"""The most offsets in one segment: its indexes have 32-bit relative offsets."""


class _RolledSegment(NamedTuple):
    """A segment that is no longer active, and the state after its last batch."""

    segment: LogSegment
    end_offset: int
    snapshot: bytes
    aborted: list[AbortedTransaction]


def _unlink(segments: Sequence[LogSegment]) -> None:
    for segment in segments:
        segment.unlink()


def run_inline(job: Callable[[], None]) -> None:
    """Run a background job in the foreground."""
    job()


class PartitionLog(Log):
    """The log in `directory`; open one with `headrace.storage.recovery.open_partition`."""

    def __init__(
        self,
        directory: Path,
        config: TopicConfig,
        *,
        pool: FilePool | None = None,
        background: Callable[[Callable[[], None]], object] = run_inline,
        waits_for_sync: bool = False,
        remote_cache: RemoteLogCache | None = None,
    ) -> None:
        super().__init__(config)
        self.needs_sync = True
        self.directory = directory
        self.pool = pool or FilePool()
        self.background = background
        self.waits_for_sync = waits_for_sync
        self.remote_cache = remote_cache
        """Reads segments that are only in the archive; None for a broker without one."""
        self.segments: list[LogSegment] = []
        self.recovery_point = 0
        """Batches below this offset are synced, and not scanned after a crash."""
        self.first_dirty_offset = 0
        """The first offset that was not compacted."""
        self.is_swapping = False
        """Whether a compacted segment is replacing others; no file is deleted meanwhile."""
        self._directory_changed = False
        self.is_new_folder = False
        """Whether the folder may be lost with power: its parent is not synced yet."""
        self._rolled: deque[_RolledSegment] = deque()
        self._rolled_lock = threading.Lock()
        self._sync_fault: OSError | None = None
        self._synced_end = 0
        self._archived_end = 0

    # ---------------------------------------------------------------- append

    def _write(self, batch: memoryview | bytearray, header: BatchHeader, last_offset: int) -> None:
        segment = self.active
        if self._is_full(segment, len(batch), header):
            segment = self.roll()
        position = segment.append(batch)
        segment.index_batch(header, position, last_offset, self.config.index_interval_bytes)

    def stage(self, batch: memoryview) -> Generator[None, None, None]:
        """Write a large batch in steps, so that `append` of the same buffer writes its header only."""
        segment = self.active
        if self._is_full(segment, len(batch), read_header(batch)):
            segment = self.roll()
        yield from segment.stage(batch)

    def discard_staged(self) -> None:
        """Remove what was staged and not appended from the file."""
        self.active.discard_staged()

    def _appended(self) -> None:
        if not self.waits_for_sync and not self.waits_for_archive:
            self.high_watermark = self.end_offset

    @property
    def waits_for_archive(self) -> bool:
        """Whether appended batches count as stored only when they are in the archive."""
        return self.config.headrace_archive_acks and self.remote_cache is not None

    # ---------------------------------------------------------------- segments

    @property
    def active(self) -> LogSegment:
        """The active segment."""
        return self.segments[-1]

    @property
    def size(self) -> int:
        """The size of all segments in bytes."""
        return sum(segment.size for segment in self.segments)

    def _is_full(self, segment: LogSegment, incoming_bytes: int, header: BatchHeader) -> bool:
        if segment.size == 0:
            return False
        config = self.config
        return (
            segment.size + incoming_bytes > config.segment_bytes
            or header.max_timestamp - segment.first_timestamp > config.segment_ms
            or self.end_offset + header.last_offset_delta - segment.base_offset > MAX_OFFSET_SPAN
            or len(segment.offset_index) * 8 >= config.segment_index_bytes
        )

    def roll(self) -> LogSegment:
        """Start a new segment; the old one is closed in the background."""
        if self.segments and self.active.size == 0:
            return self.active
        segment = LogSegment(self.directory, self.end_offset, self.pool)
        segment.activate()
        self._directory_changed = True
        rolled = self.segments[-1:]
        for old in rolled:
            old.discard_staged()
        self.segments.append(segment)
        for old in rolled:
            aborted = self.aborted.ended_between(old.base_offset, segment.base_offset)
            self._rolled.append(_RolledSegment(old, segment.base_offset, self.producers.dump(), aborted))
            self.background(self.close_rolled)
        return segment

    @property
    def has_rolled(self) -> bool:
        """Whether segments wait to be closed."""
        return bool(self._rolled)

    def close_rolled(self) -> None:
        """Sync and close the segments that are no longer active; may wait for the disk.

        They are closed in order, because segments below the recovery point are not scanned. One that cannot
        be closed, because the disk is full, waits for the next call.
        """
        with self._rolled_lock:
            while self._rolled and not self.is_deleted:
                try:
                    self._close_segment(self._rolled[0])
                except OSError as fault:
                    log.warning("%s could not be closed yet: %s", self._rolled[0].segment.path, fault)
                    return
                self._rolled.popleft()

    def _close_segment(self, rolled: _RolledSegment) -> None:
        segment = rolled.segment
        if not segment.is_deleted:
            self._sync_segment(segment)
            segment.save_indexes()
            save_entries(segment.path.with_suffix(".txnindex"), rolled.aborted)
        replace_file(self.directory / segment_name(rolled.end_offset, ".snapshot"), rolled.snapshot)
        segment.close()
        self.recovery_point = max(self.recovery_point, rolled.end_offset)

    def _sync_segment(self, segment: LogSegment) -> None:
        """Sync a segment. After a failure never again: the kernel may have dropped unwritten pages."""
        if self._sync_fault is not None:
            raise self._sync_fault
        try:
            segment.sync()
        except OSError as fault:
            self._sync_fault = fault
            raise

    def sync(self) -> int:
        """Make all appended batches survive power loss; returns the end offset that does."""
        end_offset = self.end_offset
        try:
            self._sync_files()
        except OSError:
            if not self.is_deleted:
                raise
        return end_offset

    def _sync_files(self) -> None:
        segments = tuple(self.segments)
        ends = [segment.base_offset for segment in segments[1:]]
        for segment, end in zip(segments, [*ends, None], strict=True):
            if end is None or end > self.recovery_point:
                self._sync_segment(segment)
        if self.is_new_folder:
            self.is_new_folder = False
            sync_directory(self.directory.parent)
        if self._directory_changed:
            self._directory_changed = False
            sync_directory(self.directory)

    def synced(self, end_offset: int) -> None:
        """Advance the high watermark after a sync."""
        self._synced_end = max(self._synced_end, end_offset)
        self._advance_high_watermark()

    def archived(self, end_offset: int) -> None:
        """Advance the high watermark after an upload of everything before `end_offset`."""
        self._archived_end = max(self._archived_end, end_offset)
        self._advance_high_watermark()

    def _advance_high_watermark(self) -> None:
        end = self.end_offset
        if self.waits_for_sync:
            end = min(end, self._synced_end)
        if self.waits_for_archive:
            end = min(end, self._archived_end)
        self.high_watermark = max(self.high_watermark, end)

    def close(self) -> None:
        """Sync and close the log, so that the next start needs no scan."""
        self.discard_staged()
        if self.end_offset == 0:
            return  # nothing was written, and each file would cost a sync
        self.sync()
        self.synced(self.end_offset)
        self.close_rolled()
        if self.has_rolled:
            raise DiskError(f"{self.directory} could not be closed: free disk space")
        self.active.save_indexes()
        aborted = self.aborted.ended_between(self.active.base_offset, self.end_offset)
        save_entries(self.active.path.with_suffix(".txnindex"), aborted)
        replace_file(self.directory / segment_name(self.end_offset, ".snapshot"), self.producers.dump())
        self.recovery_point = self.end_offset

    def prune_snapshots(self, recovery_point: int) -> None:
        """Delete the snapshots that a recovery from this point does not need."""
        bases = [segment.base_offset for segment in tuple(self.segments)]
        needed_from = max((base for base in bases if base <= recovery_point), default=0)
        if self.config.is_tiered:
            # A segment is archived with the snapshot after its last batch.
            needed_from = min(needed_from, archived_end(self))
        for path in self.directory.glob("*.snapshot"):
            if int(path.stem) < needed_from:
                path.unlink(missing_ok=True)

    def move_start(self, offset: int) -> None:
        """Move the log start offset, and delete the segments before it."""
        self._check_start(offset)
        self.start_offset = offset
        self.aborted.drop_before(self.start_offset)
        self.first_dirty_offset = max(self.first_dirty_offset, offset)
        self.trim()

    def trim(self) -> None:
        """Delete the segments before the log start offset, unless segments are being replaced."""
        if self.is_swapping:
            return
        kept = next(
            (i for i, follower in enumerate(self.segments[1:]) if follower.base_offset > self.start_offset),
            len(self.segments) - 1,
        )
        deleted, self.segments[:kept] = self.segments[:kept], []
        for segment in deleted:
            segment.delete()
        if deleted:
            # There may be thousands of files.
            self.background(lambda: _unlink(deleted))

    def replace_segments(self, replaced: Sequence[int]) -> None:
        """Use a compacted segment, which has the base offset of the first segment that it replaced."""
        first = next(i for i, segment in enumerate(self.segments) if segment.base_offset == replaced[0])
        end = first + len(replaced)
        for segment in self.segments[first:end]:
            self.pool.drop(segment.path)
        cleaned = LogSegment(self.directory, replaced[0], self.pool)
        # To a consumer, a transaction without its marker would never end.
        aborted = read_entries(cleaned.path.with_suffix(".txnindex"))
        self.aborted.replace_between(cleaned.base_offset, self.segments[end].base_offset, aborted)
        self.aborted.drop_before(self.start_offset)
        self.segments[first:end] = [cleaned]

    def apply_retention(self, now_ms: int) -> int:
        """Delete segments beyond the retention; returns the deleted bytes."""
        freed = apply_retention(self, now_ms)
        if self.config.is_tiered:
            apply_local_retention(self, now_ms)
        return freed

    # ---------------------------------------------------------------- read

    def read(self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool) -> FileRange | None:
        """The batches from the one that holds `offset` to before `end_offset`, as a range of a file."""
        if self._has_read_all(offset, end_offset):
            return None
        found = find_batch(self.segments, offset)
        if found is None or found.step.base_offset >= end_offset:
            return None
        limit = self._limit(found.segment, end_offset)
        records = fitting_range(found, limit, max_bytes, at_least_one=at_least_one)
        if found.segment.manifest is not None:
            read_ahead(self, found.segment, found.step.position)
        return records

    def _limit(self, segment: LogSegment, end_offset: int) -> int:
        """The position in the segment after the batches below `end_offset`."""
        if end_offset >= self.end_offset or (
            segment.manifest is not None and end_offset >= segment.manifest.end_offset
        ):
            return segment.size
        step = segment.locate(end_offset)
        return segment.size if step is None else step.position

    def batches(self, offset: int) -> Iterator[bytes]:
        """Yield the batches from `offset` to the end."""
        while offset < self.end_offset:
            found = find_batch(self.segments, offset)
            if found is None:
                return
            yield found.segment.read(found.step.position, found.step.size)
            offset = found.step.last_offset + 1

    def next_batch(self, offset: int) -> BatchHeader | None:
        """The header of the batch that holds `offset`, or of the next one."""
        found = find_batch(self.segments, offset)
        if found is None:
            return None
        return read_header(found.segment.read(found.step.position, HEADER_BYTES))

    def search_time(self, timestamp: int) -> Search:
        """Search in steps for the first record that is not older than `timestamp`."""
        return search_time(self.segments, timestamp, self.start_offset)

    def search_latest_time(self) -> Search:
        """Search in steps for the record with the largest timestamp."""
        return search_latest_time(self.segments, self.start_offset)

    def size_from(self, offset: int) -> int:
        """The size of the batches from the one that holds `offset` to the end."""
        return bytes_from(self.segments, offset)

    def offset_within(self, size: int) -> int:
        """The first offset from which on all batches together have at most `size` bytes."""
        found = first_offset_within(self.segments, size)
        return self.start_offset if found is None else max(found, self.start_offset)


def apply_retention(log: PartitionLog, now_ms: int) -> int:
    """Delete segments beyond the retention, the oldest first; returns the deleted bytes.

    The active segment is closed and deleted only if it is too old.
    """
    before = log.size
    log.trim()
    if not log.config.is_deleted:
        return before - log.size
    if _is_expired_whole(log, now_ms):
        log.roll()
    start = max(_start_by_age(log, now_ms), _start_by_size(log))
    if start > log.start_offset:
        log.move_start(min(start, log.high_watermark))
    return before - log.size


def _is_expired_whole(log: PartitionLog, now_ms: int) -> bool:
    return log.active.size > 0 and _is_expired(log, len(log.segments) - 1, now_ms)


def _is_expired(log: PartitionLog, position: int, now_ms: int) -> bool:
    retention_ms = log.config.retention_ms
    return retention_ms >= 0 and log.segments[position].load_age_ms() < now_ms - retention_ms


def _start_by_age(log: PartitionLog, now_ms: int) -> int:
    start = log.start_offset
    for position in range(len(log.segments) - 1):
        if not _is_expired(log, position, now_ms):
            break
        start = log.segments[position + 1].base_offset
    return start


def _start_by_size(log: PartitionLog) -> int:
    start, surplus = log.start_offset, log.size - log.config.retention_bytes
    if log.config.retention_bytes < 0:
        return start
    for segment, follower in zip(log.segments, log.segments[1:], strict=False):
        surplus -= segment.size
        if surplus < 0:
            break
        start = follower.base_offset
    return start
