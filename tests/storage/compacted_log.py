"""A log in a folder, written batch by batch and compacted on demand."""

from __future__ import annotations

import itertools
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headrace.protocol.batch import (
    CONTROL,
    TRANSACTIONAL,
    BatchHeader,
    check_batch,
    read_header,
    split_batches,
)
from headrace.protocol.records import NewRecord, Record, decode_batch, encode_batch
from headrace.storage.compaction import CompactionRequest, swap_in
from headrace.storage.compaction.cleaner import compact
from headrace.storage.index import pack_entries, read_entries
from headrace.storage.producers import AbortedTransaction
from headrace.storage.segment import segment_name

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.storage.compaction import CompactionResult
    from headrace.storage.compaction.offset_map import OffsetMap

TIME = 1_700_000_000_000
DELETE_RETENTION_MS = 1000


class Stored(NamedTuple):
    """A batch as it stands in a log file."""

    header: BatchHeader
    data: bytes

    @property
    def records(self) -> list[Record]:
        return decode_batch(self.data)


@dataclass
class OpenTransaction:
    """A producer's transaction that has no end yet."""

    first_offset: int


class CompactedLog:
    """Batches go to the last segment, which is active and is never compacted."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.end = 0
        self.first_dirty = 0
        self.now_ms = TIME
        self.active_base = 0
        self.sequences: dict[int, int] = {}
        self.last_batches: dict[int, int] = {}
        self.open: dict[int, OpenTransaction] = {}
        self._path(0).touch()

    def _path(self, base: int, suffix: str = ".log") -> Path:
        return self.directory / segment_name(base, suffix)

    def write(self, batch: bytes) -> int:
        """Put a whole batch at the end of the log; its last offset."""
        with self._path(self.active_base).open("ab") as file:
            file.write(batch)
        self.end = read_header(batch).next_offset
        return self.end - 1

    def append(
        self,
        *pairs: tuple[bytes | None, bytes | None],
        producer: int = -1,
        codec: int = 0,
        attributes: int = 0,
    ) -> None:
        """Write one batch; records of a producer with an open transaction belong to it."""
        records = [
            NewRecord(key, value, self.now_ms + n, (("n", b"%d" % n),))
            for n, (key, value) in enumerate(pairs)
        ]
        if producer in self.open:
            attributes |= TRANSACTIONAL
        batch = encode_batch(
            records,
            codec=codec,
            attributes=attributes,
            base_offset=self.end,
            producer_id=producer,
            producer_epoch=-1 if producer < 0 else 0,
            base_sequence=-1 if producer < 0 else self.sequences.get(producer, 0),
        )
        last = self.write(batch)
        if producer >= 0:
            self.sequences[producer] = self.sequences.get(producer, 0) + len(records)
            self.last_batches[producer] = last

    def begin(self, producer: int) -> None:
        """Open a transaction: the producer's next batches belong to it."""
        self.open[producer] = OpenTransaction(first_offset=self.end)

    def finish(self, producer: int, *, commit: bool) -> None:
        """Write the marker that ends the producer's transaction."""
        transaction = self.open.pop(producer)
        marker = NewRecord(struct.pack(">hh", 0, int(commit)), struct.pack(">hi", 0, 0), self.now_ms)
        offset = self.write(
            encode_batch(
                [marker],
                attributes=TRANSACTIONAL | CONTROL,
                base_offset=self.end,
                producer_id=producer,
                producer_epoch=0,
            )
        )
        if not commit:
            entry = AbortedTransaction(
                producer_id=producer,
                first_offset=transaction.first_offset,
                last_offset=offset,
                last_stable_offset=self.stable_end,
            )
            with self._path(self.active_base, ".txnindex").open("ab") as file:
                file.write(pack_entries([entry]))

    def roll(self) -> None:
        """Begin a new active segment."""
        if self._path(self.active_base).stat().st_size:
            self.active_base = self.end
            self._path(self.end).touch()

    @property
    def stable_end(self) -> int:
        """The first offset of an open transaction, or the end of the log."""
        return min((each.first_offset for each in self.open.values()), default=self.end)

    @property
    def bases(self) -> list[int]:
        return sorted(int(path.stem) for path in self.directory.glob("*.log"))

    def aborted(self) -> tuple[AbortedTransaction, ...]:
        """What the segments' own files say of aborted transactions."""
        return tuple(
            itertools.chain.from_iterable(read_entries(self._path(b, ".txnindex")) for b in self.bases)
        )

    def request(self, **changes: object) -> CompactionRequest:
        """A compaction of all that may be compacted now."""
        fields: dict[str, object] = {
            "directory": self.directory,
            "segments": tuple(base for base in self.bases if base < self.active_base),
            "segments_end": self.active_base,
            "first_dirty": self.first_dirty,
            "clean_until": min(self.active_base, self.stable_end),
            "now_ms": self.now_ms,
            "delete_retention_ms": DELETE_RETENTION_MS,
            "segment_bytes": 2**30,
            "active_producers": dict(self.last_batches),
            "aborted": self.aborted(),
        }
        return CompactionRequest(**fields | changes)  # type: ignore[arg-type]

    def compact(self, keys: OffsetMap | None = None, **changes: object) -> CompactionResult:
        """Compact and swap in."""
        result = compact(self.request(**changes), keys)
        for group in result.groups:
            swap_in(self.directory, group)
        self.first_dirty = result.first_dirty
        return result

    def batches(self) -> list[Stored]:
        """Every batch in the log, its checksum checked."""
        stored = []
        for base in self.bases:
            data = memoryview(self._path(base).read_bytes())
            for batch in split_batches(data):
                check_batch(batch, read_header(batch))
                stored.append(Stored(read_header(batch), bytes(batch)))
            assert sum(len(batch) for batch in split_batches(data)) == len(data)
        return stored

    def records(self) -> list[Record]:
        """Every record that a reader of committed records sees below the last stable offset."""
        aborted = self.aborted()
        return [
            record
            for batch in self.batches()
            if not batch.header.is_control
            and batch.header.last_offset < self.stable_end
            and not any(_covers(entry, batch.header) for entry in aborted)
            for record in batch.records
        ]

    def contents(self) -> list[tuple[int, bytes | None, bytes | None]]:
        """Offset, key and value of every such record."""
        return [(record.offset, record.key, record.value) for record in self.records()]


def _covers(entry: AbortedTransaction, header: BatchHeader) -> bool:
    return (
        header.is_transactional
        and header.producer_id == entry.producer_id
        and entry.first_offset <= header.base_offset <= entry.last_offset
    )
