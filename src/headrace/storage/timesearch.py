"""Finding records by their time, in runs of batches whose times need not be in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import find_record
from headrace.storage.index import NO_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.protocol.batch import BatchHeader


class TimedOffset(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp: int


class TimedBatches(Protocol):
    """A run of batches that can be searched: a segment, or all that is in memory."""

    def load_max_timestamp(self) -> int:
        """A time that no batch is later than."""
        ...

    def offset_before(self, timestamp: int) -> int:
        """An offset at or before the first record that is not older than `timestamp`."""
        ...

    def headers_from(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Place and header of each batch, from the one that holds `offset` or a few before it."""
        ...

    def read(self, position: int, size: int, /) -> bytes:
        """The batch at a place that `headers_from` gave."""
        ...


def find_time(runs: Sequence[TimedBatches], timestamp: int, start_offset: int) -> TimedOffset | None:
    """The first record from `start_offset` on that is not older than `timestamp`."""
    for run in runs:
        if run.load_max_timestamp() >= timestamp:
            found = _find_in(run, timestamp, start_offset)
            if found is not None:
                return found
    return None


def find_latest_time(runs: Sequence[TimedBatches], start_offset: int) -> TimedOffset | None:
    """The record from `start_offset` on with the largest time; the first one of several."""
    latest: TimedOffset | None = None
    for run in runs:
        known = NO_TIMESTAMP if latest is None else latest.timestamp
        if run.load_max_timestamp() > known:
            latest = _find_latest_in(run, known, start_offset) or latest
    return latest


def _find_latest_in(run: TimedBatches, known: int, start_offset: int) -> TimedOffset | None:
    """The first record with the largest time of the run, if that is later than `known`."""
    batches = [
        (position, header)
        for position, header in run.headers_from(start_offset)
        if not header.is_control and header.last_offset >= start_offset and header.max_timestamp > known
    ]
    latest: TimedOffset | None = None
    for position, header in sorted(batches, key=lambda one: (-one[1].max_timestamp, one[1].base_offset)):
        if latest is not None and header.max_timestamp <= latest.timestamp:
            break
        # The record that had the time may lie before the start, or compaction removed it: then another has.
        batch, timestamp = run.read(position, header.size), known
        if (found := _find_in_batch(batch, header, header.max_timestamp, start_offset)) is not None:
            latest = found
            continue
        while (later := _find_in_batch(batch, header, timestamp + 1, start_offset)) is not None:
            latest, timestamp = later, later.timestamp
    return latest


def _find_in(run: TimedBatches, timestamp: int, start_offset: int) -> TimedOffset | None:
    start = max(run.offset_before(timestamp), start_offset)
    for position, header in run.headers_from(start):
        if header.max_timestamp < timestamp or header.last_offset < start:
            continue
        if header.is_control:
            # The end of a transaction is no record, and has the time of now whatever its records have.
            continue
        found = _find_in_batch(run.read(position, header.size), header, timestamp, start_offset)
        if found is not None:
            return found
    return None


def _find_in_batch(
    batch: bytes, header: BatchHeader, timestamp: int, start_offset: int
) -> TimedOffset | None:
    try:
        found = find_record(batch, timestamp, start_offset)
    except CorruptBatch:
        # Its producer wrote nonsense under a good checksum. The header still says when, and readers go on.
        return TimedOffset(max(header.base_offset, start_offset), header.max_timestamp)
    return None if found is None else TimedOffset(*found)
