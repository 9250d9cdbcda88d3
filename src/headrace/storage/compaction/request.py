"""What a compaction is asked to do and what came of it, as data that travels between two processes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.storage.producers import AbortedTransaction

if TYPE_CHECKING:
    from collections.abc import Mapping

DEDUPE_BUFFER_BYTES: Final = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRequest:
    """One partition's closed segments, and how far they may be cleaned."""

    directory: Path
    segments: tuple[int, ...]
    """Base offsets of the closed segments from the start of the log on, in order, without a gap."""
    segments_end: int
    """The base offset of the segment that follows them."""
    first_dirty: int
    """The first offset that no compaction has seen."""
    clean_until: int
    """The first offset that must not be touched: at most the first unstable offset, at a batch's boundary."""
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int = 4096
    active_producers: Mapping[int, int] = field(default_factory=dict)
    """By producer id, the last offset of the batch without which a replay would forget the producer."""
    aborted: tuple[AbortedTransaction, ...] = ()
    """All aborted transactions with records or a marker in the segments."""
    dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES
    io_bytes_per_s: int | None = None
    """The most that is read and written in a second, together; None for no limit."""

    def to_json(self) -> str:
        """The request as one line."""
        return json.dumps(asdict(self) | {"directory": str(self.directory)})

    @classmethod
    def from_json(cls, line: str) -> CompactionRequest:
        """The request in a line that `to_json` made."""
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
    """Neighbouring segments that one cleaned segment, named after the first of them, replaces."""

    replaces: tuple[int, ...]
    suffixes: tuple[str, ...]
    """The files of the cleaned segment; a file that the old ones had and this has not goes away."""

    @property
    def base_offset(self) -> int:
        """The base offset of the cleaned segment."""
        return self.replaces[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionResult:
    """Cleaned segments that wait to be swapped in, and what was counted on the way."""

    groups: tuple[CleanedGroup, ...]
    """Segments that did not change are in no group."""
    first_dirty: int
    """Up to here the log is clean once the groups are swapped in; all of it only if the keys did fit."""
    records_before: int
    records_after: int
    bytes_before: int
    bytes_after: int
    unreadable_batches: int
    """Batches with a good checksum whose records could not be walked; they stay as they are."""

    def to_json(self) -> str:
        """The result as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> CompactionResult:
        """The result in a line that `to_json` made."""
        fields = json.loads(line)
        groups = tuple(
            CleanedGroup(replaces=tuple(group["replaces"]), suffixes=tuple(group["suffixes"]))
            for group in fields.pop("groups")
        )
        return cls(groups=groups, **fields)
