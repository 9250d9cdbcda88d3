"""The folder in which backups are: chunks of files by their checksums, and a manifest per backup.

```text
<target>/format                 the number of this layout
<target>/lock                   held while a backup is made or deleted
<target>/chunks/3f/3f9a…        up to 4 MiB of a file; its name is the BLAKE2b checksum of its content
<target>/manifests/<id>.json    one backup: its files, each as a list of chunks
```

A backup is there when its manifest is. A chunk that exists already is not written again, so that a backup
adds what has changed since the last one. A file of the same inode, size and time of modification as in the
last backup is not even read.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import IO, TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError, Misuse
from headrace.folders import replace_file, sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

FORMAT: Final = 1
CHUNK_BYTES: Final = 4 * 2**20
SETTLED_NS: Final = 100_000_000
"""A file that was changed less than this before it was read may change again within one tick of the clock of
the file system, and is read again by the next backup."""

NEVER: Final = -1


class BackupDamaged(HeadraceError):
    """A chunk is missing, or its content does not have its checksum."""


class BackupInProgress(HeadraceError):
    """Another process makes a backup in the same folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file of a backup."""

    path: str
    """Relative to the folder that it belongs to."""
    size: int
    chunks: tuple[str, ...]
    inode: int
    modified_ns: int
    """`NEVER` if the file was changed just before it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One backup."""

    id: str
    version: str
    """The version of Headrace that made it."""
    created_at: str
    cluster_id: str
    jobs: tuple[str, ...] = ()
    """The jobs whose checkpoints are in it, as `app.job`."""
    left_out: tuple[str, ...] = ()
    """The jobs whose checkpoints are on a file system that is not mounted."""
    folders: dict[str, tuple[StoredFile, ...]] = field(default_factory=dict)
    """The files of the folders `data`, `state` and, if checkpoints are elsewhere, `checkpoints`."""
    new_bytes: int = 0
    """What this backup added to the chunks."""
    format: int = FORMAT

    @property
    def files(self) -> Iterator[StoredFile]:
        """The files of all folders."""
        for files in self.folders.values():
            yield from files

    @property
    def total_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size for file in self.files)

    @staticmethod
    def from_json(content: dict[str, Any]) -> Manifest:
        """The manifest in a file."""
        folders = {
            name: tuple(StoredFile(**{**file, "chunks": tuple(file["chunks"])}) for file in files)
            for name, files in content.pop("folders").items()
        }
        return Manifest(
            **{**content, "jobs": tuple(content["jobs"]), "left_out": tuple(content["left_out"])},
            folders=folders,
        )


class BackupStore:
    """The backups in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._chunks = path / "chunks"
        self._manifests = path / "manifests"
        self.new_bytes = 0
        """Bytes of chunks written by this object."""

    @staticmethod
    def open(path: Path) -> BackupStore:
        """The store in an existing folder."""
        try:
            number = int((path / "format").read_text())
        except FileNotFoundError:
            raise Misuse(f"there are no backups in {path}: it has no file 'format'.") from None
        if number > FORMAT:
            raise Misuse(
                f"the backups in {path} have format {number}, and this version of Headrace reads up to "
                f"{FORMAT}: use the version that wrote them."
            )
        return BackupStore(path)

    @staticmethod
    def create(path: Path) -> BackupStore:
        """The store in a folder, which is created if it does not exist."""
        if (path / "format").exists():
            return BackupStore.open(path)
        if path.exists() and any(path.iterdir()):
            raise Misuse(f"{path} has files that are no backups: name an empty folder.")
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o700)  # it has all records, and the keys of users
        (path / "chunks").mkdir(exist_ok=True)
        (path / "manifests").mkdir(exist_ok=True)
        replace_file(path / "format", f"{FORMAT}\n".encode())
        return BackupStore(path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """A block in which no other process writes to the store."""
        with (self.path / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BackupInProgress(
                    f"another process makes or deletes a backup in {self.path}: wait until it is done."
                ) from None
            yield

    # ---------------------------------------------------------------- manifests

    def ids(self) -> list[str]:
        """The ids of all backups, the oldest first."""
        return sorted(path.stem for path in self._manifests.glob("*.json"))

    def read(self, backup: str | None = None) -> Manifest:
        """A backup; the newest one if none is named."""
        ids = self.ids()
        if not ids:
            raise Misuse(f"there are no backups in {self.path}.")
        if backup is not None and backup not in ids:
            raise Misuse(f"there is no backup {backup!r} in {self.path}: there are {', '.join(ids)}.")
        return Manifest.from_json(json.loads((self._manifests / f"{backup or ids[-1]}.json").read_text()))

    def newest(self) -> Manifest | None:
        """The newest backup, if there is one."""
        return self.read() if self.ids() else None

    def add(self, manifest: Manifest) -> None:
        """Let a backup count, when its chunks are on disk."""
        os.sync()
        replace_file(self._manifests / f"{manifest.id}.json", json.dumps(asdict(manifest)).encode())

    def prune(self, keep: int) -> list[str]:
        """Delete all but the newest backups, and the chunks of no backup; returns the deleted ids."""
        (*deleted,) = self.ids()[: -keep or None]
        for backup in deleted:
            (self._manifests / f"{backup}.json").unlink()
        sync_directory(self._manifests)
        used = {chunk for backup in self.ids() for file in self.read(backup).files for chunk in file.chunks}
        for path in self._chunks.glob("*/*"):
            if path.name not in used:
                path.unlink()
        return deleted

    # ---------------------------------------------------------------- chunks

    def store(self, source: Path, path: str, size: int | None, known: StoredFile | None) -> StoredFile:
        """Store the first `size` bytes of a file, or the whole file; `known` is how it was stored before."""
        with source.open("rb") as file:
            status = os.fstat(file.fileno())
            size = status.st_size if size is None else size
            if known is not None and (known.inode, known.modified_ns, known.size) == (
                status.st_ino,
                status.st_mtime_ns,
                size,
            ):
                return known
            is_settled = time.time_ns() - status.st_mtime_ns > SETTLED_NS
            modified_ns = status.st_mtime_ns if is_settled else NEVER
            chunks = tuple(self._write(chunk) for chunk in _read_chunks(file, size))
        return StoredFile(path=path, size=size, chunks=chunks, inode=status.st_ino, modified_ns=modified_ns)

    def _write(self, data: bytes) -> str:
        name = _checksum(data)
        path = self._path(name)
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            replace_file(path, data, durable=False)  # all are synced before the manifest counts
            self.new_bytes += len(data)
        return name

    def read_chunk(self, name: str) -> bytes:
        """The content of a chunk; raises `BackupDamaged`."""
        try:
            data = self._path(name).read_bytes()
        except FileNotFoundError:
            raise BackupDamaged(f"chunk {name} of the backup in {self.path} is missing.") from None
        if _checksum(data) != name:
            raise BackupDamaged(f"chunk {name} of the backup in {self.path} does not have its checksum.")
        return data

    def check(self, files: Iterable[StoredFile]) -> None:
        """Read all chunks of files; raises `BackupDamaged` for the first that is not as it was written."""
        checked: set[str] = set()
        for file in files:
            for name in file.chunks:
                if name not in checked:
                    self.read_chunk(name)
                    checked.add(name)

    def write_file(self, file: StoredFile, folder: Path) -> None:
        """Write a file of a backup into a folder."""
        target = folder / file.path
        if not target.resolve().is_relative_to(folder.resolve()):
            raise BackupDamaged(f"the backup in {self.path} names a file outside of its folder: {file.path}")
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as output:
            for name in file.chunks:
                output.write(self.read_chunk(name))
            if output.tell() != file.size:
                raise BackupDamaged(f"{file.path} of the backup in {self.path} does not have its size.")

    def _path(self, name: str) -> Path:
        return self._chunks / name[:2] / name


def _read_chunks(file: IO[bytes], size: int) -> Iterator[bytes]:
    while size > 0:
        data = file.read(min(size, CHUNK_BYTES))
        if not data:
            raise FileNotFoundError(f"{file.name} became shorter while it was read")
        yield data
        size -= len(data)


def _checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=32).hexdigest()
