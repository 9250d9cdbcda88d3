"""Finding records by their time, in runs of batches whose times need not be in order.

Headers are what producers wrote: a batch may claim a time that none of its records has, so that a search can
take long. It is a generator: it yields None wherever it may pause, and a function wherever a batch is to be
opened, whose result it is to be sent; decompression is best done outside of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headrace.protocol.compression import NONE
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import open_records, record_times
from headrace.storage.index import NO_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.protocol.batch import BatchHeader

STEP_BATCHES: Final = 16
STEP_RECORDS: Final = 256
MAX_CANDIDATES: Final = 256
"""Batches with the largest times that are tried before the others are looked at again."""


class TimedOffset(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp: int


Job = Callable[[], bytes | bytearray | memoryview]
Search = Generator["Job | None", "bytes | bytearray | memoryview | None", "TimedOffset | None"]


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


class Candidate(NamedTuple):
    """A batch that claims to hold a late record; the latest claim sorts first, the earlier batch of two."""

    negated_timestamp: int
    base_offset: int
    position: int
    header: BatchHeader


def search_time(runs: Sequence[TimedBatches], timestamp: int, start_offset: int) -> Search:
    """The first record from `start_offset` on that is not older than `timestamp`."""
    for run in tuple(runs):
        if run.load_max_timestamp() >= timestamp:
            found = yield from _search_in(run, timestamp, start_offset)
            if found is not None:
                return found
    return None


def search_latest_time(runs: Sequence[TimedBatches], start_offset: int) -> Search:
    """The record from `start_offset` on with the largest time; the first one of several."""
    latest: TimedOffset | None = None
    for run in tuple(runs):
        known = NO_TIMESTAMP if latest is None else latest.timestamp
        if run.load_max_timestamp() > known:
            latest = (yield from _search_latest_in(run, known, start_offset)) or latest
    return latest


def _search_latest_in(run: TimedBatches, known: int, start_offset: int) -> Search:
    """The first record with the largest time of the run, if that is later than `known`."""
    latest: TimedOffset | None = None
    tried: tuple[int, int] | None = None
    while True:
        claims = yield from _largest_claims(run, known, start_offset, tried)
        for claim in claims:
            if -claim.negated_timestamp <= known:
                return latest
            # The record that had the time may lie before the start, or compaction removed it: another has it.
            times = yield from _open(run, claim.position, claim.header)
            found = yield from _latest(times, claim.header, start_offset)
            if found is not None and found.timestamp > known:
                latest, known = found, found.timestamp
        if len(claims) < MAX_CANDIDATES:
            return latest
        tried = claims[-1][:2]


def _largest_claims(
    run: TimedBatches, known: int, start_offset: int, tried: tuple[int, int] | None
) -> Generator[Job | None, object, list[Candidate]]:
    """The batches that claim the largest times above `known`, of those that come after `tried`."""
    claims: list[Candidate] = []
    for number, (position, header) in enumerate(run.headers_from(start_offset), 1):
        if not header.is_control and header.last_offset >= start_offset and header.max_timestamp > known:
            claim = Candidate(-header.max_timestamp, header.base_offset, position, header)
            if tried is None or claim[:2] > tried:
                claims.append(claim)
        if len(claims) >= 2 * MAX_CANDIDATES:
            claims = sorted(claims)[:MAX_CANDIDATES]
        if not number % STEP_BATCHES:
            yield None
    return sorted(claims)[:MAX_CANDIDATES]


def _search_in(run: TimedBatches, timestamp: int, start_offset: int) -> Search:
    start = max(run.offset_before(timestamp), start_offset)
    for number, (position, header) in enumerate(run.headers_from(start), 1):
        if not number % STEP_BATCHES:
            yield None
        if header.max_timestamp < timestamp or header.last_offset < start:
            continue
        if header.is_control:
            # The end of a transaction is no record, and has the time of now whatever its records have.
            continue
        times = yield from _open(run, position, header)
        found = yield from _first(times, header, timestamp, start_offset)
        if found is not None:
            return found
    return None


def _open(
    run: TimedBatches, position: int, header: BatchHeader
) -> Generator[Job | None, bytes | bytearray | memoryview | None, Iterator[tuple[int, int]] | None]:
    """Offset and time of each record of a batch; None for one that cannot be opened."""
    job = partial(open_records, run.read(position, header.size), header)
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
        return _claimed(header, start_offset)
    return None


def _latest(times: Iterator[tuple[int, int]] | None, header: BatchHeader, start_offset: int) -> Search:
    """The first record with the largest time."""
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
        return _claimed(header, start_offset)
    return latest


def _checked(times: Iterator[tuple[int, int]] | None) -> Iterator[tuple[int, int]]:
    if times is None:
        raise CorruptBatch("the records cannot be opened")
    return times


def _claimed(header: BatchHeader, start_offset: int) -> TimedOffset:
    # Its producer wrote nonsense under a good checksum. The header still says when, and readers go on.
    return TimedOffset(max(header.base_offset, start_offset), header.max_timestamp)
