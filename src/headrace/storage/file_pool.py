"""A bounded pool of open segment files."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path


class LogFile:
    """An open segment file. It stays readable after its segment was deleted."""

    __slots__ = ("fd",)

    def __init__(self, path: Path, flags: int = os.O_RDONLY) -> None:
        self.fd = os.open(path, flags | os.O_CLOEXEC, 0o644)

    def __del__(self) -> None:
        # Missing after a failed open.
        if hasattr(self, "fd"):
            os.close(self.fd)


class SegmentWriter(Protocol):
    """A segment that keeps its file open for writing."""

    def close_file(self) -> None:
        """Close the file; the next write opens it again."""
        ...


class FilePool:
    """The most recently used files: up to `limit` for reading, and as many for writing."""

    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._files: OrderedDict[Path, LogFile] = OrderedDict()
        self._written: dict[SegmentWriter, None] = {}
        # The event loop reads, and background threads sync.
        self._lock = threading.Lock()

    def open(self, path: Path) -> LogFile:
        """Open the file at `path`, or return it if it is open."""
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = LogFile(path)
                if len(self._files) > self._limit:
                    self._files.popitem(last=False)
            else:
                self._files.move_to_end(path)
            return file

    def keep_open(self, writer: SegmentWriter) -> None:
        """Register a file that is open for writing; closes the oldest one above the limit."""
        with self._lock:
            self._written[writer] = None
            if len(self._written) > self._limit:
                first = next(iter(self._written))
                del self._written[first]
                first.close_file()

    def closed(self, writer: SegmentWriter) -> None:
        """Unregister a file."""
        with self._lock:
            self._written.pop(writer, None)

    def drop(self, path: Path) -> None:
        """Drop a file that was deleted or replaced; its readers keep it open."""
        with self._lock:
            self._files.pop(path, None)
