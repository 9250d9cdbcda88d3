"""The broker's data folder.

DATA/format                            the number of this layout; folders of version 0.1 have none
DATA/cluster-id                        the cluster id
DATA/lock                              locked while a broker runs; has its process id
DATA/control                           the socket by which a running broker makes snapshots of the folder
DATA/clean-stop                        exists only after a clean stop
DATA/recovery-point-offset-checkpoint  batches below these offsets are synced
DATA/log-start-offset-checkpoint       log start offsets
DATA/cleaner-offset-checkpoint         first offsets that were not compacted
DATA/memory-offset-checkpoint          next offsets of in-memory partitions
DATA/archive-epoch                     grows at each start of a broker with an archive
DATA/remote-log-cache/                 archived records that were read; emptied at each start
DATA/remote-log-deletions/             partitions of deleted topics, whose archived records have to be deleted
DATA/<topic>-<partition>/              segments

A snapshot is the data folder at one moment, made of hard links. Its files are those that a crash at that
moment would leave, so that opening them is the usual recovery. Most of the work is done before the moment, in
a thread:

1. `prepare` links the files of all partitions.
2. `try_complete` is called by the only writer, the event loop. It links the checkpoints, and the segments
   that were rolled, closed or compacted since, and notes the size of every segment. A segment only grows, so
   that its first bytes stay as they were at the moment.

A snapshot takes no space until retention or compaction deletes a file that it links.
"""

from __future__ import annotations

import base64
import fcntl
import json
import logging
import os
import shutil
import threading
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.folders import replace_file, sync_directory
from headrace.storage.checkpoint import OffsetCheckpoint, Offsets
from headrace.storage.errors import DataFolderLocked, DiskError, StorageError, UnknownFormat
from headrace.storage.memory_log import MemoryPartitions
from headrace.storage.partition import PartitionLog, run_inline
from headrace.storage.recovery import NO_CHECKPOINT, PartitionCheckpoint, open_partition
from headrace.storage.segment import SUFFIXES, FilePool

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from headrace.storage.config import TopicConfig
    from headrace.storage.log import Log
    from headrace.storage.remote_cache import RemoteLogCache
    from headrace.storage.segment import LogSegment


logger = logging.getLogger(__name__)

LOCK: Final = "lock"
FORMAT_FILE: Final = "format"
FORMAT: Final = 1
"""The number of the layout that this version writes. It reads all before it: 0 is that of version 0.1, whose
files were the same."""
CLUSTER_ID: Final = "cluster-id"
CLEAN_STOP: Final = "clean-stop"
CHECKPOINT: Final = "-checkpoint"
DELETED_SUFFIX: Final = ".deleted"
DELETIONS: Final = "remote-log-deletions"
OPEN_FILES: Final = 256
"""The most files that are open for reading, and as many for writing."""
MEMORY_BYTES: Final = 2**30
"""The default memory limit of all in-memory partitions."""

SNAPSHOT_FOLDER: Final = "snapshot-{}.deleted"
"""The suffix lets the next start delete what a crash has left."""
SNAPSHOT_SIZES: Final = "sizes.json"
"""The file with the sizes of the files in the snapshot: those that are not named belong as a whole to it."""
SNAPSHOT_SUFFIXES: Final = tuple(suffix for suffix in SUFFIXES if suffix != ".snapshot")


def lock_folder(path: Path) -> int:
    """Take a data folder for this process until the returned descriptor is closed."""
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise DataFolderLocked(
            f"{path} is in use by the broker with process id {holder}: "
            "stop it first, or start this one with another folder (--data DIR)"
        ) from None
    with suppress(OSError):  # informational only: a broker starts also with a full disk
        os.ftruncate(descriptor, os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0))
    return descriptor


def claim_format(path: Path) -> None:
    """Let the folder have the format of this version; raises `UnknownFormat` if it has a newer one.

    The number is changed before anything else is: an older version that is started afterwards refuses the
    folder, and does not misread it.
    """
    found = read_format(path)
    if found > FORMAT:
        raise UnknownFormat(
            f"{path} has data format {found}, and this version of Headrace reads formats up to {FORMAT}: "
            "start the version that wrote it, or restore a backup that was made before the upgrade"
        )
    if found < FORMAT:
        replace_file(path / FORMAT_FILE, f"{FORMAT}\n".encode())


def read_format(path: Path) -> int:
    """The number in a data folder; 0 if it has none."""
    try:
        text = (path / FORMAT_FILE).read_text()
    except FileNotFoundError:
        return 0
    try:
        return int(text)
    except ValueError:
        raise StorageError(
            f"{path / FORMAT_FILE} is damaged: it says {text[:20]!r}, where the number of the data format is"
        ) from None


class DataFolder:
    """The files of one broker. One process at a time can open it."""

    def __init__(
        self,
        path: Path,
        *,
        background: Callable[[Callable[[], None]], object] = run_inline,
        waits_for_sync: bool = False,
        memory_bytes: int = MEMORY_BYTES,
        open_files: int = OPEN_FILES,
        remote_cache: RemoteLogCache | None = None,
    ) -> None:
        self.path = path
        self.background = background
        self.waits_for_sync = waits_for_sync
        self.remote_cache = remote_cache
        self.pool = FilePool(open_files)
        self.partitions: dict[tuple[str, int], PartitionLog] = {}
        """The partitions on disk; others are in `memory`."""
        # Records are private: other users of the machine cannot list the folder.
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = lock_folder(path)
        try:
            claim_format(path)
        except BaseException:
            os.close(self._lock)
            raise
        self._recovery_points = OffsetCheckpoint(path / "recovery-point-offset-checkpoint")
        self._start_offsets = OffsetCheckpoint(path / "log-start-offset-checkpoint")
        self._first_dirty = OffsetCheckpoint(path / "cleaner-offset-checkpoint")
        self.checkpoint_lock = threading.Lock()
        """Held while checkpoints are saved, and while a snapshot is completed."""
        self.memory = MemoryPartitions(path / "memory-offset-checkpoint", memory_bytes)
        self.cluster_id = self._read_cluster_id()
        self._clean_stop = path / CLEAN_STOP
        self.was_clean = self._clean_stop.exists()
        self._clean_stop.unlink(missing_ok=True)
        sync_directory(path)
        for leftover in path.glob(f"*{DELETED_SUFFIX}"):
            shutil.rmtree(leftover)

    def _read_cluster_id(self) -> str:
        path = self.path / CLUSTER_ID
        if not path.exists():
            replace_file(path, base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"="))
        return path.read_text()

    def open(self, topic: str, partition: int, config: TopicConfig, now_ms: int) -> Log:
        """Open the log of a partition; creates a new one."""
        key = (topic, partition)
        if config.is_in_memory:
            return self.memory.open(key, config)
        try:
            opened = self._open(key, self.path / f"{topic}-{partition}", config, now_ms)
        except OSError as fault:
            raise DiskError(
                f"partition {partition} of {topic} could not be opened: {fault.strerror}; free disk space"
            ) from fault
        self.partitions[key] = opened
        return opened

    def _open(self, key: tuple[str, int], directory: Path, config: TopicConfig, now_ms: int) -> PartitionLog:
        is_new = not directory.exists()
        recovery_point, checkpoint = self._take_checkpoint(key)
        if is_new and self._has_checkpoint(key):
            # They belong to a deleted topic of the same name, and would be used after a crash.
            self.checkpoint()
        opened = open_partition(
            directory,
            config,
            now_ms=now_ms,
            checkpoint=NO_CHECKPOINT if is_new else checkpoint,
            clean=self.was_clean and recovery_point is not None and not is_new,
            pool=self.pool,
            background=self.background,
            waits_for_sync=self.waits_for_sync,
            remote_cache=self.remote_cache,
        )
        opened.is_new_folder = is_new
        return opened

    def _take_checkpoint(self, key: tuple[str, int]) -> tuple[int | None, PartitionCheckpoint]:
        """The checkpoint of a partition; the recovery point is None if there is none."""
        recovery_point = self._recovery_points.take(key)
        checkpoint = PartitionCheckpoint(
            recovery_point=recovery_point or 0,
            start_offset=self._start_offsets.take(key) or 0,
            first_dirty_offset=self._first_dirty.take(key) or 0,
        )
        return recovery_point, checkpoint

    def _has_checkpoint(self, key: tuple[str, int]) -> bool:
        return any(
            each.holds(key) for each in (self._recovery_points, self._start_offsets, self._first_dirty)
        )

    def forget_archived(self, topic_id: object, partition: int) -> None:
        """Note that the archived records of a partition have to be deleted, before the partition is."""
        folder = self.path / DELETIONS
        folder.mkdir(exist_ok=True)
        (folder / f"{topic_id}.{partition}").touch()

    def delete(self, topic: str, partition: int) -> None:
        """Delete a partition; its files are removed in the background."""
        if (topic, partition) in self.memory:
            self.memory.delete((topic, partition))
            return
        log = self.partitions.pop((topic, partition))
        log.is_deleted = True
        for segment in log.segments:
            segment.delete()
        self._remove(log.directory)

    def discard(self, topic: str, partition: int) -> None:
        """Delete a partition that is not open: the broker crashed while it deleted the topic."""
        self.memory.discard((topic, partition))
        directory = self.path / f"{topic}-{partition}"
        if directory.is_dir():
            self._remove(directory)

    def _remove(self, directory: Path) -> None:
        # A unique name: a topic of the same name may be deleted again before the files are removed.
        target = self.path / f"{uuid.uuid4().hex}{DELETED_SUFFIX}"
        directory.rename(target)
        self.background(lambda: shutil.rmtree(target, ignore_errors=True))

    def checkpoint(self) -> None:
        """Save log start offsets, recovery points and first dirty offsets; may run in the background."""
        try:
            with self.checkpoint_lock:
                self._save_checkpoints()
        except OSError as fault:
            raise DiskError(
                f"the checkpoints in {self.path} could not be written: {fault.strerror}; free disk space"
            ) from fault

    def _save_checkpoints(self) -> None:
        partitions = dict(self.partitions)
        recovery: Offsets = {key: log.recovery_point for key, log in partitions.items()}
        starts: Offsets = {key: log.start_offset for key, log in partitions.items() if log.start_offset}
        dirty: Offsets = {
            key: log.first_dirty_offset for key, log in partitions.items() if log.first_dirty_offset
        }
        for key in self._recovery_points.save(recovery):
            partitions[key].prune_snapshots(recovery[key])
        self._start_offsets.save(starts)
        self._first_dirty.save(dirty)

    def metadata_files(self) -> list[Path]:
        """The files of a running broker's folder that belong to no partition."""
        return [
            path
            for path in self.path.iterdir()
            if path.name in (FORMAT_FILE, CLUSTER_ID) or path.name.endswith(CHECKPOINT)
        ]

    def close(self) -> None:
        """Stop cleanly, so that the next start needs no scan, unless the disk is full."""
        try:
            for log in self.partitions.values():
                log.close()
            self.checkpoint()
            self.memory.close()
            replace_file(self._clean_stop, b"")
        except (OSError, DiskError) as fault:
            logger.warning("the next start will scan the log: %s", fault)
        os.close(self._lock)

    def abandon(self) -> None:
        """Release the folder without saving anything, like a crash (for tests of recovery)."""
        os.close(self._lock)


class _LinkedPartition(NamedTuple):
    log: PartitionLog
    recovery_point: int
    segments: dict[int, LogSegment]


class FolderSnapshot:
    """One snapshot: `prepare` it in a thread, complete it on the event loop, and `delete` it after use."""

    def __init__(self, folder: DataFolder) -> None:
        self._folder = folder
        self.path = folder.path / SNAPSHOT_FOLDER.format(uuid.uuid4().hex)
        self._linked: dict[str, _LinkedPartition] = {}

    def prepare(self) -> None:
        """Link the files of all partitions; may take long."""
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
        (self.path / SNAPSHOT_SIZES).write_text(json.dumps(sizes))

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
        for suffix in SNAPSHOT_SUFFIXES:
            source = segment.path.with_suffix(suffix)
            _link(source, self.path / segment.directory.name / source.name)

    def _unlink_segment(self, segment: LogSegment) -> None:
        path = self.path / segment.directory.name / segment.path.name
        for suffix in SNAPSHOT_SUFFIXES:
            path.with_suffix(suffix).unlink(missing_ok=True)


def _link(source: Path, target: Path) -> None:
    with suppress(FileNotFoundError):  # not every segment has all files, and retention deletes some
        os.link(source, target)
