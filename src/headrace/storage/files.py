"""Open log files: opened on first use, and closed by their last reader."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path


class LogFile:
    """An open segment file; it stays readable after the segment has been deleted."""

    __slots__ = ("fd",)

    def __init__(self, path: Path, flags: int = os.O_RDONLY) -> None:
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def __del__(self) -> None:
        # `fd` is missing when the open failed.
        if hasattr(self, "fd"):
            os.close(self.fd)


class Writer(Protocol):
    """A segment that holds its file open to write it."""

    def close_file(self) -> None:
        """Close the file; the next write opens it again."""
        ...


class FilePool:
    """The files that were used last, so that many segments need few descriptors.

    Up to `limit` files that are read are open, and as many that are written.
    """

    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._files: OrderedDict[Path, LogFile] = OrderedDict()
        self._written: dict[Writer, None] = {}
        # The loop reads and the threads of the disk sync: both may look for a file at once.
        self._lock = threading.Lock()

    def open(self, path: Path) -> LogFile:
        """The file at `path`, opened now or before."""
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = LogFile(path)
                if len(self._files) > self._limit:
                    self._files.popitem(last=False)
            else:
                self._files.move_to_end(path)
            return file

    def keep_open(self, writer: Writer) -> None:
        """Count a file that was opened to be written; the one that was opened first may have to close."""
        with self._lock:
            self._written[writer] = None
            if len(self._written) > self._limit:
                first = next(iter(self._written))
                del self._written[first]
                first.close_file()

    def closed(self, writer: Writer) -> None:
        """Count a file no more."""
        with self._lock:
            self._written.pop(writer, None)

    def forget(self, path: Path) -> None:
        """Let go of a file that was deleted or replaced; readers in the middle of it keep theirs."""
        with self._lock:
            self._files.pop(path, None)
