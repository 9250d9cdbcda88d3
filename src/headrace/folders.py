"""Atomic replacement of files, and folders of small files that a job depends on, wherever its checkpoint is.

What exactly-once needs besides Spark's own files (which checkpoint is current, which rows a target refused,
which messages were sent) belongs to the checkpoint: a driver that is started on another machine must find it.
A checkpoint may be on a file system that only Spark reaches, so these files are read and written through
`Folder`.

`LocalFolder` is a folder of this machine, or of a mount; `headrace.spark.folders` has the other one.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote, urlsplit


def sync_directory(path: Path) -> None:
    """Make created, renamed and deleted files in `path` survive power loss."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace the content of `path` atomically: after a crash the file has the old content or the new one.

    A file that can be rebuilt need not be `durable`: after power loss it may then be empty.
    """
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    temporary.replace(path)
    if durable:
        sync_directory(path.parent)


class Folder(Protocol):
    """A folder of small text files. It need not exist: the first file that is written creates it."""

    def __str__(self) -> str:
        """Where it is."""

    def child(self, name: str) -> Folder:
        """A folder in this one."""

    def names(self) -> list[str]:
        """The names of what is in it, hidden files left out; none if it does not exist."""

    def read(self, name: str) -> str | None:
        """The content of a file; None if there is none."""

    def write(self, name: str, text: str) -> None:
        """Replace a file atomically: after a crash it has the old content or the new one."""

    def append(self, name: str, text: str) -> None:
        """Add to a file; what was added is durable when this returns. Any thread may call it."""

    def delete(self) -> None:
        """Delete the folder with all that is in it."""


class LocalFolder:
    """A folder that this process reaches as a path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def child(self, name: str) -> LocalFolder:
        """A folder in this one."""
        return LocalFolder(self.path / name)

    def names(self) -> list[str]:
        """The names of what is in it, hidden files left out; none if it does not exist."""
        try:
            return sorted(each.name for each in self.path.iterdir() if not each.name.startswith("."))
        except FileNotFoundError:
            return []

    def read(self, name: str) -> str | None:
        """The content of a file; None if there is none. Damaged bytes do not hide the rest."""
        try:
            return (self.path / name).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None

    def write(self, name: str, text: str) -> None:
        """Replace a file atomically: after a crash or power loss it has the old content or the new one."""
        write_durably(self.path / name, text)

    def append(self, name: str, text: str) -> None:
        """Add to a file; what was added is on disk when this returns."""
        self.path.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        file = os.open(self.path / name, flags, 0o644)
        try:
            os.write(file, text.encode())
            os.fsync(file)
        finally:
            os.close(file)

    def delete(self) -> None:
        """Delete the folder with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)


def write_durably(path: Path, text: str) -> None:
    """Replace a file atomically: after a crash or power loss it has the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode())


def local_path(location: str) -> Path | None:
    """The path of a folder that this machine reaches as one; None for other file systems.

    >>> [str(local_path(place)) for place in ("/srv/state", "file:///srv/state", "hdfs://name/state")]
    ['/srv/state', '/srv/state', 'None']
    """
    if ":" not in location.partition("/")[0]:
        return Path(location)
    parts = urlsplit(location)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None
