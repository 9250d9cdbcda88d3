"""Searches records by timestamp, in batches whose timestamps need not be in order.

Headers are written by producers: a batch may claim a timestamp that none of its records has, so a search
can take long. It is a generator that yields None where it can pause, and a function where a batch must be
decompressed, whose result is sent back: decompression should not run in the event loop. Where batches must be
downloaded from the archive it yields a `RemoteReadPending`, and continues when they are available.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from headrace.protocol.compression import NONE
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import decompress_records, record_times
from headrace.storage.index import NO_TIMESTAMP
from headrace.storage.remote_cache import RemoteReadPending

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.protocol.batch import BatchHeader

T = TypeVar("T")

STEP_BATCHES: Final = 16
STEP_RECORDS: Final = 256
MAX_CANDIDATES: Final = 256
"""Batches with the largest timestamps that are tried before the next scan."""


class TimedOffset(NamedTuple):
    """Offset and timestamp of a record."""

    offset: int
    timestamp: int


Job = Callable[[], bytes | bytearray | memoryview]
Wait = Job | RemoteReadPending | None
"""What a search waits for: a job, a download, or its next time slice."""
Search = Generator[Wait, "bytes | bytearray | memoryview | None", "TimedOffset | None"]


class SearchableBatches(Protocol):
    """Batches that can be searched: a segment, or an in-memory log."""

    def load_max_timestamp(self) -> int:
        """An upper bound of all timestamps."""
        ...

    def offset_before(self, timestamp: int) -> int:
        """An offset at or before the first record that is not older than `timestamp`."""
        ...

    def headers_from(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield position and header of the batches from the one that holds `offset`, or a few before it."""
        ...

    def read(self, position: int, size: int, /) -> bytes:
        """Read the batch at a position from `headers_from`."""
        ...


class Candidate(NamedTuple):
    """A batch by the timestamp in its header; the largest one sorts first, then the lowest offset."""

    negated_timestamp: int
    base_offset: int
    position: int
    header: BatchHeader


class BatchHeaderReader:
    """The headers of batches, one after the other; waits for those that must be downloaded."""

    def __init__(self, batches: SearchableBatches, offset: int) -> None:
        self._batches = batches
        self._offset = offset
        self._last_position = -1
        self._headers: Iterator[tuple[int, BatchHeader]] | None = None

    def next(self) -> Generator[Wait, object, tuple[int, BatchHeader] | None]:
        """Position and header of the next batch; None at the end."""
        while True:
            try:
                found = self._advance()
            except RemoteReadPending as pending:
                self._headers = None
                yield pending
                continue
            if found is not None:
                self._last_position, self._offset = found[0], found[1].last_offset
            return found

    def _advance(self) -> tuple[int, BatchHeader] | None:
        if self._headers is None:
            self._headers = self._batches.headers_from(self._offset)
        return next((each for each in self._headers if each[0] > self._last_position), None)


def _retried(call: Callable[[], T]) -> Generator[Wait, object, T]:
    """The result of a call, after the download of what it reads."""
    while True:
        try:
            return call()
        except RemoteReadPending as pending:
            wanted = pending
        yield wanted


def search_time(parts: Sequence[SearchableBatches], timestamp: int, start_offset: int) -> Search:
    """Find the first record from `start_offset` on that is not older than `timestamp`."""
    for batches in tuple(parts):
        if (yield from _retried(batches.load_max_timestamp)) >= timestamp:
            found = yield from _search_in(batches, timestamp, start_offset)
            if found is not None:
                return found
    return None


def search_latest_time(parts: Sequence[SearchableBatches], start_offset: int) -> Search:
    """Find the first record with the largest timestamp from `start_offset` on."""
    latest: TimedOffset | None = None
    for batches in tuple(parts):
        known = NO_TIMESTAMP if latest is None else latest.timestamp
        if (yield from _retried(batches.load_max_timestamp)) > known:
            latest = (yield from _search_latest_in(batches, known, start_offset)) or latest
    return latest


def _search_latest_in(batches: SearchableBatches, known: int, start_offset: int) -> Search:
    """Find the first record with the largest timestamp in `batches`, if it is later than `known`."""
    latest: TimedOffset | None = None
    tried: tuple[int, int] | None = None
    while True:
        candidates = yield from _candidates(batches, known, start_offset, tried)
        for candidate in candidates:
            if -candidate.negated_timestamp <= known:
                return latest
            # The record with this timestamp may be before the start, or removed by compaction.
            times = yield from _record_times(batches, candidate.position, candidate.header)
            found = yield from _latest(times, candidate.header, start_offset)
            if found is not None and found.timestamp > known:
                latest, known = found, found.timestamp
        if len(candidates) < MAX_CANDIDATES:
            return latest
        tried = candidates[-1][:2]


def _candidates(
    batches: SearchableBatches, known: int, start_offset: int, tried: tuple[int, int] | None
) -> Generator[Wait, object, list[Candidate]]:
    """The next candidates after `tried`, with timestamps above `known`."""
    candidates: list[Candidate] = []
    headers, number = BatchHeaderReader(batches, start_offset), 0
    while (found := (yield from headers.next())) is not None:
        position, header = found
        number += 1
        if not header.is_control and header.last_offset >= start_offset and header.max_timestamp > known:
            candidate = Candidate(-header.max_timestamp, header.base_offset, position, header)
            if tried is None or candidate[:2] > tried:
                candidates.append(candidate)
        if len(candidates) >= 2 * MAX_CANDIDATES:
            candidates = sorted(candidates)[:MAX_CANDIDATES]
        if not number % STEP_BATCHES:
            yield None
    return sorted(candidates)[:MAX_CANDIDATES]


def _search_in(batches: SearchableBatches, timestamp: int, start_offset: int) -> Search:
    start = max((yield from _retried(lambda: batches.offset_before(timestamp))), start_offset)
    headers, number = BatchHeaderReader(batches, start), 0
    while (each := (yield from headers.next())) is not None:
        position, header = each
        number += 1
        if not number % STEP_BATCHES:
            yield None
        if header.max_timestamp < timestamp or header.last_offset < start:
            continue
        if header.is_control:
            # A marker is not a record, and has the time at which the transaction ended.
            continue
        times = yield from _record_times(batches, position, header)
        found = yield from _first(times, header, timestamp, start_offset)
        if found is not None:
            return found
    return None


def _record_times(
    batches: SearchableBatches, position: int, header: BatchHeader
) -> Generator[Wait, bytes | bytearray | memoryview | None, Iterator[tuple[int, int]] | None]:
    """Offset and timestamp of each record of a batch; None if it cannot be decompressed."""
    data = yield from _retried(lambda: batches.read(position, header.size))
    job = partial(decompress_records, data, header)
    try:
        section = job() if header.codec == NONE else (yield job)
    except CorruptBatch:
        return None
    assert section is not None
    return record_times(section, header)


def _first(
    times: Iterator[tuple[int, int]] | None, header: BatchHeader, timestamp: int, start_offset: int
) -> Search:
    """The first record that is not older than `timestamp`."""
    try:
        for number, (offset, time) in enumerate(_checked(times), 1):
            if time >= timestamp and offset >= start_offset:
                return TimedOffset(offset, time)
            if not number % STEP_RECORDS:
                yield None
    except CorruptBatch:
        return _from_header(header, start_offset)
    return None


def _latest(times: Iterator[tuple[int, int]] | None, header: BatchHeader, start_offset: int) -> Search:
    """The first record with the largest timestamp."""
    latest: TimedOffset | None = None
    try:
        for number, (offset, time) in enumerate(_checked(times), 1):
            if offset >= start_offset and (latest is None or time > latest.timestamp):
                latest = TimedOffset(offset, time)
                if time == header.max_timestamp:
                    return latest
            if not number % STEP_RECORDS:
                yield None
    except CorruptBatch:
        return _from_header(header, start_offset)
    return latest


def _checked(times: Iterator[tuple[int, int]] | None) -> Iterator[tuple[int, int]]:
    if times is None:
        raise CorruptBatch("the records cannot be decompressed")
    return times


def _from_header(header: BatchHeader, start_offset: int) -> TimedOffset:
    # The records are invalid although the checksum is right: use the timestamp of the header.
    return TimedOffset(max(header.base_offset, start_offset), header.max_timestamp)
