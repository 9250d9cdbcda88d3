"""The log of one partition: batches appended at the end, read from any offset, in segments.

The event loop of the broker is the only writer and does nothing here that waits for the disk: an append goes
to the page cache, and whatever needs a sync (closing a segment, `flush=always`) is handed to `background`.

Offsets of a partition, in this order: `start_offset` (retention and DeleteRecords move it), the last stable
offset (what readers of committed records may see), `high_watermark` (what anybody may see; it trails the end
only while acknowledgements wait for a sync), `end_offset`.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.protocol.batch import (
    CONTROL,
    HEADER_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    build_batch,
    place_batch,
    read_header,
    stamp_append_time,
)
from headrace.storage.aborted import AbortedTransactions, read_entries, save_entries
from headrace.storage.acceptance import accept_batch
from headrace.storage.errors import DiskFault, OffsetOutOfRange
from headrace.storage.files import FilePool, replace_file, sync_directory
from headrace.storage.producers import ProducerStates
from headrace.storage.segment import FileRange, Segment, Step, segment_name
from headrace.storage.timesearch import TimedOffset, find_latest_time, find_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from headrace.storage.config import TopicConfig
    from headrace.storage.producers import AbortedTransaction

log = logging.getLogger(__name__)

NO_TIMESTAMP: Final = -1
MAX_OFFSET_SPAN: Final = 2**31 - 1
"""Offsets that one segment can hold: its indexes store them as 32-bit distances."""


class Appended(NamedTuple):
    """Where a batch went; a repeated batch went where its first copy is."""

    base_offset: int
    append_time_ms: int
    is_duplicate: bool = False


class _Rolled(NamedTuple):
    """A segment that is no longer written, and what was known when its last batch came."""

    segment: Segment
    end_offset: int
    snapshot: bytes
    aborted: list[AbortedTransaction]


def run_inline(job: Callable[[], None]) -> None:
    """The background that does not exist: the job is done before this returns."""
    job()


class PartitionLog:
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
        self.directory = directory
        self.config = config
        self.pool = pool or FilePool()
        self.background = background
        self.waits_for_sync = waits_for_sync
        self.segments: list[Segment] = []
        self.start_offset = 0
        self.end_offset = 0
        self.high_watermark = 0
        self.recovery_point = 0
        """Everything below this offset has been synced and needs no scan after a crash."""
        self.first_dirty_offset = 0
        """Where the part begins that compaction has not seen."""
        self.producers = ProducerStates()
        self.aborted = AbortedTransactions()
        self.is_deleted = False
        self.is_swapping = False
        """While a compacted segment takes the place of others, no file is deleted."""
        self._new_names = False
        self._rolled: deque[_Rolled] = deque()
        self._rolled_lock = threading.Lock()
        self._sync_fault: OSError | None = None

    # ---------------------------------------------------------------- append

    def append(self, batch: memoryview, now_ms: int) -> Appended:
        """Store one batch of a client and say at which offset, or refuse it with the reason.

        `batch` must be writable: its offset and, if the topic wants it, the broker's time go into its header.
        """
        header = accept_batch(batch, self.config, now_ms)
        if header.producer_id >= 0:
            duplicate = self.producers.check(header)
            if duplicate is not None:
                return Appended(duplicate.base_offset, duplicate.append_time_ms, is_duplicate=True)
        append_time_ms = NO_TIMESTAMP
        if self.config.message_timestamp_type == "LogAppendTime":
            stamp_append_time(batch, header, now_ms)
            header = header._replace(max_timestamp=now_ms)
            append_time_ms = now_ms
        base_offset = self._store(batch, header)
        if header.producer_id >= 0:
            self.producers.applied(header, base_offset, now_ms)
        return Appended(base_offset, append_time_ms)

    def append_own(
        self, records: bytes, count: int, now_ms: int, producer: tuple[int, int] | None = None
    ) -> int:
        """Store records of the broker itself; with a producer id and epoch, inside its transaction."""
        producer_id, epoch = producer or (-1, -1)
        batch = build_batch(
            records,
            count,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            attributes=TRANSACTIONAL if producer else 0,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        header = read_header(batch)
        base_offset = self._store(batch, header)
        if producer:
            self.producers.applied(header, base_offset, now_ms)
        return base_offset

    def append_marker(self, producer_id: int, epoch: int, *, committed: bool, now_ms: int) -> int:
        """End the producer's transaction in this partition with a control batch."""
        self.producers.check_marker(producer_id, epoch)
        batch = build_batch(
            _marker_record(committed=committed),
            1,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            attributes=TRANSACTIONAL | CONTROL,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        offset = self._store(batch, read_header(batch))
        aborted = self.producers.marker(producer_id, epoch, offset, committed=committed, now_ms=now_ms)
        if aborted is not None:
            self.aborted.add(aborted)
        return offset

    def _store(self, batch: memoryview | bytearray, header: BatchHeader) -> int:
        base_offset = self.end_offset
        place_batch(batch, base_offset, 0)
        segment = self.active
        if self._is_full(segment, len(batch), header):
            segment = self.roll()
        last_offset = base_offset + header.last_offset_delta
        position = segment.append(batch)
        segment.note(header, position, last_offset, self.config.index_interval_bytes)
        self.end_offset = last_offset + 1
        if not self.waits_for_sync:
            self.high_watermark = self.end_offset
        return base_offset

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
        if self._new_names:
            self._new_names = False
            sync_directory(self.directory)

    def synced(self, end_offset: int) -> None:
        """Let readers see what a sync has reached."""
        self.high_watermark = max(self.high_watermark, end_offset)

    def close(self) -> None:
        """Leave the log so that the next start needs no scan."""
        self.sync()
        self.synced(self.end_offset)
        self.close_rolled()
        if self.has_rolled:
            raise DiskFault(f"{self.directory} could not be closed: free some space")
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
        if not self.start_offset <= offset <= self.high_watermark:
            raise OffsetOutOfRange(
                f"offset {offset} is not between {self.start_offset} and {self.high_watermark}"
            )
        self.start_offset = offset
        self.aborted.forget_before(self.start_offset)
        self.first_dirty_offset = max(self.first_dirty_offset, offset)
        self.trim()

    def trim(self) -> None:
        """Delete the segments that lie before the start of the log, unless files are being swapped."""
        while (
            not self.is_swapping and self.segments[1:] and self.segments[1].base_offset <= self.start_offset
        ):
            self.segments.pop(0).delete()

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

    # ---------------------------------------------------------------- read

    @property
    def last_stable_offset(self) -> int:
        """The end of what readers of committed records may see."""
        unstable = self.producers.first_unstable_offset
        if unstable is None:
            return self.high_watermark
        return max(self.start_offset, min(unstable, self.high_watermark))

    def read(self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool) -> FileRange | None:
        """Whole batches from the one that holds `offset`, below `end_offset`, as a range of a file.

        None when there is nothing yet. With `at_least_one` the first batch comes even if it is larger than
        `max_bytes`. The batch may begin before `offset`: readers skip, as Kafka's clients do.
        """
        if offset < self.start_offset:
            raise OffsetOutOfRange(f"offset {offset} is before the start {self.start_offset}")
        if offset >= end_offset:
            if offset > self.high_watermark:
                raise OffsetOutOfRange(f"offset {offset} is beyond the end {self.high_watermark}")
            return None
        found = self._find(offset)
        if found is None or found[1].base_offset >= end_offset:
            return None
        segment, step = found
        position = step.position
        limit = self._limit(segment, end_offset)
        size = limit - position
        if size > max_bytes:
            size = segment.offset_index.boundary(position, position + max_bytes) - position
            if size <= 0:
                size = step.size if step.size <= max_bytes or at_least_one else 0
        return FileRange(segment.file, position, size) if size > 0 else None

    def _find(self, offset: int) -> tuple[Segment, Step] | None:
        """The batch that holds `offset`, or the next one where compaction left a gap."""
        index = bisect_right(self.segments, offset, key=_base_offset) - 1
        for segment in self.segments[max(index, 0) :]:
            step = segment.locate(offset)
            if step is not None:
                return segment, step
        return None

    def _limit(self, segment: Segment, end_offset: int) -> int:
        """Where in the segment the batches end that lie below `end_offset`."""
        if end_offset >= self.end_offset:
            return segment.size
        step = segment.locate(end_offset)
        return segment.size if step is None else step.position

    def batches(self, offset: int) -> Iterator[bytes]:
        """Each batch from `offset` to the end, as bytes: for the broker's own reading."""
        while offset < self.end_offset:
            found = self._find(offset)
            if found is None:
                return
            segment, step = found
            yield segment.read(step.position, step.size)
            offset = step.last_offset + 1

    def next_batch(self, offset: int) -> BatchHeader | None:
        """The header of the batch that holds `offset`, or of the first after it."""
        found = self._find(offset)
        if found is None:
            return None
        segment, step = found
        return read_header(segment.read(step.position, HEADER_BYTES))

    def find_time(self, timestamp: int) -> TimedOffset | None:
        """The first record that is not older than `timestamp`."""
        return find_time(self.segments, timestamp, self.start_offset)

    def find_latest_time(self) -> TimedOffset | None:
        """The record with the largest time; the first one of several."""
        return find_latest_time(self.segments, self.start_offset)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _marker_record(*, committed: bool) -> bytes:
    """The one record of a control batch: key (version 0, type), value (version 0, coordinator epoch 0)."""
    key = b"\0\0\0\1" if committed else b"\0\0\0\0"
    body = b"\0\0\0" + b"\x08" + key + b"\x0c" + b"\0\0\0\0\0\0" + b"\0"
    return bytes([len(body) * 2]) + body
