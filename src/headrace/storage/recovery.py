"""Opening a partition: at once after a clean stop, by a scan of what may not have been synced after a crash.

A scan walks the batches from the recovery point on and checks every checksum. The first batch that is torn or
corrupt ends the log: it was never acknowledged as durable, and what follows it cannot be trusted. Segments
below the recovery point are not read, so the time to start grows with the tail and not with the data.
"""

from __future__ import annotations

import logging
import mmap
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.protocol.batch import HEADER_BYTES, BatchHeader, check_batch, read_header
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import decode_batch
from headrace.storage.aborted import pack_entries, read_entries
from headrace.storage.compaction import recover_swaps
from headrace.storage.files import FilePool, replace_file
from headrace.storage.partition import PartitionLog, run_inline
from headrace.storage.producers import CorruptSnapshot, ProducerStates
from headrace.storage.segment import Segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.storage.config import TopicConfig

log = logging.getLogger(__name__)


class Marks(NamedTuple):
    """What the checkpoints say of a partition."""

    recovery_point: int = 0
    start_offset: int = 0
    first_dirty_offset: int = 0


NO_MARKS: Final = Marks()


def open_partition(
    directory: Path,
    config: TopicConfig,
    *,
    now_ms: int,
    marks: Marks = NO_MARKS,
    clean: bool = False,
    pool: FilePool | None = None,
    background: Callable[[Callable[[], None]], object] = run_inline,
    waits_for_sync: bool = False,
) -> PartitionLog:
    """The partition in `directory`, made there if it is new; `clean` says that it was closed properly."""
    directory.mkdir(parents=True, exist_ok=True)
    recover_swaps(directory)
    partition = PartitionLog(
        directory, config, pool=pool, background=background, waits_for_sync=waits_for_sync
    )
    partition.segments = [Segment(directory, base, partition.pool) for base in _base_offsets(directory)]
    scanned_from = _find_end(partition, marks.recovery_point, clean=clean)
    if partition.segments:
        partition.active.activate()
        partition.start_offset = max(marks.start_offset, partition.segments[0].base_offset)
    else:
        partition.start_offset = partition.end_offset = marks.start_offset
        partition.roll()
    partition.high_watermark = partition.end_offset
    partition.recovery_point = min(marks.recovery_point, partition.end_offset)
    partition.first_dirty_offset = max(marks.first_dirty_offset, partition.start_offset)
    _restore_producers(partition, scanned_from, now_ms)
    return partition


def _base_offsets(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in directory.glob("*.log") if path.stem.isdigit())


def _find_end(partition: PartitionLog, recovery_point: int, *, clean: bool) -> int:
    """Set the end of the log; gives the offset from which segments were scanned."""
    if clean:
        partition.end_offset = recovery_point
        return recovery_point
    first = max((s.base_offset for s in partition.segments if s.base_offset <= recovery_point), default=0)
    for position, segment in enumerate(partition.segments):
        if segment.base_offset < first:
            continue
        valid_bytes, end_offset = _scan(segment, recovery_point)
        partition.end_offset = end_offset
        is_torn = valid_bytes < segment.size
        if is_torn:
            log.warning(
                "%s: %d bytes after offset %d were torn or corrupt and are cut off",
                segment.path,
                segment.size - valid_bytes,
                end_offset,
            )
            segment.truncate(valid_bytes)
        segment.rebuild_indexes(partition.config.index_interval_bytes)
        if is_torn:
            _drop_after(partition, position)
            break
    return first


def _scan(segment: Segment, trusted_offset: int) -> tuple[int, int]:
    """Bytes of whole, unbroken batches in the segment, and the offset that follows them."""
    end_offset = segment.base_offset
    if segment.size < HEADER_BYTES:
        return 0, end_offset
    position = 0
    with segment.path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        view = memoryview(data)
        try:
            for header in _headers(view):
                if header.base_offset < end_offset:
                    break
                if header.last_offset >= trusted_offset:
                    check_batch(view[position : position + header.size], header)
                position += header.size
                end_offset = header.next_offset
        except CorruptBatch as fault:
            log.warning("%s at %d: %s", segment.path, position, fault)
        finally:
            view.release()
    return position, end_offset


def _headers(view: memoryview) -> Iterator[BatchHeader]:
    position = 0
    while position + HEADER_BYTES <= len(view):
        header = read_header(view, position)
        if header.length <= 0 or position + header.size > len(view):
            return
        yield header
        position += header.size


def _drop_after(partition: PartitionLog, position: int) -> None:
    """Delete the segments after a torn one: their offsets would leave a hole that nobody wrote."""
    for segment in partition.segments[position + 1 :]:
        log.warning("%s follows a torn segment and is deleted", segment.path)
        segment.delete()
    del partition.segments[position + 1 :]


def _restore_producers(partition: PartitionLog, scanned_from: int, now_ms: int) -> None:
    """Bring back sequences, open and aborted transactions: from the newest snapshot, then from the log."""
    offset = _load_snapshot(partition)
    for segment in partition.segments:
        if segment.base_offset < scanned_from:
            for entry in read_entries(segment.path.with_suffix(".txnindex")):
                partition.aborted.add(entry)
            continue
        replace_file(segment.path.with_suffix(".txnindex"), pack_entries([]))
    for batch in partition.batches(offset):
        header = read_header(batch)
        if header.producer_id < 0:
            continue
        if not header.is_control:
            partition.producers.applied(header, header.base_offset, now_ms)
        elif header.count:
            _replay_marker(partition, batch, header, scanned_from, now_ms)


def _replay_marker(
    partition: PartitionLog, batch: bytes, header: BatchHeader, scanned_from: int, now_ms: int
) -> None:
    (record,) = decode_batch(batch)
    committed = record.key is not None and record.key[-1] == 1
    aborted = partition.producers.marker(
        header.producer_id, header.producer_epoch, header.base_offset, committed=committed, now_ms=now_ms
    )
    if aborted is not None and header.base_offset >= scanned_from:
        partition.note_aborted(aborted)


def _load_snapshot(partition: PartitionLog) -> int:
    """Load the newest readable snapshot; gives the offset from which the log must be replayed."""
    for path in sorted(partition.directory.glob("*.snapshot"), reverse=True):
        offset = int(path.stem)
        if offset <= partition.end_offset:
            try:
                partition.producers = ProducerStates.load(path.read_bytes())
            except CorruptSnapshot as fault:
                log.warning("%s: %s", path, fault)
            else:
                return offset
    return partition.start_offset
