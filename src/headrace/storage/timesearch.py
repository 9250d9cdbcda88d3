"""Finding records by their time, in segments whose times need not be in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import find_record
from headrace.storage.index import NO_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.protocol.batch import BatchHeader
    from headrace.storage.segment import Segment


class TimedOffset(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp: int


def find_time(segments: Sequence[Segment], timestamp: int, start_offset: int) -> TimedOffset | None:
    """The first record from `start_offset` on that is not older than `timestamp`."""
    for segment in segments:
        if segment.load_max_timestamp() >= timestamp:
            found = _find_in(segment, timestamp, start_offset)
            if found is not None:
                return found
    return None


def find_latest_time(segments: Sequence[Segment], start_offset: int) -> TimedOffset | None:
    """The record from `start_offset` on with the largest time; the first one of several."""
    latest: TimedOffset | None = None
    for segment in segments:
        known = NO_TIMESTAMP if latest is None else latest.timestamp
        if segment.load_max_timestamp() > known:
            latest = _find_latest_in(segment, known, start_offset) or latest
    return latest


def _find_latest_in(segment: Segment, known: int, start_offset: int) -> TimedOffset | None:
    """The first record with the largest time of the segment, if that is later than `known`."""
    batches = [
        (position, header)
        for position, header in segment.headers(segment.offset_index.floor(start_offset))
        if not header.is_control and header.last_offset >= start_offset and header.max_timestamp > known
    ]
    latest: TimedOffset | None = None
    for position, header in sorted(batches, key=lambda one: (-one[1].max_timestamp, one[1].base_offset)):
        if latest is not None and header.max_timestamp <= latest.timestamp:
            break
        # The record that had the time may lie before the start, or compaction removed it: then another has.
        batch, timestamp = segment.read(position, header.size), known
        if (found := _find_in_batch(batch, header, header.max_timestamp, start_offset)) is not None:
            latest = found
            continue
        while (later := _find_in_batch(batch, header, timestamp + 1, start_offset)) is not None:
            latest, timestamp = later, later.timestamp
    return latest


def _find_in(segment: Segment, timestamp: int, start_offset: int) -> TimedOffset | None:
    start = max(segment.time_index.floor(timestamp), start_offset)
    for position, header in segment.headers(segment.offset_index.floor(start)):
        if header.max_timestamp < timestamp or header.last_offset < start:
            continue
        if header.is_control:
            # The end of a transaction is no record, and has the time of now whatever its records have.
            continue
        found = _find_in_batch(segment.read(position, header.size), header, timestamp, start_offset)
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
