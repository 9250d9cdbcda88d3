"""The log of one partition: batches appended at the end, read from any offset, in segments.

The event loop of the broker is the only writer and does nothing here that waits for the disk: an append goes
to the page cache, and whatever needs a sync (closing a segment, `flush=always`) is handed to `background`.

Offsets of a partition, in this order: `start_offset` (retention and DeleteRecords move it), the last stable
offset (what readers of committed records may see), `high_watermark` (what anybody may see; it trails the end
only while acknowledgements wait for a sync), `end_offset`.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.protocol.batch import (
    CONTROL,
    HEADER_BYTES,
    TRANSACTIONAL,
    BatchHeader,
    build_batch,
    check_batch,
    place_batch,
    read_header,
    stamp_append_time,
)
from headrace.protocol.records import decode_batch, first_record_without_key
from headrace.storage.aborted import AbortedTransactions, append_entry
from headrace.storage.errors import InvalidRecord, InvalidTimestamp, OffsetOutOfRange, RecordTooLarge
from headrace.storage.files import FilePool, replace_file, sync_directory
from headrace.storage.producers import ProducerStates
from headrace.storage.segment import FileRange, Segment, Step, segment_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from headrace.storage.config import TopicConfig
    from headrace.storage.producers import AbortedTransaction

NO_TIMESTAMP: Final = -1
MAX_OFFSET_SPAN: Final = 2**31 - 1
"""Offsets that one segment can hold: its indexes store them as 32-bit distances."""


class Appended(NamedTuple):
    """Where a batch went; a repeated batch went where its first copy is."""

    base_offset: int
    append_time_ms: int
    is_duplicate: bool = False


class TimedOffset(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp: int


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

    # ---------------------------------------------------------------- append

    def append(self, batch: memoryview, now_ms: int) -> Appended:
        """Store one batch of a client and say at which offset, or refuse it with the reason.

        `batch` must be writable: its offset and, if the topic wants it, the broker's time go into its header.
        """
        header = self._accept(batch, now_ms)
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
            self.note_aborted(aborted)
        return offset

    def note_aborted(self, aborted: AbortedTransaction) -> None:
        """Remember a transaction that readers must skip."""
        self.aborted.add(aborted)
        append_entry(self.active.path.with_suffix(".txnindex"), aborted)

    def _accept(self, batch: memoryview, now_ms: int) -> BatchHeader:
        """The header of a client's batch that may be stored; everything else is refused here."""
        if len(batch) < HEADER_BYTES:
            raise InvalidRecord(
                f"a record batch of {len(batch)} bytes: its header alone takes {HEADER_BYTES}"
            )
        header = read_header(batch)
        config = self.config
        if len(batch) > config.max_message_bytes:
            raise RecordTooLarge(
                f"a record batch of {len(batch)} bytes, and max.message.bytes is {config.max_message_bytes}: "
                "send smaller batches or raise the topic's limit"
            )
        check_batch(batch, header)
        if header.count < 1 or header.count != header.last_offset_delta + 1:
            raise InvalidRecord(
                f"a batch of {header.count} records that spans {header.last_offset_delta + 1}"
            )
        if header.attributes & CONTROL:
            raise InvalidRecord("a client wrote a control batch: only the broker may")
        if header.attributes & TRANSACTIONAL and header.producer_id < 0:
            raise InvalidRecord("a transactional batch without a producer id")
        if config.message_timestamp_type == "CreateTime":
            self._check_time(header, now_ms)
        if config.is_compacted:
            position = first_record_without_key(batch)
            if position is not None:
                raise InvalidRecord(f"record {position} has no key, and the topic is compacted: give it one")
        return header

    def _check_time(self, header: BatchHeader, now_ms: int) -> None:
        latest = now_ms + self.config.message_timestamp_after_max_ms
        earliest = now_ms - self.config.message_timestamp_before_max_ms
        if header.max_timestamp > latest or 0 <= header.base_timestamp < earliest:
            raise InvalidTimestamp(
                f"a record of time {header.max_timestamp} ms, and this topic takes {earliest} to {latest}: "
                "check the producer's clock or message.timestamp.{before,after}.max.ms"
            )

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
        closed = self.segments[-1:]
        self.segments.append(segment)
        snapshot = self.producers.dump() if len(self.producers) else None
        if closed:
            self.background(lambda: self._close_segment(closed[0], segment.base_offset, snapshot))
        return segment

    def _close_segment(self, segment: Segment, end_offset: int, snapshot: bytes | None) -> None:
        segment.sync()
        segment.save_indexes()
        save_snapshot(self.directory, end_offset, snapshot)
        segment.close()
        self.recovery_point = max(self.recovery_point, end_offset)

    def sync(self) -> int:
        """Make all that was appended before the call survive power loss; gives the offset that it reaches.

        Called from a thread of its own while the loop goes on appending.
        """
        end_offset = self.end_offset
        for segment in tuple(self.segments):
            if segment.base_offset >= self.recovery_point or segment is self.segments[-1]:
                segment.sync()
        if self._new_names:
            self._new_names = False
            sync_directory(self.directory)
        return end_offset

    def synced(self, end_offset: int) -> None:
        """Let readers see what a sync has reached."""
        self.high_watermark = max(self.high_watermark, end_offset)

    def close(self) -> None:
        """Leave the log so that the next start needs no scan."""
        self.sync()
        self.synced(self.end_offset)
        self.active.save_indexes()
        save_snapshot(self.directory, self.end_offset, self.producers.dump() if len(self.producers) else None)
        self.recovery_point = self.end_offset

    def move_start(self, offset: int) -> None:
        """Move the start of the log to `offset`, and let go of the segments that lie before it."""
        if not self.start_offset <= offset <= self.high_watermark:
            raise OffsetOutOfRange(
                f"offset {offset} is not between {self.start_offset} and {self.high_watermark}"
            )
        self.start_offset = offset
        self.aborted.forget_before(self.start_offset)
        self.first_dirty_offset = max(self.first_dirty_offset, offset)
        if not self.is_swapping:
            self._delete_before_start()

    def _delete_before_start(self) -> None:
        while len(self.segments) > 1 and self.segments[1].base_offset <= self.start_offset:
            self.segments.pop(0).delete()

    def replace_segments(self, replaced: Sequence[int]) -> None:
        """Read a cleaned segment, which has the name of the first of those that it replaced."""
        first = next(i for i, segment in enumerate(self.segments) if segment.base_offset == replaced[0])
        for segment in self.segments[first : first + len(replaced)]:
            self.pool.forget(segment.path)
        self.segments[first : first + len(replaced)] = [Segment(self.directory, replaced[0], self.pool)]

    # ---------------------------------------------------------------- read

    @property
    def last_stable_offset(self) -> int:
        """The end of what readers of committed records may see."""
        unstable = self.producers.first_unstable_offset
        return self.high_watermark if unstable is None else min(unstable, self.high_watermark)

    def read(self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool) -> FileRange | None:
        """Whole batches from the one that holds `offset`, below `end_offset`, as a range of a file.

        None when there is nothing yet. With `at_least_one` the first batch comes even if it is larger than
        `max_bytes`. The batch may begin before `offset`: readers skip, as Kafka's clients do.
        """
        if offset >= end_offset:
            if offset > self.high_watermark:
                raise OffsetOutOfRange(f"offset {offset} is beyond the end {self.high_watermark}")
            return None
        if offset < self.start_offset:
            raise OffsetOutOfRange(f"offset {offset} is before the start {self.start_offset}")
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
            yield segment.read(step)
            offset = step.last_offset + 1

    def next_batch(self, offset: int) -> BatchHeader | None:
        """The header of the batch that holds `offset`, or of the first after it."""
        found = self._find(offset)
        if found is None:
            return None
        segment, step = found
        return read_header(os.pread(segment.file.fd, HEADER_BYTES, step.position))

    # ---------------------------------------------------------------- time

    def find_time(self, timestamp: int) -> TimedOffset | None:
        """The first record that is not older than `timestamp`."""
        for segment in self.segments:
            if segment.load_max_timestamp() >= timestamp:
                found = self._find_time_in(segment, timestamp)
                if found is not None:
                    return found
        return None

    def _find_time_in(self, segment: Segment, timestamp: int) -> TimedOffset | None:
        start = max(segment.time_index.floor(timestamp), self.start_offset)
        for position, header in segment.headers(segment.offset_index.floor(start)):
            if header.max_timestamp < timestamp or header.last_offset < start:
                continue
            batch = os.pread(segment.file.fd, header.size, position)
            for record in decode_batch(batch):
                if record.timestamp >= timestamp and record.offset >= self.start_offset:
                    return TimedOffset(record.offset, record.timestamp)
        return None

    def find_latest_time(self) -> TimedOffset | None:
        """The record with the largest time; the first one of several."""
        latest = max((segment.load_max_timestamp() for segment in self.segments), default=NO_TIMESTAMP)
        return None if latest == NO_TIMESTAMP else self.find_time(latest)


def save_snapshot(directory: Path, end_offset: int, snapshot: bytes | None) -> None:
    """Keep the producers' state as of `end_offset`; older snapshots are no longer needed."""
    name = segment_name(end_offset, ".snapshot")
    if snapshot is not None:
        replace_file(directory / name, snapshot)
    for path in directory.glob("*.snapshot"):
        if path.name < name:
            path.unlink(missing_ok=True)


def _base_offset(segment: Segment) -> int:
    return segment.base_offset


def _marker_record(*, committed: bool) -> bytes:
    """The one record of a control batch: key (version 0, type), value (version 0, coordinator epoch 0)."""
    key = b"\0\0\0\1" if committed else b"\0\0\0\0"
    body = b"\0\0\0" + b"\x08" + key + b"\x0c" + b"\0\0\0\0\0\0" + b"\0"
    return bytes([len(body) * 2]) + body
