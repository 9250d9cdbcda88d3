"""The files of one partition's state, behind a small interface.

A file is immutable: it appears complete under its final name, and is deleted when no version needs it.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pyarrow as pa

from headrace.errors import HeadraceError, Misuse
from headrace.folders import sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterator


class BadState(HeadraceError):
    """A file of an operator's state that is missing or damaged."""

    @classmethod
    def missing(cls, path: object) -> BadState:
        """The error for a file that an earlier batch wrote."""
        return cls(
            f"{path} is missing: an earlier batch wrote it, and without it the job would forget rows that it "
            "has read. It was deleted, or this machine does not see the checkpoint's folder. Restore the "
            "folder, put checkpoints into one that all machines see under the same path, or reset the job."
        )

    @classmethod
    def torn(cls, path: object, fault: object) -> BadState:
        """The error for a file that is not what was written."""
        return cls(
            f"{path} is not as it was written ({fault}): a power failure can damage files. Restore the "
            "checkpoint, or reset the job."
        )

    @classmethod
    def outdated(cls, path: object) -> BadState:
        """The error for state in the format of an earlier version."""
        return cls(
            f"{path} was written by an earlier version of Headrace, whose format of state is no longer read. "
            "Reset the job with `headrace job reset JOB --to start` (or --to end, or a time)."
        )


class StateFiles(Protocol):
    """A folder of immutable files. It need not exist: the first file creates it."""

    def __str__(self) -> str:
        """The location of the folder."""

    def child(self, name: str) -> StateFiles:
        """A folder in this one."""

    def names(self) -> list[str]:
        """The names of all complete files."""

    def read(self, name: str) -> bytes:
        """The content of a small file; `BadState` if there is none."""

    def map(self, name: str) -> pa.Buffer:
        """The content of a large file, read when it is used; `BadState` if there is none."""

    def create(self, name: str) -> _Created:
        """A context that gives a file to write, which replaces `name` at its end; nothing if it fails."""

    def sync(self, name: str) -> None:
        """Make a file survive a power failure."""

    def delete(self, name: str) -> None:
        """Delete a file; one that does not exist is no error."""


if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import TypeAlias

    _Created: TypeAlias = AbstractContextManager[pa.NativeFile]


class LocalStateFiles:
    """A folder that all machines of a job see under the same path."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __str__(self) -> str:
        return str(self._folder)

    def child(self, name: str) -> LocalStateFiles:
        """A folder in this one."""
        return LocalStateFiles(self._folder / name)

    def names(self) -> list[str]:
        """The names of all complete files."""
        try:
            return sorted(name for name in os.listdir(self._folder) if not name.startswith("."))  # noqa: PTH208  half the time
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes:
        """The content of a small file; `BadState` if there is none."""
        try:
            return (self._folder / name).read_bytes()
        except FileNotFoundError:
            raise BadState.missing(self._folder / name) from None

    def map(self, name: str) -> pa.Buffer:
        """The content of a large file, in memory that is the file's; `BadState` if there is none."""
        path = self._folder / name
        try:
            with pa.memory_map(str(path)) as file:
                return file.read_buffer()
        except FileNotFoundError:
            raise BadState.missing(path) from None
        except (pa.ArrowInvalid, OSError) as fault:  # an empty file cannot be mapped
            raise BadState.torn(path, fault) from fault

    @contextmanager
    def create(self, name: str) -> Iterator[pa.NativeFile]:
        """A file to write under another name, which replaces `name` at the end; nothing if that fails."""
        self._folder.mkdir(parents=True, exist_ok=True)
        # Two attempts of a task may write the same name at once.
        aside = self._folder / f".{name}.{uuid4().hex}"
        try:
            with pa.OSFile(str(aside), "wb") as file:
                yield file
            aside.replace(self._folder / name)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise

    def sync(self, name: str) -> None:
        """Make a file survive a power failure."""
        descriptor = os.open(self._folder / name, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(self._folder)

    def delete(self, name: str) -> None:
        """Delete a file; one that does not exist is no error. Whoever has it mapped can read on."""
        (self._folder / name).unlink(missing_ok=True)


def local_folder(location: str) -> Path:
    """The path of a state folder; other file systems are refused."""
    parts = urlsplit(location)
    if parts.scheme not in ("", "file"):
        raise Misuse(
            f"operators keep their state in files, and {location!r} is not a folder: set `checkpoints` to "
            "a folder that all machines see under the same path."
        )
    return Path(unquote(parts.path) if parts.scheme else location)


def state_files(location: str) -> LocalStateFiles:
    """The files of a state folder."""
    return LocalStateFiles(local_folder(location))
