"""Reads record batches (Fetch, API key 1, version 12).

`PartitionReader` reads a range of offsets of one partition. It requests the next batches before the caller
gets the current ones, so that the broker works while the caller does:

    for fetched in PartitionReader(cluster, TopicPartition("orders", 0), 0, 1_000_000):
        process(fetched.batches, fetched.aborted)

`fetch_batches` returns the next batches of any number of partitions, for readers without an end offset.

Version 12 is the last one with topic names, and every Kafka since 2.7 serves it. Messages are encoded and
decoded by hand: batches are views of the response. Only batch headers are decoded, and checksums are not
verified. Fetch sessions are not used.

`read_records` decodes the committed records of a partition in plain Python.
"""

from __future__ import annotations

import logging
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.client.errors import (
    LEADER_CHANGED,
    BadResponse,
    BrokerUnreachable,
    OffsetOutOfRange,
    ReadTimeout,
    RequestRefused,
    attempts,
)
from headrace.client.offsets import EARLIEST, LATEST, list_offsets
from headrace.client.partition import TopicPartition, by_leader, by_topic
from headrace.errors import HeadraceError
from headrace.protocol.batch import (
    HEADER_BYTES,
    LENGTH_OVERHEAD,
    MIN_LENGTH,
    check_batch,
    read_header,
    split_batches,
)
from headrace.protocol.errors import CorruptBatch, ProtocolError
from headrace.protocol.records import Record, decode_batch
from headrace.protocol.wire import INT32, UNLIMITED, FrameCursor, pack_count, pack_string

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from headrace.client.cluster import Cluster
    from headrace.client.connection import Connection


API_KEY: Final = 1
VERSION: Final = 12
RANGE_FETCH_BYTES: Final = 4 << 20
RANGE_MAX_WAIT_MS: Final = 100
"""The longest wait of the broker before an empty response to a reader of a range."""
EMPTY_RESPONSES: Final = 2
"""After this many empty responses before the end offset, the rest of the range is a compaction gap."""
FOLLOW_FETCH_BYTES: Final = 1 << 20
FOLLOW_PARTITION_BYTES: Final = 64 << 10
"""The minimum for each partition: one with a backlog must not delay the others."""
SHARED_WAIT_MS: Final = 50
"""The longest wait when several brokers are polled in turn: an idle one must not delay the others."""
NO_END: Final = (1 << 63) - 1

_REQUEST = struct.Struct(">iiiibii")
"""Replica id, max wait, min bytes, max bytes, isolation level, session id, session epoch."""
_PARTITION = struct.Struct(">iiqiqib")
"""Index, leader epoch, fetch offset, last fetched epoch, log start offset, max bytes, no tagged fields."""
_REQUEST_END: Final = b"\1\1\0"
"""No forgotten topics, no rack, no tagged fields."""
_RESPONSE = struct.Struct(">ihi")
_PARTITION_RESPONSE = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_OFFSET_AND_LENGTH = struct.Struct(">qi")
_OFFSETS = struct.Struct(">q15xi")

logger = logging.getLogger(__name__)


class FetchedBatches(NamedTuple):
    """Complete consecutive batches of one partition."""

    partition: TopicPartition
    batches: memoryview
    aborted: tuple[tuple[int, int], ...]
    """Producer id and first offset of each aborted transaction in the batches or after them."""
    next_offset: int


class FetchPartitionResponse(NamedTuple):
    """The response for one partition; the last batch in `records` may be incomplete."""

    partition: TopicPartition
    error: ErrorCode
    high_watermark: int
    last_stable_offset: int
    aborted: tuple[tuple[int, int], ...]
    records: memoryview
    throttle_ms: int


def pack_fetch(
    offsets: Mapping[TopicPartition, int],
    *,
    max_wait_ms: int,
    max_bytes: int,
    partition_max_bytes: int,
    read_committed: bool,
) -> bytes:
    """Encode the body of a request."""
    topics = by_topic(offsets.items())
    parts = [
        _REQUEST.pack(-1, max_wait_ms, 1, max_bytes, read_committed, 0, -1),
        pack_count(len(topics), flexible=True),
    ]
    for topic, partitions in topics.items():
        parts += [pack_string(topic, flexible=True), pack_count(len(partitions), flexible=True)]
        parts += [_PARTITION.pack(index, -1, at, -1, -1, partition_max_bytes, 0) for index, at in partitions]
        parts.append(b"\0")
    parts.append(_REQUEST_END)
    return b"".join(parts)


def read_fetch_response(frame: memoryview) -> list[FetchPartitionResponse]:
    """Decode a response."""
    try:
        return _read_response(FrameCursor(frame, INT32.size, flexible=True, max_items=UNLIMITED))
    except ProtocolError as fault:
        raise BadResponse(f"a Fetch response cannot be decoded: {fault}") from fault


def _read_response(cursor: FrameCursor) -> list[FetchPartitionResponse]:
    cursor.tags()
    throttle_ms, error, _session = cursor.take(_RESPONSE)
    if error:
        raise RequestRefused("fetch records", ErrorCode(error))
    responses = []
    for _ in range(cursor.count()):
        topic = cursor.string() or ""
        for _ in range(cursor.count()):
            responses.append(_read_partition(cursor, topic, throttle_ms))
            cursor.tags()
        cursor.tags()
    return responses


def _read_partition(cursor: FrameCursor, topic: str, throttle_ms: int) -> FetchPartitionResponse:
    index, error, high_watermark, last_stable_offset, _start = cursor.take(_PARTITION_RESPONSE)
    aborted = tuple(_read_aborted(cursor) for _ in range(cursor.count()))
    cursor.take(INT32)
    records = cursor.blob()
    return FetchPartitionResponse(
        TopicPartition(topic, index),
        ErrorCode(error),
        high_watermark,
        last_stable_offset,
        aborted,
        cursor.frame[:0] if records is None else records,
        throttle_ms,
    )


def _read_aborted(cursor: FrameCursor) -> tuple[int, int]:
    producer_id, first_offset = cursor.take(_ABORTED)
    cursor.tags()
    return producer_id, first_offset


def measure_batches(records: memoryview, end: int) -> tuple[int, int]:
    """The size of the complete batches that start before `end`, and the offset after them.

    A broker truncates the last batch at its size limit. The offset is −1 if there is no complete batch. A
    batch that starts at or after `end` shows that no record before `end` follows.
    """
    position, last, reached = 0, -1, -1
    readable = len(records) - HEADER_BYTES
    read = _OFFSET_AND_LENGTH.unpack_from
    # There may be one batch per record, and this loop sees them all: it does as little as possible.
    while position <= readable:
        base_offset, length = read(records, position)
        if base_offset >= end:
            reached = end
            break
        if length < MIN_LENGTH:
            raise BadResponse(f"a record batch of {length} bytes at offset {base_offset}")
        following = position + length + LENGTH_OVERHEAD
        if following > len(records):
            break
        last, position = position, following
    return position, max(reached, _offset_after(records, last))


def _offset_after(records: memoryview, position: int) -> int:
    if position < 0:
        return -1
    base_offset, last_offset_delta = _OFFSETS.unpack_from(records, position)
    return int(base_offset + last_offset_delta + 1)


def check_offset(cluster: Cluster, partition: TopicPartition, offset: int) -> None:
    """Raise `OffsetOutOfRange` if the partition does not hold `offset`.

    A newly elected leader may refuse an offset that is valid, because it does not know its high watermark.
    """
    first, end = (
        list_offsets(cluster, {partition: which}, read_committed=False)[partition]
        for which in (EARLIEST, LATEST)
    )
    if not first <= offset <= end:
        raise OffsetOutOfRange(partition, offset, first, end)


class InFlightFetch(NamedTuple):
    """A request without a response yet."""

    connection: Connection
    correlation_id: int


class PartitionReader:
    """Iterates over the batches of one partition that hold the offsets from `start` to before `end`.

    The first and the last batch may hold more. Waits for leader elections and broker restarts, and raises
    `ReadTimeout` if the partition returns nothing for the cluster's timeout.
    """

    def __init__(
        self,
        cluster: Cluster,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        read_committed: bool = True,
        fetch_bytes: int = RANGE_FETCH_BYTES,
    ) -> None:
        self._cluster = cluster
        self._partition = partition
        self._start = start
        self._end = end
        self._read_committed = read_committed
        self._fetch_bytes = fetch_bytes

    def __iter__(self) -> Iterator[FetchedBatches]:
        position = self._start
        request = None
        try:
            while position < self._end:
                fetched = self._fetch(position, request)
                request = None
                position = fetched.next_offset
                if position < self._end:
                    request = self._prefetch(position)
                if fetched.batches:
                    yield fetched
        finally:
            if request is not None:
                request.connection.discard(request.correlation_id)

    def _fetch(self, position: int, request: InFlightFetch | None) -> FetchedBatches:
        """Batches that end after `position`; `request` is the prefetch for them, if there is one."""
        empty_responses = 0
        reason = ""
        for _ in attempts(self._cluster.timeout_s):
            try:
                response = self._receive(request or self._send(position))
            except BrokerUnreachable as fault:
                reason = str(fault)
                self._cluster.refresh()
                continue
            finally:
                request = None
            if response.error is not ErrorCode.none:
                reason = f"the broker answers {response.error.name}"
                self._handle_error(response.error, position)
                continue
            size, next_offset = measure_batches(response.records, self._end)
            fetched = FetchedBatches(self._partition, response.records[:size], response.aborted, next_offset)
            if next_offset > position:
                return fetched
            reason = self._describe_end(response)
            empty_responses += self._is_gap(response)
            if empty_responses == EMPTY_RESPONSES:
                return fetched._replace(next_offset=self._end)
        raise ReadTimeout(
            f"{self._partition} returned nothing from offset {position} on for {self._cluster.timeout_s:g} s "
            f"(the range ends at {self._end}): {reason}"
        )

    def _prefetch(self, position: int) -> InFlightFetch | None:
        try:
            return self._send(position)
        except HeadraceError:
            return None  # the caller gets its batches; the next call raises the error if it persists

    def _send(self, position: int) -> InFlightFetch:
        connection = self._cluster.leader(self._partition)
        request = pack_fetch(
            {self._partition: position},
            max_wait_ms=RANGE_MAX_WAIT_MS,
            max_bytes=self._fetch_bytes,
            partition_max_bytes=self._fetch_bytes,
            read_committed=self._read_committed,
        )
        return InFlightFetch(connection, connection.send(API_KEY, VERSION, [request]))

    def _receive(self, request: InFlightFetch) -> FetchPartitionResponse:
        responses = read_fetch_response(request.connection.receive(request.correlation_id))
        if len(responses) != 1:
            raise BadResponse(f"a Fetch response for {len(responses)} partitions, for a request for one")
        return responses[0]

    def _handle_error(self, error: ErrorCode, position: int) -> None:
        """Return if a retry may succeed; raise otherwise."""
        if error is ErrorCode.offset_out_of_range:
            check_offset(self._cluster, self._partition, position)
        elif error not in LEADER_CHANGED:
            raise RequestRefused(f"read {self._partition} from offset {position}", error)
        self._cluster.refresh()

    def _is_gap(self, response: FetchPartitionResponse) -> bool:
        """Whether the partition reaches the end offset without a batch before it, after compaction.

        An empty response of a throttled broker does not count.
        """
        end = response.last_stable_offset if self._read_committed else response.high_watermark
        return not response.records and not response.throttle_ms and end >= self._end

    def _describe_end(self, response: FetchPartitionResponse) -> str:
        if self._read_committed and response.last_stable_offset < response.high_watermark:
            return f"an open transaction blocks readers at offset {response.last_stable_offset}"
        return f"the partition ends at offset {response.high_watermark}"


def fetch_batches(
    cluster: Cluster, offsets: Mapping[TopicPartition, int], *, max_wait_ms: int
) -> list[FetchedBatches]:
    """The committed batches from these offsets on; an empty list if there are none within `max_wait_ms`.

    Waits for leader elections. Raises `OffsetOutOfRange` for an offset that its partition does not hold.
    """
    return cluster.retry(lambda: list(_fetch(cluster, offsets, max_wait_ms)), LEADER_CHANGED)


def _fetch(
    cluster: Cluster, offsets: Mapping[TopicPartition, int], max_wait_ms: int
) -> Iterator[FetchedBatches]:
    leaders = by_leader(cluster, offsets)
    wait_ms = max_wait_ms if len(leaders) == 1 else min(max_wait_ms, SHARED_WAIT_MS)
    for address, wanted in leaders.items():
        partition_bytes = max(FOLLOW_PARTITION_BYTES, FOLLOW_FETCH_BYTES // len(wanted))
        request = pack_fetch(
            wanted,
            max_wait_ms=wait_ms,
            max_bytes=partition_bytes * len(wanted),
            partition_max_bytes=partition_bytes,
            read_committed=True,
        )
        connection = cluster.connection(address)
        frame = connection.receive(connection.send(API_KEY, VERSION, [request]))
        for response in read_fetch_response(frame):
            yield from _complete_batches(cluster, response, wanted[response.partition])


def _complete_batches(
    cluster: Cluster, response: FetchPartitionResponse, offset: int
) -> Iterator[FetchedBatches]:
    partition, error = response.partition, response.error
    if error is ErrorCode.offset_out_of_range:
        check_offset(cluster, partition, offset)
        error = ErrorCode.offset_not_available
    if error is not ErrorCode.none:
        raise RequestRefused(f"read {partition} from offset {offset}", error)
    size, next_offset = measure_batches(response.records, NO_END)
    if size:
        batches = response.records[:size]
        yield FetchedBatches(partition, batches, response.aborted, max(next_offset, offset))


class UnreadableRecords(NamedTuple):
    """Offsets whose records cannot be decoded."""

    partition: TopicPartition
    first: int
    last: int
    reason: str
    batch: bytes = b""
    """The stored record batch; empty if only the content of a record is invalid."""
    key: bytes | None = None
    """The key of a record with invalid content."""

    def __str__(self) -> str:
        offsets = (
            f"offset {self.first}" if self.first == self.last else f"offsets {self.first} to {self.last}"
        )
        topic, number = self.partition
        return f"{offsets} of partition {number} of {topic!r} cannot be read: {self.reason}"


def read_records(
    cluster: Cluster, partition: TopicPartition, start: int, end: int, *, read_committed: bool = True
) -> Iterator[Record | UnreadableRecords]:
    """Yield the records with offsets from `start` to before `end`; `read_committed`: only committed ones."""
    if start >= end:
        return
    for fetched in PartitionReader(cluster, partition, start, end, read_committed=read_committed):
        for record in committed_records(partition, fetched.batches, fetched.aborted):
            if isinstance(record, UnreadableRecords):
                if record.last >= start and record.first < end:
                    yield record
            elif start <= record.offset < end:
                yield record


def committed_records(
    partition: TopicPartition, batches: memoryview, aborted: Sequence[tuple[int, int]]
) -> Iterator[Record | UnreadableRecords]:
    """Yield the records of these batches without those of `aborted` transactions.

    A batch with a wrong checksum is never skipped as a marker or as aborted: its content is unknown.
    """
    # A producer is in an aborted transaction from the offset in the broker's list to its next marker.
    pending = sorted(aborted, key=lambda each: each[1], reverse=True)
    aborting: set[int] = set()
    for batch in split_batches(batches):
        header = read_header(batch)
        while pending and pending[-1][1] <= header.last_offset:
            aborting.add(pending.pop()[0])
        try:
            check_batch(batch, header)
            if header.is_control:
                aborting.discard(header.producer_id)
                continue
            if header.is_transactional and header.producer_id in aborting:
                continue
            records = decode_batch(batch)
        except CorruptBatch as fault:
            yield UnreadableRecords(
                partition, header.base_offset, header.last_offset, str(fault), bytes(batch)
            )
        else:
            yield from records


def skip_unreadable(records: Iterable[Record | UnreadableRecords]) -> Iterator[Record]:
    """Yield the records, and log a warning for those that cannot be decoded."""
    for record in records:
        if isinstance(record, UnreadableRecords):
            logger.warning("skipped: %s", record)
        else:
            yield record
