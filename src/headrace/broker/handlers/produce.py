"""Produce (key 0), versions 3–13: appends one record batch to each partition.

Versions are advertised from 0, because librdkafka requires that (KAFKA-18659). Batches have format version 2
and are stored as received. With `flush=always` the response waits for the disk. With acks=0 there is no
response, and an error closes the connection, as in Apache Kafka.

Unlike in Apache Kafka, the records of a batch are not validated, with one exception: in a compacted topic
every record needs a key. Other batches get INVALID_RECORD, with the invalid records in `record_errors`.

A topic with `headrace.overflow` that is full rejects a batch with POLICY_VIOLATION, which clients do not
retry, or delays it until there is room. If the delay exceeds the timeout, the batch is not stored and gets
REQUEST_TIMED_OUT. A delayed batch is validated again before it is appended: its transaction or its topic may
have ended.

If one batch is transactional, the right to the transactional id is checked before anything else, and the id
must be that of the producer; then the right to write each topic is.

This is the broker's hottest path: the handler gets the frame, and batches are views of it until the write.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.overflow.policy import Backpressure
from headrace.broker.security.acls import ResourceType
from headrace.broker.security.requirements import allowed
from headrace.broker.state_log import Producer
from headrace.broker.transactions.coordinator import IMPLICIT_PRODUCE
from headrace.broker.transactions.transaction import TopicPartition
from headrace.errors import HeadraceError
from headrace.protocol.batch import (
    CHECKSUM_STEP_BYTES,
    HEADER_BYTES,
    TRANSACTIONAL,
    checksum_steps,
    copy_steps,
    read_header,
)
from headrace.protocol.errors import ProtocolError
from headrace.protocol.produce import (
    STEP_PARTITIONS,
    TOPIC_IDS_FROM,
    VERSIONS,
    PartitionResult,
    ProduceRequest,
    pack_produce_response,
    produce_response_steps,
    produce_steps,
)
from headrace.storage.errors import RecordsWithoutKey

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Coroutine, Generator, Sequence
    from typing import Any
    from uuid import UUID

    from headrace.broker.broker import Broker
    from headrace.broker.overflow.limiter import BacklogLimiter
    from headrace.broker.overflow.manager import DelayedResult
    from headrace.broker.scheduling import TimeSlice
    from headrace.broker.security.acls import Access
    from headrace.broker.topics import Partition, Topic
    from headrace.protocol.requests import RequestHeader

__all__ = ["VERSIONS", "DelayedResponse", "handle"]

PRODUCE: Final = 0

# Attributes, producer id and producer epoch of a batch header.
_PRODUCER = struct.Struct(">21xh20xqh")

Results = list[tuple["str | UUID", list[PartitionResult]]]


def handle(
    broker: Broker, frame: memoryview, header: RequestHeader, access: Access | None = None
) -> bytes | Awaitable[bytes | None] | None:
    """Append the batches of a request, if the client may write them; no `access` means that it may."""
    steps = produce_steps(frame, header.body, header.version)
    try:
        next(steps)
    except StopIteration as end:
        return Produce(broker, end.value, header, access).respond()
    return _handle_many(broker, steps, header, access)


async def _handle_many(
    broker: Broker,
    steps: Generator[None, None, ProduceRequest],
    header: RequestHeader,
    access: Access | None,
) -> bytes | None:
    """Append the batches of a request with many partitions, in time slices."""
    time_slice = broker.scheduler.time_slice()
    try:
        request = await time_slice.run(steps)
    finally:
        time_slice.release()
    response = Produce(broker, request, header, access).respond()
    return response if response is None or isinstance(response, bytes) else await response


class DelayedResponse:
    """The response to a request with delayed batches, of which `held_bytes` are in memory."""

    def __init__(self, response: Coroutine[Any, Any, bytes | None], held_bytes: int) -> None:
        self._response = response
        self.held_bytes = held_bytes

    def __await__(self) -> Generator[Any, Any, bytes | None]:
        return self._response.__await__()


class _DelayedBatch(NamedTuple):
    """A delayed batch, and the position of its result in the response."""

    results: list[PartitionResult]
    position: int
    future: asyncio.Future[PartitionResult]


class Produce:
    """One produce request."""

    __slots__ = (
        "_access",
        "_broker",
        "_delayed",
        "_delayed_bytes",
        "_header",
        "_request",
        "_waits_for_archive",
    )

    def __init__(
        self, broker: Broker, request: ProduceRequest, header: RequestHeader, access: Access | None
    ) -> None:
        self._access = access
        self._broker = broker
        self._header = header
        self._request = request
        self._delayed: list[_DelayedBatch] = []
        self._delayed_bytes = 0
        self._waits_for_archive = False

    def respond(self) -> bytes | Awaitable[bytes | None] | None:
        """Append all batches; returns the response, or an awaitable if the request has to wait."""
        results: Results = []
        work = self._append_all(results)
        time_slice: TimeSlice | None = None  # not needed by most requests, which have one batch
        for _ in work:
            time_slice = time_slice or self._broker.scheduler.time_slice()
            if time_slice.is_over:
                return self._respond_in_slices(work, results, time_slice)
        return self._respond_stored(results)

    def _append_all(self, results: Results) -> Generator[None, None, None]:
        """Append each batch; yields between batches."""
        now_ms = self._broker.clock.now_ms()
        if self._access is not None and (code := self._check_transactional_id(self._access)):
            results += [(name, _refuse_all(partitions, code)) for name, partitions in self._request.topics]
            return
        if self._request.transactional_id is not None and self._header.version >= IMPLICIT_PRODUCE:
            yield from self._add_to_transaction()
        for name, partitions in self._request.topics:
            topic = self._broker.topics.find(name)
            of_topic: list[PartitionResult] = []
            results.append((name, of_topic))
            if self._access is not None and not self._may_write(name, topic):
                of_topic += _refuse_all(partitions, ErrorCode.topic_authorization_failed)
                continue
            for index, records in partitions:
                if of_topic or len(results) > 1:
                    yield
                if records is not None and len(records) > CHECKSUM_STEP_BYTES:
                    yield from self._append_large(topic, index, records, now_ms, of_topic)
                else:
                    of_topic.append(self._append(topic, index, records, now_ms, of_topic))

    def _append_large(
        self,
        topic: Topic | None,
        index: int,
        records: memoryview,
        now_ms: int,
        results: list[PartitionResult],
    ) -> Generator[None, None, None]:
        """Store a batch whose checksum and whose write take long; yields between the steps of both."""
        checksum = yield from checksum_steps(records)
        partition = topic.partition(index) if topic is not None else None
        if topic is None or partition is None:
            results.append(PartitionResult(index, self._unknown))
            return
        if not _may_be_staged(partition, records, checksum):  # it is refused, and never delayed
            results.append(self._store(topic, partition, records, now_ms, checksum=checksum))
            return
        if self._broker.key_validator.must_wait(partition, records):
            copy = yield from copy_steps(records)
            self._check_keys(topic, partition, memoryview(copy), results, checksum)
            results.append(PartitionResult(index, ErrorCode.request_timed_out))
            return
        with self._broker.key_validator.holding(partition):
            limiter = partition.limiter
            try:
                if limiter is not None and limiter.delayed:
                    raise Backpressure
                yield from partition.log.stage(records)
                results.append(self._store(topic, partition, records, now_ms, checksum=checksum))
            except Backpressure:
                assert limiter is not None
                copy = yield from copy_steps(records)
                delayed = self._delay_until_fits(
                    topic, partition, limiter, memoryview(copy), checksum=checksum
                )
                self._delay(delayed, len(copy), results)
                results.append(PartitionResult(index, ErrorCode.request_timed_out))
            finally:
                partition.log.discard_staged()
        yield  # the append may have freed a large batch, and the end of the request frees another one

    def _check_transactional_id(self, access: Access) -> int:
        """The error of a client that may not write the transaction of its batches; 0 for none."""
        writers = {
            writer
            for _, partitions in self._request.topics
            for _, records in partitions
            if (writer := _transactional_producer(records)) is not None
        }
        transactional_id = self._request.transactional_id
        if not writers:
            return 0
        if transactional_id is None or not allowed(
            access, PRODUCE, ResourceType.TRANSACTIONAL_ID, transactional_id
        ):
            return ErrorCode.transactional_id_authorization_failed
        known = self._broker.transactions.describe(transactional_id)
        if known is None or any(writer.producer_id != known.producer_id for writer in writers):
            return ErrorCode.invalid_producer_id_mapping
        return 0

    def _may_write(self, requested: str | UUID, topic: Topic | None) -> bool:
        """Whether the client may write to a topic; an unknown id is unknown to every client."""
        name = topic.name if topic is not None else requested
        access = self._access
        return (
            access is None or not isinstance(name, str) or allowed(access, PRODUCE, ResourceType.TOPIC, name)
        )

    def _add_to_transaction(self) -> Generator[None, None, None]:
        """Add all partitions of the request to the transaction; yields between steps.

        Each addition writes the complete list of partitions to the log: one by one would be quadratic.
        """
        topics = self._request.topics
        if len(topics) == 1 == len(topics[0].partitions):
            return
        producer: Producer | None = None
        written: list[TopicPartition] = []
        for name, partitions in topics:
            topic = self._broker.topics.find(name)
            if not self._may_write(name, topic):
                continue
            for index, records in partitions:
                if topic is None or topic.is_internal or topic.partition(index) is None:
                    continue
                writer = _transactional_producer(records)
                producer = producer or writer
                if writer is not None and writer == producer:
                    written.append(TopicPartition(topic.name, index))
                    if not len(written) % STEP_PARTITIONS:
                        yield
        if producer is not None:
            self._broker.transactions.add_written(self._request.transactional_id or "", producer, written)

    async def _respond_in_slices(
        self, work: Generator[None, None, None], results: Results, time_slice: TimeSlice
    ) -> bytes | None:
        try:
            await time_slice.run(work)
            time_slice.release()  # delayed batches may wait for other clients
            if self._delayed or self._request.acks == 0:
                response = self._respond_stored(results)
                return response if response is None or isinstance(response, bytes) else await response
            await self._durable()
            self._count_errors(results)
            return await time_slice.run(
                produce_response_steps(self._header.version, self._header.correlation_id, results)
            )
        finally:
            work.close()
            time_slice.release()

    def _respond_stored(self, results: Results) -> bytes | Awaitable[bytes | None] | None:
        if self._delayed:
            return DelayedResponse(self._respond_when_stored(results), self._delayed_bytes)
        if self._request.acks == 0:
            _check_without_response(results)
            return None
        if self._broker.flusher.waits or self._waits_for_archive:
            return self._respond_when_durable(results)
        return self._pack(results)

    async def _respond_when_stored(self, results: Results) -> bytes | None:
        for delayed in self._delayed:
            delayed.results[delayed.position] = await delayed.future
        if self._request.acks == 0:
            _check_without_response(results)
            return None
        return await self._respond_when_durable(results)

    async def _respond_when_durable(self, results: Results) -> bytes:
        await self._durable()
        return self._pack(results)

    async def _durable(self) -> None:
        await self._broker.flusher.durable()
        if self._waits_for_archive and self._broker.flusher.tails is not None:
            await self._broker.flusher.tails.durable()

    def _pack(self, results: Results) -> bytes:
        self._count_errors(results)
        return pack_produce_response(self._header.version, self._header.correlation_id, results)

    def _count_errors(self, results: Results) -> None:
        for _, partitions in results:
            for result in partitions:
                if result.error_code:
                    self._broker.requests.failed(PRODUCE, result.error_code)

    def _append(
        self,
        topic: Topic | None,
        index: int,
        records: memoryview | None,
        now_ms: int,
        results: list[PartitionResult],
    ) -> PartitionResult:
        partition = topic.partition(index) if topic is not None else None
        if partition is None or topic is None:
            return PartitionResult(index, self._unknown)
        if records is None or len(records) < HEADER_BYTES:
            return PartitionResult(
                index, ErrorCode.invalid_record, message="the request contains no record batch"
            )
        if self._broker.key_validator.must_wait(partition, records):
            self._check_keys(topic, partition, memoryview(bytearray(records)), results, None)
            return PartitionResult(index, ErrorCode.request_timed_out)
        limiter = partition.limiter
        try:
            if limiter is not None and limiter.delayed:
                # Checked before its sequence number: the previous batch may be delayed, too.
                raise Backpressure
            return self._store(topic, partition, records, now_ms)
        except Backpressure:
            assert limiter is not None
            copy = memoryview(bytearray(records))  # the frame's buffer is reused
            self._delay(self._delay_until_fits(topic, partition, limiter, copy), len(records), results)
            return PartitionResult(index, ErrorCode.request_timed_out)

    def _delay(
        self, future: asyncio.Future[PartitionResult], size: int, results: list[PartitionResult]
    ) -> None:
        """Make the response wait for the result of a batch, which is the next one in `results`."""
        self._delayed.append(_DelayedBatch(results, len(results), future))
        self._delayed_bytes += size

    def _check_keys(
        self,
        topic: Topic,
        partition: Partition,
        copy: memoryview,
        results: list[PartitionResult],
        checksum: int | None,
    ) -> None:
        """Store a batch after its keys are checked; `copy` must not be a view of the frame."""
        store = partial(self._store_checked, topic, partition, copy, checksum)
        checked = self._broker.key_validator.check(partition, copy, store)
        self._delay(checked, len(copy), results)

    async def _store_checked(
        self,
        topic: Topic,
        partition: Partition,
        records: memoryview,
        checksum: int | None,
        fault: HeadraceError | None,
    ) -> PartitionResult:
        if fault is not None:
            return _refuse(partition, fault)
        limiter = partition.limiter
        try:
            if limiter is not None and limiter.delayed:
                raise Backpressure
            if checksum is not None and _may_be_staged(partition, records, checksum):
                await self._stage(partition, records)
            return self._store_later(topic, partition, records, has_keys=True, checksum=checksum)
        except Backpressure:
            assert limiter is not None
            return await self._delay_until_fits(
                topic, partition, limiter, records, has_keys=True, checksum=checksum
            )
        finally:
            if checksum is not None:
                partition.log.discard_staged()

    async def _stage(self, partition: Partition, records: memoryview) -> None:
        """Write a large batch in time slices; later batches for the partition wait for it."""
        if partition.log.is_deleted:
            return
        time_slice = self._broker.scheduler.time_slice()
        try:
            await time_slice.run(partition.log.stage(records))
        finally:
            time_slice.release()

    def _delay_until_fits(
        self,
        topic: Topic,
        partition: Partition,
        limiter: BacklogLimiter,
        records: memoryview,
        *,
        has_keys: bool = False,
        checksum: int | None = None,
    ) -> DelayedResult:
        """The result of a batch that waits for room; with a `checksum` it is large, and stored in steps."""
        is_large = checksum is not None
        return self._broker.overflow.delay(
            limiter,
            partial(self._store_later, topic, partition, records, has_keys=has_keys, checksum=checksum),
            read_header(records),
            timeout_ms=self._request.timeout_ms,
            stage=partial(self._stage, partition, records) if is_large else None,
            discard_staged=partition.log.discard_staged if is_large else None,
        )

    def _store_later(
        self,
        topic: Topic,
        partition: Partition,
        records: memoryview,
        *,
        has_keys: bool = False,
        checksum: int | None = None,
    ) -> PartitionResult:
        if partition.log.is_deleted:
            return PartitionResult(partition.index, self._unknown)
        now_ms = self._broker.clock.now_ms()
        return self._store(topic, partition, records, now_ms, has_keys=has_keys, checksum=checksum)

    def _store(
        self,
        topic: Topic,
        partition: Partition,
        records: memoryview,
        now_ms: int,
        *,
        has_keys: bool = False,
        checksum: int | None = None,
    ) -> PartitionResult:
        log, limiter = partition.log, partition.limiter
        code = self._check(topic, partition, records)
        if code:
            return PartitionResult(partition.index, code)
        try:
            base_offset, append_time_ms, _ = log.append(
                records,
                now_ms,
                None if limiter is None else limiter.admit,
                has_keys=has_keys,
                checksum=checksum,
            )
        except Backpressure:
            raise
        except HeadraceError as fault:
            return _refuse(partition, fault)
        self._broker.flusher.appended(partition)
        if self._broker.flusher.tails is not None and log.waits_for_archive:
            self._waits_for_archive = True
        return PartitionResult(partition.index, 0, base_offset, append_time_ms, log.start_offset)

    def _check(self, topic: Topic, partition: Partition, records: memoryview) -> int:
        """The error code if the write is not allowed, before the batch is validated; 0 if it is allowed."""
        request = self._request
        if topic.is_internal:
            return ErrorCode.invalid_topic_exception
        if request.acks not in (-1, 0, 1):
            return ErrorCode.invalid_required_acks
        attributes, producer_id, epoch = _PRODUCER.unpack_from(records)
        if not attributes & TRANSACTIONAL or partition.log.producers.has_open(producer_id):
            return 0
        return self._broker.transactions.check_produce(
            request.transactional_id, producer_id, epoch, topic.name, partition.index, self._header.version
        )

    @property
    def _unknown(self) -> ErrorCode:
        if self._header.version >= TOPIC_IDS_FROM:
            return ErrorCode.unknown_topic_id
        return ErrorCode.unknown_topic_or_partition


def _may_be_staged(partition: Partition, records: memoryview, checksum: int) -> bool:
    """Whether a batch is good enough to be written before it is accepted."""
    is_small_enough = len(records) <= partition.log.config.max_message_bytes
    return is_small_enough and not partition.log.is_deleted and read_header(records).crc == checksum


def _transactional_producer(records: memoryview | None) -> Producer | None:
    """The producer of a transactional batch; None for other batches."""
    if records is None or len(records) < HEADER_BYTES:
        return None
    attributes, producer_id, epoch = _PRODUCER.unpack_from(records)
    return Producer(producer_id, epoch) if attributes & TRANSACTIONAL else None


def _refuse_all(partitions: Sequence[tuple[int, memoryview | None]], code: int) -> list[PartitionResult]:
    return [PartitionResult(index, code) for index, _ in partitions]


def _refuse(partition: Partition, fault: HeadraceError) -> PartitionResult:
    record_errors: list[tuple[int, str]] = []
    if isinstance(fault, RecordsWithoutKey):
        name = f"{partition.topic}-{partition.index}"
        reason = f"Compacted topic cannot accept message without key in topic partition {name}."
        record_errors = [(index, reason) for index in fault.indexes]
    return PartitionResult(
        partition.index, error_code(fault), message=str(fault), record_errors=record_errors
    )


def _check_without_response(results: Results) -> None:
    for _, partitions in results:
        for result in partitions:
            if result.error_code:
                raise ProtocolError(f"a batch of a request with acks=0 was rejected: {result.message}")
