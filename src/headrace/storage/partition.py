"""The log of one partition: batches appended at the end, read from any offset, in segments.

The event loop of the broker is the only writer and does nothing here that waits for the disk: an append goes
to the page cache, and whatever needs a sync (closing a segment, `flush=always`) is handed to `background`.

The high watermark trails the end only while acknowledgements wait for a sync.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.files import replace_file, sync_directory
from headrace.protocol.batch import HEADER_BYTES, BatchHeader, read_header
from headrace.storage.aborted import read_entries, save_entries
from headrace.storage.base_log import BaseLog
from headrace.storage.errors import DiskError
from headrace.storage.files import FilePool
from headrace.storage.segment import (
    FileRange,
    Segment,
    bytes_from,
    find_batch,
    first_offset_within,
    fitting_range,
    segment_name,
)
from headrace.storage.time_search import Search, search_latest_time, search_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from headrace.storage.config import TopicConfig
    from headrace.storage.producers import AbortedTransaction


log = logging.getLogger(__name__)

MAX_OFFSET_SPAN: Final = 2**31 - 1
"""Offsets that one segment can hold: its indexes store them as 32-bit distances."""


class _Rolled(NamedTuple):
    """A segment that is no longer written, and what was known when its last batch came."""

    segment: Segment
    end_offset: int
    snapshot: bytes
    aborted: list[AbortedTransaction]


def _unlink(segments: Sequence[Segment]) -> None:
    for segment in segments:
        segment.unlink()


def run_inline(job: Callable[[], None]) -> None:
    """The background that does not exist: the job is done before this returns."""
    job()


class PartitionLog(BaseLog):
    """The log in `directory`; open one with `headrace.storage.recovery.open_partition`."""

    def __init__(
        self,
        directory: Path,
        config: TopicConfig,
        *,
        pool: FilePool | None = None,
        background: Callable[[Callable[[], None]], object] = run_inline,
        waits_for_sync: bool = False,
    ) -> None:
        super().__init__(config)
        self.needs_sync = True
        self.directory = directory
        self.pool = pool or FilePool()
        self.background = background
        self.waits_for_sync = waits_for_sync
        self.segments: list[Segment] = []
        self.recovery_point = 0
        """Everything below this offset has been synced and needs no scan after a crash."""
        self.first_dirty_offset = 0
        """Where the part begins that compaction has not seen."""
        self.is_swapping = False
        """While a compacted segment takes the place of others, no file is deleted."""
        self._new_names = False
        self.is_new_folder = False
        """Whether the name of the folder may not survive power loss yet."""
        self._rolled: deque[_Rolled] = deque()
        self._rolled_lock = threading.Lock()
        self._sync_fault: OSError | None = None

    # ---------------------------------------------------------------- append

    def _write(self, batch: memoryview | bytearray, header: BatchHeader, last_offset: int) -> None:
        segment = self.active
        if self._is_full(segment, len(batch), header):
            segment = self.roll()
        position = segment.append(batch)
        segment.note(header, position, last_offset, self.config.index_interval_bytes)

    def _appended(self) -> None:
        if not self.waits_for_sync:
            self.high_watermark = self.end_offset

    # ---------------------------------------------------------------- segments

    @property
    def active(self) -> Segment:
        """The segment that is written."""
        return self.segments[-1]

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    def _is_full(self, segment: Segment, incoming_bytes: int, header: BatchHeader) -> bool:
        if segment.size == 0:
            return False
        config = self.config
        return (
            segment.size + incoming_bytes > config.segment_bytes
            or header.max_timestamp - segment.first_timestamp > config.segment_ms
            or self.end_offset + header.last_offset_delta - segment.base_offset > MAX_OFFSET_SPAN
            or len(segment.offset_index) * 8 >= config.segment_index_bytes
        )

    def roll(self) -> Segment:
        """Begin a new segment; the old one is made durable in the background."""
        if self.segments and self.active.size == 0:
            return self.active
        segment = Segment(self.directory, self.end_offset, self.pool)
        segment.activate()
        self._new_names = True
        rolled = self.segments[-1:]
        self.segments.append(segment)
        for old in rolled:
            aborted = self.aborted.ended_between(old.base_offset, segment.base_offset)
            self._rolled.append(_Rolled(old, segment.base_offset, self.producers.dump(), aborted))
            self.background(self.close_rolled)
        return segment

    @property
    def has_rolled(self) -> bool:
        """Whether segments that are no longer written wait to be made durable."""
        return bool(self._rolled)

    def close_rolled(self) -> None:
        """Make the segments durable that are no longer written; may wait for the disk.

        They are taken in their order, for whatever lies below the recovery point is never scanned again. One
        that a full disk does not let be closed waits for the next call.
        """
        with self._rolled_lock:
            while self._rolled and not self.is_deleted:
                try:
                    self._close_segment(self._rolled[0])
                except OSError as fault:
                    log.warning("%s stays open for now: %s", self._rolled[0].segment.path, fault)
                    return
                self._rolled.popleft()

    def _close_segment(self, rolled: _Rolled) -> None:
        segment = rolled.segment
        if not segment.is_deleted:
            self._sync_segment(segment)
            segment.save_indexes()
            save_entries(segment.path.with_suffix(".txnindex"), rolled.aborted)
        replace_file(self.directory / segment_name(rolled.end_offset, ".snapshot"), rolled.snapshot)
        segment.close()
        self.recovery_point = max(self.recovery_point, rolled.end_offset)

    def _sync_segment(self, segment: Segment) -> None:
        """Sync a segment; after a failure never again: the kernel may have dropped what it did not write."""
        if self._sync_fault is not None:
            raise self._sync_fault
        try:
            segment.sync()
        except OSError as fault:
            self._sync_fault = fault
            raise

    def sync(self) -> int:
        """Make all that was appended before the call survive power loss; gives the offset that it reaches.

        Called from a thread of its own while the loop goes on appending. A deleted log has nothing to lose.
        """
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
        if self._new_names:
            self._new_names = False
            sync_directory(self.directory)

    def synced(self, end_offset: int) -> None:
        """Let readers see what a sync has reached."""
        self.high_watermark = max(self.high_watermark, end_offset)

    def close(self) -> None:
        """Leave the log so that the next start needs no scan."""
        if self.end_offset == 0:
            return  # nothing was ever written, and each file would cost a sync
        self.sync()
        self.synced(self.end_offset)
        self.close_rolled()
        if self.has_rolled:
            raise DiskError(f"{self.directory} could not be closed: free some space")
        self.active.save_indexes()
        aborted = self.aborted.ended_between(self.active.base_offset, self.end_offset)
        save_entries(self.active.path.with_suffix(".txnindex"), aborted)
        replace_file(self.directory / segment_name(self.end_offset, ".snapshot"), self.producers.dump())
        self.recovery_point = self.end_offset

    def prune_snapshots(self, recovery_point: int) -> None:
        """Delete the snapshots that no recovery from this point needs: it scans whole segments."""
        bases = [segment.base_offset for segment in tuple(self.segments)]
        needed_from = max((base for base in bases if base <= recovery_point), default=0)
        for path in self.directory.glob("*.snapshot"):
            if int(path.stem) < needed_from:
                path.unlink(missing_ok=True)

    def move_start(self, offset: int) -> None:
        """Move the start of the log to `offset`, and let go of the segments that lie before it."""
        self._check_start(offset)
        self.start_offset = offset
        self.aborted.forget_before(self.start_offset)
        self.first_dirty_offset = max(self.first_dirty_offset, offset)
        self.trim()

    def trim(self) -> None:
        """Delete the segments that lie before the start of the log, unless files are being swapped."""
        if self.is_swapping:
            return
        kept = next(
            (i for i, follower in enumerate(self.segments[1:]) if follower.base_offset > self.start_offset),
            len(self.segments) - 1,
        )
        gone, self.segments[:kept] = self.segments[:kept], []
        for segment in gone:
            segment.delete()
        if gone:
            # There may be thousands of files.
            self.background(lambda: _unlink(gone))

    def replace_segments(self, replaced: Sequence[int]) -> None:
        """Read a cleaned segment, which has the name of the first of those that it replaced."""
        first = next(i for i, segment in enumerate(self.segments) if segment.base_offset == replaced[0])
        end = first + len(replaced)
        for segment in self.segments[first:end]:
            self.pool.forget(segment.path)
        cleaned = Segment(self.directory, replaced[0], self.pool)
        # A transaction whose marker is gone must go from here too: to a reader it would never end.
        aborted = read_entries(cleaned.path.with_suffix(".txnindex"))
        self.aborted.replace_between(cleaned.base_offset, self.segments[end].base_offset, aborted)
        self.aborted.forget_before(self.start_offset)
        self.segments[first:end] = [cleaned]

    def apply_retention(self, now_ms: int) -> int:
        """Delete the segments that are too old or too many; gives how many bytes went."""
        return apply_retention(self, now_ms)

    # ---------------------------------------------------------------- read

    def read(self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool) -> FileRange | None:
        """Whole batches from the one that holds `offset`, below `end_offset`, as a range of a file.

        None when there is nothing yet. With `at_least_one` the first batch comes even if it is larger than
        `max_bytes`. The batch may begin before `offset`: readers skip, as Kafka's clients do.
        """
        if self._has_read_all(offset, end_offset):
            return None
        found = find_batch(self.segments, offset)
        if found is None or found.step.base_offset >= end_offset:
            return None
        limit = self._limit(found.segment, end_offset)
        return fitting_range(found, limit, max_bytes, at_least_one=at_least_one)

    def _limit(self, segment: Segment, end_offset: int) -> int:
        """Where in the segment the batches end that lie below `end_offset`."""
        if end_offset >= self.end_offset:
            return segment.size
        step = segment.locate(end_offset)
        return segment.size if step is None else step.position

    def batches(self, offset: int) -> Iterator[bytes]:
        """Each batch from `offset` to the end, as bytes: for the broker's own reading."""
        while offset < self.end_offset:
            found = find_batch(self.segments, offset)
            if found is None:
                return
            yield found.segment.read(found.step.position, found.step.size)
            offset = found.step.last_offset + 1

    def next_batch(self, offset: int) -> BatchHeader | None:
        """The header of the batch that holds `offset`, or of the first after it."""
        found = find_batch(self.segments, offset)
        if found is None:
            return None
        return read_header(found.segment.read(found.step.position, HEADER_BYTES))

    def search_time(self, timestamp: int) -> Search:
        """The first record that is not older than `timestamp`, found in steps."""
        return search_time(self.segments, timestamp, self.start_offset)

    def search_latest_time(self) -> Search:
        """The record with the largest time, found in steps."""
        return search_latest_time(self.segments, self.start_offset)

    def size_from(self, offset: int) -> int:
        """Bytes of the batches from the one that holds `offset` to the end."""
        return bytes_from(self.segments, offset)

    def offset_within(self, size: int) -> int:
        """The first offset from which on all batches together have at most `size` bytes."""
        found = first_offset_within(self.segments, size)
        return self.start_offset if found is None else max(found, self.start_offset)


def apply_retention(log: PartitionLog, now_ms: int) -> int:
    """Delete the segments that are too old or too many; gives how many bytes went.

    Whole segments go, the oldest first, and the active one only by age: it is closed for that.
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
