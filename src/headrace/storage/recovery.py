"""Opens a partition: at once after a clean stop, and after a crash with a scan from the recovery point on.

The scan verifies the checksum of every batch. The log ends before the first batch that is incomplete or
corrupt: it was never acknowledged as durable, and what follows it cannot be trusted. Segments below the
recovery point are not read, so that the time to start does not grow with the data.

The state of producers is restored from the newest snapshot before the scanned part, and from the batches
after it; aborted transactions from the files of segments before the scanned part, and from the markers in it.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.folders import replace_file
from headrace.protocol.batch import HEADER_BYTES, BatchHeader, check_batch, read_header
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import decode_batch
from headrace.storage.compaction import recover_swaps
from headrace.storage.errors import StorageError
from headrace.storage.index import read_entries, save_entries
from headrace.storage.partition import PartitionLog, run_inline
from headrace.storage.producers import CorruptSnapshot, ProducerStates
from headrace.storage.remote_segment import REMOTE, RemoteSegment, read_manifest
from headrace.storage.segment import LogSegment, segment_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from headrace.storage.config import TopicConfig
    from headrace.storage.remote_cache import RemoteLogCache
    from headrace.storage.segment import FilePool

log = logging.getLogger(__name__)


class PartitionCheckpoint(NamedTuple):
    """The checkpoint of a partition."""

    recovery_point: int = 0
    start_offset: int = 0
    first_dirty_offset: int = 0


NO_CHECKPOINT: Final = PartitionCheckpoint()
INDEX_SUFFIXES: Final = (".index", ".timeindex", ".txnindex")


def open_partition(
    directory: Path,
    config: TopicConfig,
    *,
    now_ms: int,
    checkpoint: PartitionCheckpoint = NO_CHECKPOINT,
    clean: bool = False,
    pool: FilePool | None = None,
    background: Callable[[Callable[[], None]], object] = run_inline,
    waits_for_sync: bool = False,
    remote_cache: RemoteLogCache | None = None,
) -> PartitionLog:
    """Open the partition in `directory`, or create it; `clean` says that it was closed properly."""
    directory.mkdir(parents=True, exist_ok=True)
    recover_swaps(directory)
    partition = PartitionLog(
        directory,
        config,
        pool=pool,
        background=background,
        waits_for_sync=waits_for_sync,
        remote_cache=remote_cache,
    )
    bases = _base_offsets(directory)
    _remove_leftovers(directory, bases)
    partition.segments = [_open_segment(partition, base) for base in bases]
    scanned_from = _find_end(partition, checkpoint.recovery_point, clean=clean)
    _find_start(partition, checkpoint.start_offset)
    partition.high_watermark = partition.end_offset
    partition.recovery_point = min(checkpoint.recovery_point, partition.end_offset)
    partition.first_dirty_offset = max(checkpoint.first_dirty_offset, partition.start_offset)
    snapshot = _restore_producers(partition, scanned_from, now_ms)
    if not clean:
        _sync_scanned(partition, scanned_from, snapshot)
    return partition


def _base_offsets(directory: Path) -> list[int]:
    paths = (path for pattern in ("*.log", f"*{REMOTE}") for path in directory.glob(pattern))
    return sorted({int(path.stem) for path in paths if path.stem.isdigit()})


def _open_segment(partition: PartitionLog, base_offset: int) -> LogSegment:
    """A segment on disk, or one of which only the archive has the batches."""
    manifest = read_manifest(partition.directory, base_offset)
    segment = LogSegment(partition.directory, base_offset, partition.pool)
    if manifest is None or segment.path.exists():
        segment.manifest = manifest
        return segment
    return RemoteSegment(partition.directory, manifest, partition.pool, partition.remote_cache)


def _remove_leftovers(directory: Path, bases: list[int]) -> None:
    """Delete temporary files of a crash, and the indexes of deleted segments."""
    names = {segment_name(base, "") for base in bases}
    for path in directory.iterdir():
        is_orphan = path.suffix in INDEX_SUFFIXES and path.stem not in names
        if is_orphan or path.suffix == ".tmp":
            with contextlib.suppress(OSError):
                path.unlink()


def _find_end(partition: PartitionLog, recovery_point: int, *, clean: bool) -> int:
    """Set the end offset; returns the offset from which on segments were scanned."""
    if clean:
        partition.end_offset = recovery_point
        return recovery_point
    first = max((s.base_offset for s in partition.segments if s.base_offset <= recovery_point), default=0)
    for position, segment in enumerate(partition.segments):
        if segment.base_offset < first:
            continue
        if isinstance(segment, RemoteSegment):
            partition.end_offset = segment.manifest.end_offset
            continue
        if segment.base_offset > first and _is_hole(partition, position):
            _drop_after(partition, position - 1)
            break
        valid_bytes, partition.end_offset = _scan(
            segment, recovery_point, partition.config.index_interval_bytes
        )
        if valid_bytes < segment.size:
            log.warning(
                "%s: %d bytes from offset %d on are incomplete or corrupt, and are truncated",
                segment.path,
                segment.size - valid_bytes,
                partition.end_offset,
            )
            segment.truncate(valid_bytes)
            _drop_after(partition, position)
            break
    return first


def _is_hole(partition: PartitionLog, position: int) -> bool:
    """Whether the segment before this one lost its end, at a batch boundary.

    Compaction also leaves gaps, but only in closed segments, which have an index.
    """
    segment, before = partition.segments[position], partition.segments[position - 1]
    if before.manifest is not None:
        return False
    was_closed = any(
        path.exists() for path in (before.path.with_suffix(".index"), segment.path.with_suffix(".snapshot"))
    )
    return partition.end_offset < segment.base_offset and not was_closed


def _scan(segment: LogSegment, trusted_offset: int, interval_bytes: int) -> tuple[int, int]:
    """Index the valid batches of a segment; returns their size, and the offset after them."""
    valid_bytes, end_offset = 0, segment.base_offset
    segment.begin_indexes()
    with _mapped(segment) as view:
        try:
            for position, header in _headers(view):
                if header.base_offset < end_offset:
                    break
                # A header with invalid offsets must not be mistaken for an old batch.
                if not header.base_offset <= header.last_offset < trusted_offset:
                    with view[position : position + header.size] as batch:
                        check_batch(batch, header)
                segment.index_batch(header, position, header.last_offset, interval_bytes)
                valid_bytes, end_offset = position + header.size, header.next_offset
        except CorruptBatch as fault:
            log.warning("%s at %d: %s", segment.path, valid_bytes, fault)
    return valid_bytes, end_offset


@contextlib.contextmanager
def _mapped(segment: LogSegment) -> Iterator[memoryview]:
    """The bytes of a log file, without reading them all."""
    if segment.size < HEADER_BYTES:
        yield memoryview(b"")
        return
    with segment.path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        view = memoryview(data)
        try:
            yield view
        finally:
            view.release()


def _headers(view: memoryview, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Yield position and header of each batch with a valid length."""
    while position + HEADER_BYTES <= len(view):
        header = read_header(view, position)
        if header.size < HEADER_BYTES or position + header.size > len(view):
            return
        yield position, header
        position += header.size


def _drop_after(partition: PartitionLog, position: int) -> None:
    """Delete the segments after an incomplete one: there would be a gap before them."""
    for segment in partition.segments[position + 1 :]:
        log.warning("%s follows an incomplete segment and is deleted", segment.path)
        segment.delete()
        segment.unlink()
    del partition.segments[position + 1 :]


def _find_start(partition: PartitionLog, start_offset: int) -> None:
    """Set the start offset, and open the last segment for writing."""
    if partition.segments and partition.end_offset < start_offset:
        # DeleteRecords moved the start into the part that was truncated: no record is left.
        log.warning("%s was truncated and continues at offset %d", partition.directory, start_offset)
        while partition.segments:
            last = partition.segments.pop()
            last.delete()
            last.unlink()
    if partition.segments:
        partition.start_offset = max(start_offset, partition.segments[0].base_offset)
        if isinstance(partition.active, RemoteSegment):
            partition.segments.append(LogSegment(partition.directory, partition.end_offset, partition.pool))
        partition.active.activate()
    else:
        partition.start_offset = partition.end_offset = start_offset
        partition.roll()


def _restore_producers(partition: PartitionLog, scanned_from: int, now_ms: int) -> bytes:
    """Restore sequences and transactions; returns a snapshot from the start of the last segment."""
    replayed_from = _load_snapshot(partition, scanned_from)
    try:
        _load_aborted(partition, scanned_from)
    except StorageError as fault:
        log.warning("%s; it is rebuilt from the log", fault)
        _rebuild_aborted(partition, scanned_from, now_ms)
    last = partition.active.base_offset
    _replay(partition, replayed_from, last, scanned_from, now_ms)
    snapshot = partition.producers.dump()
    _replay(partition, max(replayed_from, last), partition.end_offset, scanned_from, now_ms)
    return snapshot


def _load_snapshot(partition: PartitionLog, scanned_from: int) -> int:
    """Load the newest valid snapshot; returns the offset from which on the log must be replayed."""
    for path in sorted(partition.directory.glob("*.snapshot"), reverse=True):
        offset = int(path.stem)
        if offset > partition.end_offset:
            path.unlink()  # it includes lost batches, whose offsets will be used again
        elif offset <= scanned_from:
            try:
                partition.producers = ProducerStates.load(path.read_bytes())
            except CorruptSnapshot as fault:
                log.warning("%s: %s", path, fault)
                path.unlink()
            else:
                return offset
    # Not the start offset: an open transaction may have begun before it.
    return partition.segments[0].base_offset


def _load_aborted(partition: PartitionLog, scanned_from: int) -> None:
    entries = [
        entry
        for segment, end in _spans(partition)
        if segment.base_offset < scanned_from
        for entry in read_entries(segment.path.with_suffix(".txnindex"), segment.base_offset, end)
    ]
    for entry in entries:
        partition.aborted.add(entry)


def _rebuild_aborted(partition: PartitionLog, scanned_from: int, now_ms: int) -> None:
    """Find the aborted transactions of the segments before the scanned part, and rewrite their files."""
    first = partition.segments[0].base_offset
    producers, partition.producers = partition.producers, ProducerStates()
    _replay(partition, first, scanned_from, first, now_ms)
    partition.producers = producers
    with contextlib.suppress(OSError):  # with a full disk it is repeated at the next start
        for segment, end in _spans(partition):
            if segment.base_offset < scanned_from:
                aborted = partition.aborted.ended_between(segment.base_offset, end)
                save_entries(segment.path.with_suffix(".txnindex"), aborted)


def _spans(partition: PartitionLog) -> Iterator[tuple[LogSegment, int]]:
    """Each segment and its end offset."""
    ends = [segment.base_offset for segment in partition.segments[1:]]
    return zip(partition.segments, [*ends, partition.end_offset], strict=True)


def _replay(partition: PartitionLog, first: int, end: int, scanned_from: int, now_ms: int) -> None:
    """Apply the batches from `first` to before `end`, where a segment ends, to the producer states."""
    for segment, segment_end in _spans(partition):
        if segment_end <= first or segment.base_offset >= end:
            continue
        if isinstance(segment, RemoteSegment):
            log.warning("%s is in the archive, and its producers are not restored", segment.path)
            continue
        with _mapped(segment) as view:
            for position, header in _headers(view, segment.offset_index.floor(first)):
                if header.producer_id < 0 or header.last_offset < first:
                    continue
                if not header.is_control:
                    partition.producers.applied(header, header.base_offset, now_ms)
                elif header.count:
                    batch = bytes(view[position : position + header.size])
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
        partition.aborted.add(aborted)


def _sync_scanned(partition: PartitionLog, scanned_from: int, snapshot: bytes) -> None:
    """Sync and index the scanned segments, so that they need not be scanned again.

    Not required: with a full disk they are scanned again at the next start.
    """
    try:
        for segment, follower in pairwise(partition.segments):
            if segment.base_offset >= scanned_from and not isinstance(segment, RemoteSegment):
                segment.sync()
                segment.save_indexes()
                aborted = partition.aborted.ended_between(segment.base_offset, follower.base_offset)
                save_entries(segment.path.with_suffix(".txnindex"), aborted)
        last = partition.active.base_offset
        snapshot_path = partition.directory / segment_name(last, ".snapshot")
        if last > partition.recovery_point or (last and not snapshot_path.exists()):
            # Its segments may be deleted before the next start.
            replace_file(snapshot_path, snapshot)
        partition.recovery_point = max(partition.recovery_point, last)
        if partition.waits_for_sync:
            partition.sync()
    except OSError as fault:
        log.warning("%s is scanned again at the next start: %s", partition.directory, fault)
