"""Writes encoded record batches (Produce, API key 0), several requests at a time.

    producer = BatchProducer(cluster)
    producer.send(TopicPartition("orders", 0), batch)
    producer.flush()

Batches of one partition are stored in the order of `send`. A batch with a producer id and a sequence is
stored exactly once and in order, however often it is retried. One without them is stored at least once: after
a lost connection it may be stored twice, and after its successors.

Requests are encoded by hand, so that batches are sent without a copy. Version 9 has topic names, and every
Kafka since 2.8 serves it. From version 12 on a transactional write adds its partition to the transaction
(KIP-890). That saves a single writer a request, but many concurrent writers wait for one another.
"""

from __future__ import annotations

import itertools
import struct
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.client.errors import (
    FENCED,
    PRODUCE_RETRIABLE,
    BadResponse,
    BrokerUnreachable,
    ProducerFenced,
    RequestRefused,
    attempts,
)
from headrace.client.partition import TopicPartition, by_leader, by_topic
from headrace.errors import HeadraceError
from headrace.protocol.errors import ProtocolError
from headrace.protocol.wire import (
    INT32,
    UNLIMITED,
    FrameCursor,
    pack_count,
    pack_string,
    pack_unsigned_varint,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from headrace.client.bootstrap import Address
    from headrace.client.cluster import Cluster
    from headrace.client.connection import Connection
    from headrace.protocol.compression import Bytes

API_KEY: Final = 0
VERSION: Final = 9
PARTITION_ADDING_VERSION: Final = 12
"""Encoded like version 9; a transactional write adds its partition to the transaction."""
REQUEST_BYTES: Final = 1 << 20
"""Batches of different partitions share a request up to this size."""
TIMEOUT_MS: Final = 30_000

_ACKS = struct.Struct(">hi")
_RESULT = struct.Struct(">ihqqq")
_NO_TAGS: Final = b"\0"


class InvalidAcks(HeadraceError):
    """A producer without acknowledgments."""


class ProduceResult(NamedTuple):
    """The response for one partition."""

    partition: TopicPartition
    error: ErrorCode
    base_offset: int
    message: str | None


def pack_produce(
    batches: Mapping[TopicPartition, Bytes], *, transactional_id: str | None, acks: int, timeout_ms: int
) -> list[Bytes]:
    """Encode the body of a request as a list of parts; the batches are not copied."""
    topics = by_topic(batches.items())
    head = pack_string(transactional_id, flexible=True) + _ACKS.pack(acks, timeout_ms)
    parts: list[Bytes] = [head + pack_count(len(topics), flexible=True)]
    for topic, partitions in topics.items():
        parts.append(pack_string(topic, flexible=True) + pack_count(len(partitions), flexible=True))
        for index, batch in partitions:
            parts += [INT32.pack(index) + pack_unsigned_varint(len(batch) + 1), batch, _NO_TAGS]
        parts.append(_NO_TAGS)
    parts.append(_NO_TAGS)
    return parts


def read_produce_response(frame: memoryview) -> list[ProduceResult]:
    """Decode a response."""
    cursor = FrameCursor(frame, INT32.size, flexible=True, max_items=UNLIMITED)
    try:
        cursor.tags()
        return [result for _ in range(cursor.count()) for result in _read_topic(cursor)]
    except ProtocolError as fault:
        raise BadResponse(f"a Produce response cannot be decoded: {fault}") from fault


def _read_topic(cursor: FrameCursor) -> Iterator[ProduceResult]:
    topic = cursor.string() or ""
    for _ in range(cursor.count()):
        index, error, base_offset, _append_time, _start = cursor.take(_RESULT)
        for _ in range(cursor.count()):
            cursor.take(INT32)
            cursor.string()
            cursor.tags()
        message = cursor.string()
        cursor.tags()
        yield ProduceResult(TopicPartition(topic, index), ErrorCode(error), base_offset, message)
    cursor.tags()


class PendingBatch(NamedTuple):
    """A batch that is not known to be stored, numbered in the order of `send`."""

    number: int
    partition: TopicPartition
    batch: Bytes


class InFlightProduce(NamedTuple):
    """A request without a response yet, with at most one batch per partition."""

    connection: Connection
    correlation_id: int
    batches: dict[TopicPartition, PendingBatch]


class BatchProducer:
    """A producer of encoded batches. Unusable after an error.

    `acks` is −1 for all in-sync replicas, or 1 for the leader. With a `transactional_id` the batches belong
    to its open transaction, and carry its producer id and epoch. Their partitions were added to the
    transaction; with `adds_partitions` the writes add them. After an error code in `retriable` the batch is
    sent again.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        transactional_id: str | None = None,
        acks: int = -1,
        max_in_flight: int = 5,
        adds_partitions: bool = False,
        retriable: Collection[int] = PRODUCE_RETRIABLE,
    ) -> None:
        if acks not in (-1, 1):
            raise InvalidAcks(
                f"acks={acks} is not supported: use acks=-1 (all in-sync replicas) or acks=1 (the leader), "
                "so that failed writes are noticed"
            )
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._acks = acks
        self._max_in_flight = max_in_flight
        self._version = PARTITION_ADDING_VERSION if adds_partitions else VERSION
        self._retriable = retriable
        self._numbers = itertools.count()
        self._buffered: dict[TopicPartition, PendingBatch] = {}
        self._buffered_bytes = 0
        self._in_flight: deque[InFlightProduce] = deque()
        self._failed: list[PendingBatch] = []
        self._last_error: BrokerUnreachable | RequestRefused | None = None
        self._started: set[TopicPartition] = set()
        """Partitions that have stored a batch of this producer."""
        self._offsets: dict[TopicPartition, int] = {}

    def send(self, partition: TopicPartition, batch: Bytes) -> None:
        """Buffer a batch, and send what is buffered; it must not change until the next `flush` returns."""
        if partition in self._buffered or self._buffered_bytes + len(batch) > REQUEST_BYTES:
            self._send_buffered()
        self._buffered[partition] = PendingBatch(next(self._numbers), partition, batch)
        self._buffered_bytes += len(batch)

    def flush(self) -> dict[TopicPartition, int]:
        """Return when all batches are stored, with the first offset of each partition since the last flush.

        The offset is −1 if the broker only reports a duplicate.
        """
        self._send_buffered()
        self._receive_all()
        if self._failed:
            self._retry_failed()
        offsets, self._offsets = self._offsets, {}
        return offsets

    def _send_buffered(self) -> None:
        batches, self._buffered, self._buffered_bytes = self._buffered, {}, 0
        self._await_first_batches(batches)
        while len(self._in_flight) >= self._max_in_flight:
            self._receive_oldest()
        if self._failed:
            self._retry_failed()
        self._send(batches)

    def _await_first_batches(self, partitions: Iterable[TopicPartition]) -> None:
        """Return when the first batch of each of these partitions is stored.

        A partition accepts any sequence as the first of a producer: if the first batch were refused and the
        second one stored, the first could not follow. The leader of a new topic may also refuse the first
        batch, because it does not know yet that it leads.
        """
        while any(
            partition not in self._started and self._is_in_flight(partition) for partition in partitions
        ):
            self._receive_oldest()

    def _is_in_flight(self, partition: TopicPartition) -> bool:
        return any(partition in request.batches for request in self._in_flight)

    def _send(self, batches: dict[TopicPartition, PendingBatch]) -> None:
        """Send one request to each leader; batches that cannot be sent count as failed."""
        try:
            leaders = by_leader(self._cluster, batches)
        except (BrokerUnreachable, RequestRefused) as error:
            if isinstance(error, RequestRefused) and error.code not in PRODUCE_RETRIABLE:
                raise
            self._fail(batches.values(), error)
            return
        for address, led in leaders.items():
            try:
                self._send_to(address, led)
            except BrokerUnreachable as error:
                self._fail(led.values(), error)

    def _send_to(self, address: Address, batches: dict[TopicPartition, PendingBatch]) -> None:
        body = pack_produce(
            {partition: pending.batch for partition, pending in batches.items()},
            transactional_id=self._transactional_id,
            acks=self._acks,
            timeout_ms=TIMEOUT_MS,
        )
        connection = self._cluster.connection(address)
        correlation_id = connection.send(API_KEY, self._version, body)
        self._in_flight.append(InFlightProduce(connection, correlation_id, batches))

    def _receive_all(self) -> None:
        while self._in_flight:
            self._receive_oldest()

    def _receive_oldest(self) -> None:
        request = self._in_flight.popleft()
        try:
            results = read_produce_response(request.connection.receive(request.correlation_id))
        except BrokerUnreachable as error:
            self._fail(request.batches.values(), error)
            return
        for result in results:
            self._handle_result(result, request.batches[result.partition])

    def _handle_result(self, result: ProduceResult, pending: PendingBatch) -> None:
        partition, code, base_offset, message = result
        if code in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
            self._started.add(partition)
            self._offsets.setdefault(partition, base_offset)
            return
        refusal = RequestRefused(f"store a batch in {partition}", code, message)
        if code in self._retriable or self._follows_a_failure(code, pending):
            self._fail([pending], refusal)
            return
        self._discard_in_flight()
        if code in FENCED:
            raise ProducerFenced(
                f"a batch for {partition} was refused: its producer "
                f"({self._transactional_id or 'an idempotent producer'}) was fenced by a newer one, or its "
                "transaction has ended. Its transaction is aborted; stop this producer."
            ) from refusal
        raise refusal

    def _follows_a_failure(self, code: ErrorCode, pending: PendingBatch) -> bool:
        return code is ErrorCode.out_of_order_sequence_number and any(
            failed.partition == pending.partition and failed.number < pending.number
            for failed in self._failed
        )

    def _fail(self, batches: Iterable[PendingBatch], error: BrokerUnreachable | RequestRefused) -> None:
        self._failed += batches
        self._last_error = error

    def _retry_failed(self) -> None:
        """Return when all failed batches are stored, for each partition in order."""
        self._receive_all()
        while self._failed:
            self._retry_until_some_succeed()

    def _retry_until_some_succeed(self) -> None:
        for _ in attempts(self._cluster.timeout_s):
            before = len(self._failed)
            self._cluster.refresh()
            self._send(self._take_first_failed())
            self._receive_all()
            if len(self._failed) < before:
                return
        assert self._last_error is not None
        raise self._last_error

    def _take_first_failed(self) -> dict[TopicPartition, PendingBatch]:
        first: dict[TopicPartition, PendingBatch] = {}
        for pending in sorted(self._failed):
            first.setdefault(pending.partition, pending)
        taken = {pending.number for pending in first.values()}
        self._failed = [pending for pending in self._failed if pending.number not in taken]
        return first

    def _discard_in_flight(self) -> None:
        for request in self._in_flight:
            request.connection.discard(request.correlation_id)
        self._in_flight.clear()
