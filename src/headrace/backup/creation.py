"""Makes a backup: the data of a broker and the checkpoints of its jobs at one moment.

1. Read the folders of jobs, while everything runs: most of their files do not change any more. The broker
   prepares a snapshot of its data folder.
2. Pause all jobs between two batches.
3. Read what has changed in the folders of jobs.
4. Complete the snapshot of the broker's data folder. This is the moment of the backup. The jobs continue.
5. Read the snapshot.

The snapshot comes last because a job may plan its next batch while it is paused: the records that the plan
names must be in the snapshot.
"""

from __future__ import annotations

import json
import os
import socket
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from headrace.backup.store import BackupStore, Manifest, StoredFile
from headrace.broker.control import COMPLETE, SOCKET, socket_address
from headrace.errors import HeadraceError, Misuse
from headrace.storage.errors import DataFolderLocked
from headrace.storage.folder import CLUSTER_ID, LOCK, SNAPSHOT_SIZES, lock_folder
from headrace.streams.job_folder import started_folders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.streams.job_folder import JobFolder

MAX_PASSES: Final = 20
NOT_COPIED: Final = frozenset({LOCK, SOCKET})
LEFT_OUT_SUFFIXES: Final = frozenset({".lock", ".tmp"})

Files = tuple[StoredFile, ...]


class FolderKeepsChanging(HeadraceError):
    """The files of a job changed each time they were read."""


class SnapshotFailed(HeadraceError):
    """The broker could not take a snapshot of its data folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What is to be backed up."""

    data: Path
    """The data folder of the broker."""
    state: Path | None = None
    """The state folder of jobs, if there is one."""
    wait_s: float = 300.0
    """How long a batch may take to end."""
    leaves_out_remote: bool = False
    """Leave out checkpoints on a file system that is not mounted; without it they are an error."""


def create_backup(target: Path, sources: Sources) -> Manifest:
    """Make a backup in the folder `target`; returns when it is on disk."""
    if not (sources.data / CLUSTER_ID).exists():
        raise Misuse(f"{sources.data} is not the data folder of a broker: name it (--data DIR).")
    store = BackupStore.create(target)
    with store.locked():
        return _Backup(store, sources).run()


class _Backup:
    def __init__(self, store: BackupStore, sources: Sources) -> None:
        self._store = store
        self._sources = sources
        last = store.newest()
        self._known = (
            {}
            if last is None
            else {name: {file.path: file for file in files} for name, files in last.folders.items()}
        )

    def run(self) -> Manifest:
        sources = self._sources
        self._refuse_remote(_started(sources))
        self._read_folders(_subfolders(_started(sources)), self._read)
        with ExitStack() as stack:
            data = stack.enter_context(_open_data(sources.data))
            with ExitStack() as paused:
                jobs = self._pause(paused)
                self._refuse_remote(jobs)
                files = self._read_folders(_subfolders(jobs), self._read_settled)
                data.complete()
                created_at = datetime.now(UTC)
            files["data"] = self._read_data(data)
        manifest = Manifest(
            id=self._new_id(created_at),
            version=version("headrace"),
            created_at=created_at.isoformat(timespec="milliseconds"),
            cluster_id=(sources.data / CLUSTER_ID).read_text(),
            jobs=tuple(_name(job) for job in jobs if job.local_checkpoints is not None),
            left_out=tuple(_name(job) for job in jobs if job.local_checkpoints is None),
            folders=files,
            new_bytes=self._store.new_bytes,
        )
        self._store.add(manifest)
        return manifest

    def _refuse_remote(self, jobs: list[JobFolder]) -> None:
        """Refuse checkpoints that cannot be copied, unless they are to be left out."""
        remote = [job for job in jobs if job.local_checkpoints is None]
        if remote and not self._sources.leaves_out_remote:
            names = ", ".join(map(_name, remote))
            raise Misuse(
                f"the checkpoints of these jobs are on a file system that is not mounted here: {names}. A "
                "backup without them restores no state of these jobs. Mount it, or leave them out "
                "(--leave-out-remote) and use the snapshots of that file system."
            )

    def _pause(self, stack: ExitStack) -> list[JobFolder]:
        """Pause all jobs, also those that are started meanwhile; returns them."""
        paused: dict[Path, JobFolder] = {}
        while new := [job for job in _started(self._sources) if job.path not in paused]:
            for job in new:
                stack.enter_context(job.barrier.paused(self._sources.wait_s))
                paused[job.path] = job
        return list(paused.values())

    def _new_id(self, created_at: datetime) -> str:
        moment = created_at.strftime("%Y%m%dT%H%M%S.%f")[:-3] + "Z"
        return moment if moment not in self._store.ids() else f"{moment}-{os.getpid()}"

    def _read_folders(
        self, folders: dict[str, dict[str, Path]], read: Callable[[str, dict[str, Path]], Files]
    ) -> dict[str, Files]:
        return {name: read(name, subfolders) for name, subfolders in folders.items()}

    def _read(self, name: str, subfolders: dict[str, Path]) -> Files:
        """Store the files that are there; some may be deleted meanwhile."""
        known = self._known.get(name, {})
        stored = {}
        for path, source in _files(subfolders):
            with suppress(FileNotFoundError):
                stored[path] = self._store.store(source, path, None, known.get(path))
        self._known[name] = stored
        return tuple(stored.values())

    def _read_settled(self, name: str, subfolders: dict[str, Path]) -> Files:
        """Store the files, until nothing changed while they were read.

        No batch runs, but Spark may still complete the files of the last one or delete old ones.
        """
        before = _status(subfolders)
        for _ in range(MAX_PASSES):
            files = self._read(name, subfolders)
            after = _status(subfolders)
            if before == after:
                return files
            before = after
        raise FolderKeepsChanging(
            f"files of jobs changed each of the {MAX_PASSES} times that they were read, although no batch "
            "runs: stop what writes to the state folder, and try again."
        )

    def _read_data(self, data: _Data) -> Files:
        known = self._known.get("data", {})
        sizes = data.sizes()
        stored = []
        for path, source in _files({"": data.folder}):
            if path != SNAPSHOT_SIZES:
                partition, _, name = path.rpartition("/")
                size = sizes.get(partition, {}).get(name)
                stored.append(self._store.store(source, path, size, known.get(path)))
        return tuple(stored)


def _started(sources: Sources) -> list[JobFolder]:
    return [] if sources.state is None else started_folders(sources.state)


def _subfolders(jobs: list[JobFolder]) -> dict[str, dict[str, Path]]:
    """The folders of jobs, by the name of the folder in the backup and the path in that folder."""
    folders: dict[str, dict[str, Path]] = {}
    if jobs:
        folders["state"] = {f"{job.app}/{job.name}": job.path for job in jobs}
    elsewhere = {
        f"{job.app}/{job.name}": path
        for job in jobs
        if (path := job.local_checkpoints) is not None and path != job.path
    }
    if elsewhere:
        folders["checkpoints"] = elsewhere
    return folders


def _files(subfolders: dict[str, Path]) -> Iterator[tuple[str, Path]]:
    """The regular files below folders, with their paths in the backup."""
    for prefix, folder in subfolders.items():
        for parent, names, files in os.walk(folder):
            names.sort()
            for name in sorted(files):
                path = Path(parent, name)
                is_left_out = name in NOT_COPIED or path.suffix in LEFT_OUT_SUFFIXES
                if not is_left_out and path.is_file() and not path.is_symlink():
                    yield str(Path(prefix) / path.relative_to(folder)), path


def _status(subfolders: dict[str, Path]) -> dict[str, tuple[int, int, int]]:
    """Inode, size and time of modification of the files below folders."""
    found = {}
    for path, source in _files(subfolders):
        with suppress(FileNotFoundError):
            status = source.stat()
            found[path] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return found


class _Data:
    """The data folder of a broker that does not run, which stays as it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def complete(self) -> None:
        """Let the data be those of this moment."""

    def sizes(self) -> dict[str, dict[str, int]]:
        """The sizes of files at the moment, if they are larger now."""
        return {}


class _Snapshot(_Data):
    """A snapshot that a running broker makes."""

    def __init__(self, data: Path, client: socket.socket, answers: IO[str]) -> None:
        self._data = data
        self._client = client
        self._answers = answers
        super().__init__(data / self._answer()["snapshot"])

    def complete(self) -> None:
        """Let the snapshot be that of this moment."""
        self._client.sendall(COMPLETE)
        self._answer()

    def sizes(self) -> dict[str, dict[str, int]]:
        """The sizes of segments at the moment."""
        sizes: dict[str, dict[str, int]] = json.loads((self.folder / SNAPSHOT_SIZES).read_text())
        return sizes

    def _answer(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._answers.readline() or '{"error": "it stopped"}')
        if "error" in answer:
            raise SnapshotFailed(f"the broker of {self._data} made no snapshot: {answer['error']}")
        return answer


@contextmanager
def _open_data(data: Path) -> Iterator[_Data]:
    """The data of one moment: a snapshot made by the broker, or the folder itself if no broker runs."""
    try:
        lock = lock_folder(data)
    except DataFolderLocked:
        with _connect(data) as client, client.makefile("r") as answers:
            yield _Snapshot(data, client, answers)
    else:
        try:
            yield _Data(data)
        finally:
            os.close(lock)


def _connect(data: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with socket_address(data / SOCKET) as address:
            client.connect(address)
    except OSError as fault:
        client.close()
        raise SnapshotFailed(
            f"the broker of {data} cannot be reached by {data / SOCKET} ({fault.strerror}): run the command "
            "on the broker's machine, as its user, when it is ready."
        ) from fault
    return client


def _name(job: JobFolder) -> str:
    return f"{job.app}.{job.name}"
