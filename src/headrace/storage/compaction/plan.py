"""Plans a compaction: the request to the compactor and its result, as JSON. Swaps the cleaned segments in.

A swap replaces segments atomically, also in a crash:

    <base>.log.cleaned …    written and synced by the compactor
    <base>.log.swap …       renamed, one by one
    <base>.swap             the plan: the segments to replace, and their new files. It commits the swap

The steps after the plan can be repeated: delete the other old segments, rename the `.swap` files, delete the
plan. When a partition is opened, a swap with a plan is completed, and the files of others are deleted.
"""

from __future__ import annotations

import json
import os
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.folders import sync_directory
from headrace.storage.producers import AbortedTransaction
from headrace.storage.segment import SUFFIXES, segment_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.storage.partition import PartitionLog


DEDUPE_BUFFER_BYTES: Final = 128 * 1024 * 1024

CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
_REPLACED: Final = (".log", ".index", ".timeindex", ".txnindex")
"""Files that a cleaned segment replaces or deletes; the snapshot of producers at its start stays valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRequest:
    """The closed segments of a partition, and how far they may be cleaned."""

    directory: Path
    segments: tuple[int, ...]
    """Base offsets of the closed segments, from the start of the log on."""
    segments_end: int
    """The base offset of the next segment."""
    first_dirty: int
    """The first offset that was not compacted."""
    clean_until: int
    """The first offset that must not change: at most the first unstable offset, at a batch boundary."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int = 4096
    active_producers: Mapping[int, int] = field(default_factory=dict)
    """By producer id, the last offset of the batch that a replay needs."""
    aborted: tuple[AbortedTransaction, ...] = ()
    """The aborted transactions with records or a marker in the segments."""
    dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES
    io_bytes_per_s: int | None = None
    """The limit of bytes read and written per second; None for no limit."""

    def to_json(self) -> str:
        """Encode as one line."""
        return json.dumps(asdict(self) | {"directory": str(self.directory)})

    @classmethod
    def from_json(cls, line: str) -> CompactionRequest:
        """Decode a line of `to_json`."""
        fields = json.loads(line)
        return cls(
            **fields
            | {
                "directory": Path(fields["directory"]),
                "segments": tuple(fields["segments"]),
                "active_producers": {int(key): value for key, value in fields["active_producers"].items()},
                "aborted": tuple(AbortedTransaction(**entry) for entry in fields["aborted"]),
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanedGroup:
    """Adjacent segments that are replaced by one cleaned segment with the first base offset."""

    replaces: tuple[int, ...]
    suffixes: tuple[str, ...]
    """The files of the cleaned segment; other files of the old segments are deleted."""

    @property
    def base_offset(self) -> int:
        """The base offset of the cleaned segment."""
        return self.replaces[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """Cleaned segments that are to be swapped in, and statistics."""

    groups: tuple[CleanedGroup, ...]
    """Without segments that did not change."""
    first_dirty: int
    """The log is clean up to this offset after the swap. Less than requested if the keys did not fit."""
    records_before: int
    records_after: int
    bytes_before: int
    bytes_after: int
    unreadable_batches: int
    """Batches with a valid checksum whose records cannot be decoded; they are retained."""

    def to_json(self) -> str:
        """Encode as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> CompactionResult:
        """Decode a line of `to_json`."""
        fields = json.loads(line)
        groups = tuple(
            CleanedGroup(replaces=tuple(group["replaces"]), suffixes=tuple(group["suffixes"]))
            for group in fields.pop("groups")
        )
        return cls(groups=groups, **fields)


def plan_compaction(log: PartitionLog, now_ms: int, io_bytes_per_s: int | None) -> CompactionRequest | None:
    """What to compact now; None if too little has changed since the last compaction."""
    if not log.config.is_compacted or log.is_deleted:
        return None
    _roll_when_overdue(log, now_ms)
    clean_until = _cleanable_end(log, now_ms)
    closed = [segment for segment in log.segments[:-1] if segment.base_offset < clean_until]
    ends = [segment.base_offset for segment in log.segments[1:]]
    # A segment that is partly dirty counts as dirty.
    dirty_bytes = sum(s.size for s, end in zip(closed, ends, strict=False) if end > log.first_dirty_offset)
    total_bytes = sum(segment.size for segment in closed)
    if clean_until <= log.first_dirty_offset or not dirty_bytes:
        return None
    is_overdue = _is_overdue(log, now_ms)
    if not is_overdue and dirty_bytes / total_bytes < log.config.min_cleanable_dirty_ratio:
        return None
    segments_end = log.segments[len(closed)].base_offset
    return CompactionRequest(
        directory=log.directory,
        segments=tuple(segment.base_offset for segment in closed),
        segments_end=segments_end,
        first_dirty=log.first_dirty_offset,
        clean_until=clean_until,
        now_ms=now_ms,
        delete_retention_ms=log.config.delete_retention_ms,
        segment_bytes=log.config.segment_bytes,
        index_interval_bytes=log.config.index_interval_bytes,
        active_producers=log.producers.active(),
        # To the end of the segments: those after `clean_until` stay in the index of a replaced segment.
        aborted=tuple(log.aborted.between(log.start_offset, segments_end)),
        io_bytes_per_s=io_bytes_per_s,
    )


def _cleanable_end(log: PartitionLog, now_ms: int) -> int:
    """The first offset that must not be compacted: active, unstable, or too new."""
    end = min(log.active.base_offset, log.recovery_point)
    if log.producers.first_unstable_offset is not None:
        # To the segment with the first open transaction: it starts at a batch boundary.
        unstable = log.producers.first_unstable_offset
        end = min(end, max((s.base_offset for s in log.segments if s.base_offset <= unstable), default=0))
    lag_ms = log.config.min_compaction_lag_ms
    for segment in log.segments[:-1]:
        if segment.base_offset >= end:
            break
        if lag_ms and segment.load_age_ms() > now_ms - lag_ms:
            return segment.base_offset
    return end


def _is_overdue(log: PartitionLog, now_ms: int) -> bool:
    """Whether a record was not compacted for longer than `max.compaction.lag.ms`."""
    oldest_dirty = next((s for s in log.segments if s.base_offset >= log.first_dirty_offset and s.size), None)
    if oldest_dirty is None:
        return False
    return now_ms - oldest_dirty.load_first_timestamp() > log.config.max_compaction_lag_ms


def _roll_when_overdue(log: PartitionLog, now_ms: int) -> None:
    if log.active.size and _is_overdue(log, now_ms) and log.active.base_offset <= log.first_dirty_offset:
        log.roll()


def swap_in(directory: Path, group: CleanedGroup) -> None:
    """Replace segments by a cleaned one, durably."""
    deque(swap_steps(directory, group), maxlen=0)


def recover_swaps(directory: Path) -> None:
    """Complete committed swaps after a crash, and delete the files of others."""
    deque(recovery_steps(directory), maxlen=0)


def swap_steps(directory: Path, group: CleanedGroup) -> Iterator[str]:
    """Swap, and yield after each change of the folder, so that a test can crash anywhere."""
    for suffix in group.suffixes:
        name = segment_name(group.base_offset, suffix)
        (directory / (name + CLEANED)).rename(directory / (name + SWAP))
        yield f"{name} renamed"
    yield from _commit(directory, group)
    yield from _apply(directory, group)


def recovery_steps(directory: Path) -> Iterator[str]:
    """Recover, and yield after each change of the folder."""
    for plan in sorted(directory.glob(f"*{SWAP}")):
        if plan.stem.isdigit():
            fields = json.loads(plan.read_bytes())
            group = CleanedGroup(replaces=tuple(fields["replaces"]), suffixes=tuple(fields["suffixes"]))
            yield from _apply(directory, group)
    for pattern in (f"*{CLEANED}", f"*{SWAP}"):
        for path in sorted(directory.glob(pattern)):
            path.unlink()
            yield f"{path.name} deleted"


def _commit(directory: Path, group: CleanedGroup) -> Iterator[str]:
    """Write the plan; its rename commits the swap."""
    plan = _plan_path(directory, group)
    draft = plan.with_name(plan.name + CLEANED)
    with draft.open("wb") as file:
        file.write(json.dumps(asdict(group)).encode())
        file.flush()
        os.fsync(file.fileno())
    yield "plan written"
    sync_directory(directory)
    draft.rename(plan)
    sync_directory(directory)
    yield "plan committed"


def _apply(directory: Path, group: CleanedGroup) -> Iterator[str]:
    for base_offset in group.replaces[1:]:
        for suffix in SUFFIXES:
            (directory / segment_name(base_offset, suffix)).unlink(missing_ok=True)
            yield f"{segment_name(base_offset, suffix)} deleted"
    for suffix in _REPLACED:
        path = directory / segment_name(group.base_offset, suffix)
        incoming = path.with_name(path.name + SWAP)
        if suffix not in group.suffixes:
            path.unlink(missing_ok=True)
        elif incoming.exists():
            incoming.replace(path)
        yield f"{path.name} replaced"
    sync_directory(directory)
    _plan_path(directory, group).unlink(missing_ok=True)
    yield "plan deleted"


def _plan_path(directory: Path, group: CleanedGroup) -> Path:
    return directory / segment_name(group.base_offset, SWAP)
