"""Archives for tests: a folder, and a store around another one that fails when it is told to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.storage.archive_store import ArchiveStore, open_archive
from headrace.storage.errors import ArchiveError
from headrace.storage.remote_cache import RemoteLogCache
from headrace.storage.remote_segment import object_prefix, upload_segment
from headrace.storage.tiering import archivable, delete_archived

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from headrace.storage.partition import PartitionLog

FOLDER = object_prefix("topic", 0)


class Killed(BaseException):
    """Stands for the end of the process: nothing after it happens."""


class FaultyStore:
    """A store whose next calls fail: before they have an effect, after it, or by the end of the process."""

    def __init__(self, store: ArchiveStore) -> None:
        self.store = store
        self.calls = 0
        self.fails_at: int | None = None
        """The number of the call that fails."""
        self.fault: BaseException = ArchiveError("injected")
        self.fails_after_effect = False

    def fail_in(self, calls: int, fault: BaseException, *, after_effect: bool = False) -> None:
        """Let the call after so many others fail."""
        self.fails_at, self.fault, self.fails_after_effect = self.calls + calls, fault, after_effect

    def _begin(self) -> bool:
        """Whether this call fails after its effect."""
        self.calls += 1
        if self.calls - 1 != self.fails_at:
            return False
        if self.fails_after_effect:
            return True
        raise self.fault

    def put(self, name: str, data: bytes | Iterator[bytes]) -> None:
        fails = self._begin()
        self.store.put(name, data)
        if fails:
            raise self.fault

    def get(self, name: str) -> bytes:
        self._begin()
        return self.store.get(name)

    def get_range(self, name: str, start: int, size: int) -> bytes:
        self._begin()
        return self.store.get_range(name, start, size)

    def size(self, name: str) -> int | None:
        self._begin()
        return self.store.size(name)

    def list(self, prefix: str) -> Iterator[str]:
        self._begin()
        return self.store.list(prefix)

    def delete(self, names: Iterable[str]) -> None:
        fails = self._begin()
        self.store.delete(names)
        if fails:
            raise self.fault


def folder_archive(folder: Path) -> ArchiveStore:
    """An archive in a folder."""
    return open_archive(folder.as_uri())


def cache_of(store: ArchiveStore, folder: Path, limit_bytes: int = 2**20) -> RemoteLogCache:
    """A cache that downloads in the foreground."""
    return RemoteLogCache(store, folder, limit_bytes=limit_bytes)


def archive_closed(log: PartitionLog, store: ArchiveStore, piece_bytes: int = 512) -> int:
    """Do for one partition what the broker does: delete what was deleted, upload what is closed."""
    delete_archived(store, log.directory, FOLDER)
    found = archivable(log, log.recovery_point)
    for segment, end_offset in found:
        segment.manifest = upload_segment(store, segment, end_offset, FOLDER, piece_bytes=piece_bytes)
    return len(found)
