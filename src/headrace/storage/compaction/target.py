"""A cleaned segment while it is written: `.log.cleaned` and its indexes, in the formats of any segment."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from headrace.protocol.batch import BatchHeader, read_header
from headrace.storage.aborted import pack_entries
from headrace.storage.compaction.request import CleanedGroup
from headrace.storage.compaction.swap import CLEANED
from headrace.storage.index import NO_TIMESTAMP, OffsetIndex, TimeIndex
from headrace.storage.segment import segment_name

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.protocol.compression import Bytes
    from headrace.storage.compaction.throttle import Throttle
    from headrace.storage.producers import AbortedTransaction

_BUFFER_BYTES = 1024 * 1024


class CleanedSegment:
    """The one segment into which neighbours are cleaned."""

    def __init__(self, directory: Path, base_offset: int, interval_bytes: int, throttle: Throttle) -> None:
        self.base_offset = base_offset
        self.size = 0
        self.sources: list[int] = []
        self.changed = False
        """Whether anything differs from the one segment that was read."""
        self._directory = directory
        self._interval_bytes = interval_bytes
        self._throttle = throttle
        self._offsets = OffsetIndex(base_offset)
        self._times = TimeIndex(base_offset)
        self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = base_offset
        self._unindexed_bytes = 0
        # Whatever a dead compactor left is not written into, for it might not be quite dead.
        self._path(".log").unlink(missing_ok=True)
        self._file = self._path(".log").open("xb", buffering=_BUFFER_BYTES)

    def append(self, batch: Bytes) -> None:
        """Write one batch behind the others."""
        header = read_header(batch)
        self._index(header)
        self._file.write(batch)
        self._throttle.spend(header.size)
        self.size += header.size

    def finish(self, aborted: list[AbortedTransaction], modified_ns: int) -> CleanedGroup:
        """Write the indexes and sync every file; the log file keeps the age of what it replaces."""
        self._times.add(self._max_timestamp, self._max_timestamp_offset)
        contents = {".index": self._offsets.dump(), ".timeindex": self._times.dump()}
        if aborted:
            contents[".txnindex"] = pack_entries(aborted)
        for suffix, content in contents.items():
            with self._path(suffix).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        self._file.flush()
        os.utime(self._file.fileno(), ns=(modified_ns, modified_ns))
        os.fsync(self._file.fileno())
        self._file.close()
        return CleanedGroup(replaces=tuple(self.sources), suffixes=(".log", *contents))

    def discard(self) -> None:
        """Delete what was written."""
        with contextlib.suppress(OSError):  # a full disk refuses the last bytes, which nobody wants
            self._file.close()
        for suffix in (".log", ".index", ".timeindex", ".txnindex"):
            self._path(suffix).unlink(missing_ok=True)

    def _index(self, header: BatchHeader) -> None:
        """Note the batch in the indexes once enough bytes have passed since their last entries."""
        if header.max_timestamp > self._max_timestamp:
            self._max_timestamp = header.max_timestamp
            self._max_timestamp_offset = header.last_offset
        if self._unindexed_bytes > self._interval_bytes:
            self._offsets.add(header.last_offset, self.size)
            self._times.add(self._max_timestamp, self._max_timestamp_offset)
            self._unindexed_bytes = 0
        self._unindexed_bytes += header.size

    def _path(self, suffix: str) -> Path:
        return self._directory / (segment_name(self.base_offset, suffix) + CLEANED)
