"""Tiered storage of one partition: which segments to archive, and which to keep on the local disk.

The list of segments of a partition always covers all of its offsets. A segment is first only local, then
local and archived (it has a `manifest`), then only archived (a `RemoteSegment`). Retention counts all of
them.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.storage.remote_segment import (
    MANIFEST,
    REMOTE,
    REMOTE_DELETED,
    RemoteSegment,
    SegmentManifest,
    object_prefix,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from headrace.storage.archive_store import ArchiveStore
    from headrace.storage.partition import PartitionLog
    from headrace.storage.segment import LogSegment


READ_AHEAD: Final = 3
"""Pieces that are downloaded before a consumer needs them."""


class ArchivableSegment(NamedTuple):
    """A closed segment, and the offset after its last batch."""

    segment: LogSegment
    end_offset: int


def archivable(log: PartitionLog, recovery_point: int) -> list[ArchivableSegment]:
    """The closed segments that are not in the archive, the oldest first.

    As in Apache Kafka, those with an open transaction are not archived yet: it may still be aborted. Nor are
    those beyond the recovery point, which a crash may truncate.
    """
    end = min(log.last_stable_offset, recovery_point)
    return [
        ArchivableSegment(segment, follower.base_offset)
        for segment, follower in pairwise(tuple(log.segments))
        if segment.manifest is None and log.start_offset < follower.base_offset <= end
    ]


def archived_end(log: PartitionLog) -> int:
    """The offset after the oldest uninterrupted run of archived segments; the log start if there is none."""
    end = log.segments[0].base_offset if log.segments else 0
    for segment in tuple(log.segments):
        if segment.manifest is None:
            break
        end = segment.manifest.end_offset
    return max(end, log.start_offset)


def has_archived(log: PartitionLog) -> bool:
    """Whether a segment of the log is in the archive."""
    return any(segment.manifest is not None for segment in log.segments)


def local_start(log: PartitionLog) -> int:
    """The first offset on the local disk."""
    first = next(segment for segment in log.segments if not isinstance(segment, RemoteSegment))
    return max(first.base_offset, log.start_offset)


def local_size(log: PartitionLog) -> int:
    """The bytes of the segments on the local disk."""
    return sum(segment.size for segment in log.segments if not isinstance(segment, RemoteSegment))


def apply_local_retention(log: PartitionLog, now_ms: int) -> int:
    """Delete the local copy of archived segments beyond the local retention; returns the deleted bytes."""
    max_age_ms, max_bytes = (
        log.config.effective_local_retention_ms,
        log.config.effective_local_retention_bytes,
    )
    surplus = local_size(log) - max_bytes
    freed = 0
    for position, segment in enumerate(log.segments[:-1]):
        if isinstance(segment, RemoteSegment):
            continue
        is_old = max_age_ms >= 0 and segment.load_age_ms() < now_ms - max_age_ms
        is_surplus = max_bytes >= 0 and surplus >= segment.size
        if segment.manifest is None or not (is_old or is_surplus) or log.is_swapping:
            break
        surplus -= segment.size
        freed += segment.size
        _drop_local(log, position, segment, segment.manifest)
    return freed


def _drop_local(log: PartitionLog, position: int, segment: LogSegment, manifest: SegmentManifest) -> None:
    log.segments[position] = RemoteSegment(log.directory, manifest, log.pool, log.remote_cache)
    segment.delete()
    # Readers keep the file open.
    log.background(lambda: segment.path.unlink(missing_ok=True))


def read_ahead(log: PartitionLog, segment: LogSegment, position: int) -> None:
    """Download the pieces that a consumer at a position will read next."""
    if log.remote_cache is None or not isinstance(segment, RemoteSegment):
        return
    pieces = segment.pieces_after(position)
    if len(pieces) < READ_AHEAD:
        index = bisect_right(log.segments, segment.base_offset, key=attrgetter("base_offset"))
        follower = log.segments[index]
        if isinstance(follower, RemoteSegment):
            pieces += follower.pieces_after(-1)
    log.remote_cache.read_ahead(pieces[:READ_AHEAD])


def stop_tiering(log: PartitionLog) -> None:
    """Begin to delete the archived copies; what is only in the archive is deleted from the log."""
    start = local_start(log)
    for segment in log.segments:
        if segment.manifest is not None:
            segment.path.with_suffix(REMOTE).rename(segment.path.with_suffix(REMOTE_DELETED))
            if not isinstance(segment, RemoteSegment):
                segment.manifest = None
    if start > log.start_offset:
        log.move_start(min(start, log.high_watermark))


def delete_archived(store: ArchiveStore, directory: Path, folder: str) -> int:
    """Delete the objects of segments that were deleted; returns how many segments. Blocks."""
    markers = sorted(directory.glob(f"*{REMOTE_DELETED}"))
    for marker in markers:
        prefix = folder + marker.stem
        data = marker.read_bytes()
        if data:
            names = SegmentManifest.load(data).objects()
        else:  # the upload was not complete
            names = [
                prefix + suffix
                for suffix in (MANIFEST, ".log", ".index", ".timeindex", ".txnindex", ".snapshot")
            ]
        store.delete(names[:1])
        store.delete(names[1:])
        marker.unlink()
    return len(markers)


def delete_partition_objects(store: ArchiveStore, topic_id: object, partition: int) -> None:
    """Delete all objects of a partition of a deleted topic, the manifests first. Blocks."""
    names = list(store.list(object_prefix(topic_id, partition)))
    store.delete([name for name in names if name.endswith(MANIFEST)])
    store.delete([name for name in names if not name.endswith(MANIFEST)])


def contiguous(manifests: Sequence[SegmentManifest], start_offset: int) -> list[SegmentManifest]:
    """The manifests from the start on, up to the first gap."""
    found: list[SegmentManifest] = []
    for manifest in sorted(manifests, key=lambda each: each.base_offset):
        if manifest.end_offset <= start_offset:
            continue
        if found and manifest.base_offset != found[-1].end_offset:
            break
        found.append(manifest)
    return found
