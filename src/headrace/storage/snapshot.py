"""A snapshot of the data folder at one moment, made of hard links.

The files of a snapshot are those that a crash at that moment would leave, so that opening them is the usual
recovery. Most of the work is done before the moment, in a thread:

1. `prepare` links the files of all partitions.
2. `try_complete` is called by the only writer, the event loop. It links the checkpoints, and the segments
   that were rolled, closed or compacted since, and notes the size of every segment. A segment only grows, so
   that its first bytes stay as they were at the moment.

A snapshot takes no space until retention or compaction deletes a file that it links.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.storage.segment import SUFFIXES

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.storage.folder import DataFolder
    from headrace.storage.partition import PartitionLog
    from headrace.storage.segment import LogSegment

FOLDER: Final = "snapshot-{}.deleted"
"""The suffix lets the next start delete what a crash has left."""
SIZES: Final = "sizes.json"
"""The file with the sizes of the files in the snapshot: those that are not named belong as a whole to it."""
SEGMENT_SUFFIXES: Final = tuple(suffix for suffix in SUFFIXES if suffix != ".snapshot")


class _LinkedPartition(NamedTuple):
    log: PartitionLog
    recovery_point: int
    segments: dict[int, LogSegment]


class FolderSnapshot:
    """One snapshot: `prepare` it in a thread, complete it on the event loop, and `delete` it after use."""

    def __init__(self, folder: DataFolder) -> None:
        self._folder = folder
        self.path = folder.path / FOLDER.format(uuid.uuid4().hex)
        self._linked: dict[str, _LinkedPartition] = {}

    def prepare(self) -> None:
        """Link what is there; may take as long as it likes."""
        self.path.mkdir(mode=0o700)
        for log in tuple(self._folder.partitions.values()):
            self._link_partition(log)

    def try_complete(self) -> bool:
        """Let the snapshot be that of this moment; False if files are just being replaced: try again."""
        if any(log.is_swapping for log in self._folder.partitions.values()):
            return False
        if not self._folder.checkpoint_lock.acquire(blocking=False):
            return False
        try:
            self._complete()
        finally:
            self._folder.checkpoint_lock.release()
        return True

    def _complete(self) -> None:
        for path in self._folder.metadata_files():
            _link(path, self.path / path.name)
        sizes: dict[str, dict[str, int]] = {}
        for log in self._folder.partitions.values():
            linked = self._linked.get(log.directory.name)
            if linked is None or linked.log is not log or linked.recovery_point != log.recovery_point:
                linked = self._link_partition(log)
            for segment in log.segments:
                if linked.segments.pop(segment.base_offset, None) is not segment:
                    self._link_segment(segment)
            for segment in linked.segments.values():  # they were deleted since
                self._unlink_segment(segment)
            sizes[log.directory.name] = {segment.path.name: segment.size for segment in log.segments}
        for name in self._linked.keys() - sizes.keys():
            shutil.rmtree(self.path / name)
        (self.path / SIZES).write_text(json.dumps(sizes))

    def delete(self) -> None:
        """Delete the links."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _link_partition(self, log: PartitionLog) -> _LinkedPartition:
        folder = self.path / log.directory.name
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir()
        # The recovery point is read first: the files that a recovery from there needs exist already.
        linked = _LinkedPartition(
            log, log.recovery_point, {segment.base_offset: segment for segment in tuple(log.segments)}
        )
        self._linked[log.directory.name] = linked
        for segment in linked.segments.values():
            self._link_segment(segment)
        for path in log.directory.glob("*.snapshot"):
            _link(path, folder / path.name)
        return linked

    def _link_segment(self, segment: LogSegment) -> None:
        self._unlink_segment(segment)
        for suffix in SEGMENT_SUFFIXES:
            source = segment.path.with_suffix(suffix)
            _link(source, self.path / segment.directory.name / source.name)

    def _unlink_segment(self, segment: LogSegment) -> None:
        path = self.path / segment.directory.name / segment.path.name
        for suffix in SEGMENT_SUFFIXES:
            path.with_suffix(suffix).unlink(missing_ok=True)


def _link(source: Path, target: Path) -> None:
    with suppress(FileNotFoundError):  # not every segment has all files, and retention deletes some
        os.link(source, target)
