"""A compaction: two passes over a partition's closed segments, in bounded memory.

The first pass reads the dirty part and notes the latest offset of each key. When the keys do not fit, it
stops at the last batch that did, and the compaction covers the log up to there; the rest is for the next one.
The second pass reads everything from the start of the log to that point and writes what stays into cleaned
segments. Segments that have become small are joined with their neighbours.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from headrace.files import sync_directory
from headrace.protocol.errors import CorruptBatch
from headrace.storage.compaction.keys import DictOffsetMap
from headrace.storage.compaction.outcome import Outcome, walk_batch
from headrace.storage.compaction.request import CompactionResult
from headrace.storage.compaction.rules import CompactionRules, CompactionTransactions
from headrace.storage.compaction.segments import CleanedSegment, Throttle, read_batches
from headrace.storage.errors import StorageError
from headrace.storage.segment import segment_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.protocol.batch import BatchHeader
    from headrace.storage.compaction.keys import OffsetMap
    from headrace.storage.compaction.request import CleanedGroup, CompactionRequest

SMALL_BYTES: Final = 1024 * 1024
"""Below this many bytes of log a dict is quicker than loading numba."""
_DICT_ENTRY_BYTES: Final = 256
_INT_MAX: Final = 2**31 - 1


def compact(request: CompactionRequest, keys: OffsetMap | None = None) -> CompactionResult:
    """Write cleaned segments next to the old ones, and return what they replace; all files are synced.

    Nothing of the log itself changes: that is `swap_in`'s part. A fault leaves no file behind.
    """
    return _Compaction(request, keys or _choose_keys(request)).run()


def _choose_keys(request: CompactionRequest) -> OffsetMap:
    if sum(_log_path(request, base).stat().st_size for base in request.segments) < SMALL_BYTES:
        return DictOffsetMap(max(1, request.dedupe_buffer_bytes // _DICT_ENTRY_BYTES))
    from headrace.storage.compaction.keytable import HashOffsetMap

    return HashOffsetMap(request.dedupe_buffer_bytes, request.clean_until - request.first_dirty)


def _log_path(request: CompactionRequest, base_offset: int) -> Path:
    return request.directory / segment_name(base_offset)


class _Compaction:
    def __init__(self, request: CompactionRequest, keys: OffsetMap) -> None:
        self._request = request
        self._keys = keys
        self._throttle = Throttle(request.io_bytes_per_s)
        self._transactions = CompactionTransactions(request.aborted)
        self._bytes_before = 0
        self._bytes_after = 0

    def run(self) -> CompactionResult:
        request = self._request
        end = self._note_keys()
        rules = CompactionRules(
            end=end,
            clean_until=request.clean_until,
            now_ms=request.now_ms,
            delete_retention_ms=request.delete_retention_ms,
            active_producers=request.active_producers,
        )
        outcome = Outcome(rules, self._keys, self._transactions)
        groups = self._clean(outcome, end)
        sync_directory(request.directory)
        return CompactionResult(
            groups=tuple(groups),
            first_dirty=max(end, request.first_dirty),
            records_before=outcome.records_before,
            records_after=outcome.records_after,
            bytes_before=self._bytes_before,
            bytes_after=self._bytes_after,
            unreadable_batches=outcome.unreadable_batches,
        )

    def _segments(self) -> Iterator[tuple[int, int]]:
        """Each segment's base offset and that of the next."""
        return pairwise((*self._request.segments, self._request.segments_end))

    def _note_keys(self) -> int:
        """Fill the keys from the dirty part; the end of what they cover."""
        covered = self._request.first_dirty
        for header, batch in self._dirty_batches():
            if not self._note_batch(header, batch):
                if covered == self._request.first_dirty:
                    raise StorageError(
                        f"{self._request.directory} cannot be compacted: the keys of one batch do not fit "
                        f"into {self._request.dedupe_buffer_bytes} bytes; give the compactor a larger buffer"
                    )
                return covered
            covered = header.next_offset
        return self._request.clean_until

    def _dirty_batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        request = self._request
        for base, following in self._segments():
            if following <= request.first_dirty or base >= request.clean_until:
                continue
            for header, batch in read_batches(_log_path(request, base), self._throttle):
                if header.next_offset > request.clean_until:
                    return
                if header.next_offset > request.first_dirty:
                    yield header, batch

    def _note_batch(self, header: BatchHeader, batch: memoryview) -> bool:
        """Note the keys of a batch that count; False when they do not fit."""
        if header.is_control or header.count == 0 or self._transactions.is_aborted(header):
            return True
        try:
            section, columns = walk_batch(self._keys, header, batch)
        except CorruptBatch:
            return True  # it stays as it is, and is counted in the second pass
        return self._keys.note(section, columns, header.base_offset, self._request.first_dirty)

    def _clean(self, outcome: Outcome, end: int) -> list[CleanedGroup]:
        """Write the cleaned segments for all that begin below `end`."""
        groups: list[CleanedGroup] = []
        with ExitStack() as undo:
            target: CleanedSegment | None = None
            for base, following in self._segments():
                if base >= end:
                    break
                if target is None or not self._has_room(target, base, following):
                    if target is not None:
                        groups += self._finish(target)
                    target = self._open_target(base)
                    undo.callback(target.discard)
                self._clean_segment(outcome, target, base)
            if target is not None:
                groups += self._finish(target)
            undo.pop_all()
        return groups

    def _open_target(self, base: int) -> CleanedSegment:
        return CleanedSegment(
            self._request.directory, base, self._request.index_interval_bytes, self._throttle
        )

    def _has_room(self, target: CleanedSegment, base: int, following: int) -> bool:
        """Whether the segment at `base` may go into `target`, even if all of it stays."""
        size = _log_path(self._request, base).stat().st_size
        fits = target.size + size <= self._request.segment_bytes
        # An index holds offsets in 32 bits, counted from the segment's first.
        return fits and following - 1 - target.base_offset <= _INT_MAX

    def _clean_segment(self, outcome: Outcome, target: CleanedSegment, base: int) -> None:
        target.changed |= bool(target.sources)
        target.sources.append(base)
        for header, batch in read_batches(_log_path(self._request, base), self._throttle):
            self._bytes_before += header.size
            cleaned = outcome.of(header, batch)
            target.changed |= cleaned is not batch
            if cleaned is not None:
                target.append(cleaned)
                self._bytes_after += len(cleaned)

    def _finish(self, target: CleanedSegment) -> list[CleanedGroup]:
        """The group that `target` replaces; none when it is what it was before."""
        aborted, self._transactions.kept_aborts = self._transactions.kept_aborts, []
        if not target.changed:
            target.discard()
            return []
        modified_ns = _log_path(self._request, target.sources[-1]).stat().st_mtime_ns
        return [target.finish(aborted, modified_ns)]
