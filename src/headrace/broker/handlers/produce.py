"""Produce (key 0), versions 3–13 (advertised from 0, as librdkafka needs: KAFKA-18659).

Each partition's data is exactly one batch of format 2, stored as it came. Answers wait for the disk only with
`flush=always`. With acks=0 there is no answer, and a failure closes the connection, as in Apache Kafka.
Unlike there, the records inside a batch are not opened, except for keys where the topic is compacted: a batch
with records that have none is refused with INVALID_RECORD, and they are named (`record_errors`).

A topic with `headrace.overflow` may refuse a batch at its bound (POLICY_VIOLATION, which no client repeats)
or let it wait: then its answer comes when there was room, or REQUEST_TIMED_OUT, and nothing was stored. A
batch that waits is looked at again from the beginning: its transaction or its topic may have ended meanwhile.

The hottest path of the broker: it is given the frame itself, and batches stay views of it until the write.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.broker.overflow.policy import Backpressure
from headrace.broker.state_log import Producer
from headrace.broker.transactions.coordinator import IMPLICIT_PRODUCE
from headrace.broker.transactions.transaction import TopicPartition
from headrace.errors import HeadraceError
from headrace.protocol.batch import (
    CHECKSUM_STEP_BYTES,
    HEADER_BYTES,
    TRANSACTIONAL,
    checksum_steps,
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
    from collections.abc import Awaitable, Coroutine, Generator
    from typing import Any
    from uuid import UUID

    from headrace.broker.broker import Broker
    from headrace.broker.overflow.limiter import BacklogLimiter
    from headrace.broker.overflow.manager import DelayedResult
    from headrace.broker.partition import Partition
    from headrace.broker.scheduling import TimeSlice
    from headrace.broker.topics import Topic
    from headrace.protocol.messages import RequestHeader

__all__ = ["VERSIONS", "DelayedResponse", "handle"]

# Attributes, producer id and producer epoch of a batch header.
_WRITER = struct.Struct(">21xh20xqh")

Results = list[tuple["str | UUID", list[PartitionResult]]]


def handle(
    broker: Broker, frame: memoryview, header: RequestHeader
) -> bytes | Awaitable[bytes | None] | None:
    """Store what the request brings."""
    steps = produce_steps(frame, header.body, header.version)
    try:
        next(steps)
    except StopIteration as end:
        return Produce(broker, end.value, header).answer()
    return _handle_many(broker, steps, header)


async def _handle_many(
    broker: Broker, steps: Generator[None, None, ProduceRequest], header: RequestHeader
) -> bytes | None:
    """Store what a request brings to many partitions, in slices of the loop's time."""
    time_slice = broker.scheduler.time_slice()
    try:
        request = await time_slice.run(steps)
    finally:
        time_slice.release()
    answer = Produce(broker, request, header).answer()
    return answer if answer is None or isinstance(answer, bytes) else await answer


class DelayedResponse:
    """An answer that waits for room in a topic, while `held_bytes` of its request are kept in memory."""

    def __init__(self, answer: Coroutine[Any, Any, bytes | None], held_bytes: int) -> None:
        self._answer = answer
        self.held_bytes = held_bytes

    def __await__(self) -> Generator[Any, Any, bytes | None]:
        return self._answer.__await__()


class _DelayedBatch(NamedTuple):
    """A batch that waits, and where in the answer its result goes."""

    results: list[PartitionResult]
    position: int
    answer: asyncio.Future[PartitionResult]


class Produce:
    """One request, from its frame to its answer."""

    __slots__ = ("_broker", "_delayed", "_delayed_bytes", "_header", "_request")

    def __init__(self, broker: Broker, request: ProduceRequest, header: RequestHeader) -> None:
        self._broker = broker
        self._header = header
        self._request = request
        self._delayed: list[_DelayedBatch] = []
        self._delayed_bytes = 0

    def answer(self) -> bytes | Awaitable[bytes | None] | None:
        """Store what the request brings; the answer is there at once unless something must be waited for."""
        results: Results = []
        work = self._append_all(results)
        time_slice: TimeSlice | None = None  # most requests have one batch, and need none
        for _ in work:
            time_slice = time_slice or self._broker.scheduler.time_slice()
            if time_slice.is_over:
                return self._answer_in_slices(work, results, time_slice)
        return self._answer_stored(results)

    def _append_all(self, results: Results) -> Generator[None, None, None]:
        """Store each batch; yields between two of them."""
        now_ms = self._broker.clock.now_ms()
        if self._request.transactional_id is not None and self._header.version >= IMPLICIT_PRODUCE:
            yield from self._add_to_transaction()
        for name, partitions in self._request.topics:
            topic = self._broker.topics.find(name)
            of_topic: list[PartitionResult] = []
            results.append((name, of_topic))
            for index, records in partitions:
                if of_topic or len(results) > 1:
                    yield
                checksum = None
                if records is not None and len(records) > CHECKSUM_STEP_BYTES:
                    checksum = yield from checksum_steps(records)
                of_topic.append(self._append(topic, index, records, now_ms, of_topic, checksum))

    def _add_to_transaction(self) -> Generator[None, None, None]:
        """Add all partitions of the request to the transaction at once; yields where that takes long.

        Each addition writes the whole list of partitions to the log: one by one, that is quadratic.
        """
        topics = self._request.topics
        if len(topics) == 1 == len(topics[0].partitions):
            return
        producer: Producer | None = None
        written: list[TopicPartition] = []
        for name, partitions in topics:
            topic = self._broker.topics.find(name)
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

    async def _answer_in_slices(
        self, work: Generator[None, None, None], results: Results, time_slice: TimeSlice
    ) -> bytes | None:
        try:
            await time_slice.run(work)
            if self._delayed or self._request.acks == 0:
                answer = self._answer_stored(results)
                return answer if answer is None or isinstance(answer, bytes) else await answer
            await self._broker.flusher.durable()
            return await time_slice.run(
                produce_response_steps(self._header.version, self._header.correlation_id, results)
            )
        finally:
            time_slice.release()

    def _answer_stored(self, results: Results) -> bytes | Awaitable[bytes | None] | None:
        if self._delayed:
            return DelayedResponse(self._respond_when_stored(results), self._delayed_bytes)
        if self._request.acks == 0:
            _check_unanswered(results)
            return None
        if self._broker.flusher.waits:
            return self._answer_when_durable(results)
        return self._pack(results)

    async def _respond_when_stored(self, results: Results) -> bytes | None:
        for delayed in self._delayed:
            delayed.results[delayed.position] = await delayed.answer
        if self._request.acks == 0:
            _check_unanswered(results)
            return None
        return await self._answer_when_durable(results)

    async def _answer_when_durable(self, results: Results) -> bytes:
        await self._broker.flusher.durable()
        return self._pack(results)

    def _pack(self, results: Results) -> bytes:
        return pack_produce_response(self._header.version, self._header.correlation_id, results)

    def _append(
        self,
        topic: Topic | None,
        index: int,
        records: memoryview | None,
        now_ms: int,
        results: list[PartitionResult],
        checksum: int | None,
    ) -> PartitionResult:
        partition = topic.partition(index) if topic is not None else None
        if partition is None or topic is None:
            return PartitionResult(index, self._unknown)
        if records is None or len(records) < HEADER_BYTES:
            return PartitionResult(
                index, ErrorCode.invalid_record, message="a request without a record batch"
            )
        if self._broker.key_validator.must_wait(partition, records):
            self._check_keys(topic, partition, records, results)
            return PartitionResult(index, ErrorCode.request_timed_out)
        limiter = partition.limiter
        try:
            if limiter is not None and limiter.delayed:
                # Before its sequence is looked at: the batch that comes before it may be in the line.
                raise Backpressure
            return self._store(topic, partition, records, now_ms, checksum=checksum)
        except Backpressure:
            assert limiter is not None
            copy = memoryview(bytearray(records))  # the frame's memory is used again
            self._delay(self._delay_until_it_fits(topic, partition, limiter, copy), len(records), results)
            return PartitionResult(index, ErrorCode.request_timed_out)

    def _delay(
        self, answer: asyncio.Future[PartitionResult], size: int, results: list[PartitionResult]
    ) -> None:
        """Let the answer to the request wait for that of one batch, which comes next in `results`."""
        self._delayed.append(_DelayedBatch(results, len(results), answer))
        self._delayed_bytes += size

    def _check_keys(
        self, topic: Topic, partition: Partition, records: memoryview, results: list[PartitionResult]
    ) -> None:
        copy = memoryview(bytearray(records))
        store = partial(self._store_checked, topic, partition, copy)
        checked = self._broker.key_validator.check(partition, copy, store)
        self._delay(checked, len(records), results)

    async def _store_checked(
        self, topic: Topic, partition: Partition, records: memoryview, fault: HeadraceError | None
    ) -> PartitionResult:
        if fault is not None:
            return _refuse(partition, fault)
        limiter = partition.limiter
        try:
            if limiter is not None and limiter.delayed:
                raise Backpressure
            return self._store_later(topic, partition, records, has_keys=True)
        except Backpressure:
            assert limiter is not None
            return await self._delay_until_it_fits(topic, partition, limiter, records, has_keys=True)

    def _delay_until_it_fits(
        self,
        topic: Topic,
        partition: Partition,
        limiter: BacklogLimiter,
        records: memoryview,
        *,
        has_keys: bool = False,
    ) -> DelayedResult:
        return self._broker.overflow.delay(
            limiter,
            partial(self._store_later, topic, partition, records, has_keys=has_keys),
            records=read_header(records).count,
            size=len(records),
            timeout_ms=self._request.timeout_ms,
        )

    def _store_later(
        self, topic: Topic, partition: Partition, records: memoryview, *, has_keys: bool = False
    ) -> PartitionResult:
        if partition.log.is_deleted:
            return PartitionResult(partition.index, self._unknown)
        return self._store(topic, partition, records, self._broker.clock.now_ms(), has_keys=has_keys)

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
        return PartitionResult(partition.index, 0, base_offset, append_time_ms, log.start_offset)

    def _check(self, topic: Topic, partition: Partition, records: memoryview) -> int:
        """What forbids the write before the batch itself is looked at; 0 when nothing does."""
        request = self._request
        if topic.is_internal:
            return ErrorCode.invalid_topic_exception
        if request.acks not in (-1, 0, 1):
            return ErrorCode.invalid_required_acks
        attributes, producer_id, epoch = _WRITER.unpack_from(records)
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


def _transactional_producer(records: memoryview | None) -> Producer | None:
    """The producer of a batch that belongs to a transaction; None for any other."""
    if records is None or len(records) < HEADER_BYTES:
        return None
    attributes, producer_id, epoch = _WRITER.unpack_from(records)
    return Producer(producer_id, epoch) if attributes & TRANSACTIONAL else None


def _refuse(partition: Partition, fault: HeadraceError) -> PartitionResult:
    record_errors: list[tuple[int, str]] = []
    if isinstance(fault, RecordsWithoutKey):
        place = f"{partition.topic}-{partition.index}"
        reason = f"Compacted topic cannot accept message without key in topic partition {place}."
        record_errors = [(index, reason) for index in fault.indexes]
    return PartitionResult(
        partition.index, error_code(fault), message=str(fault), record_errors=record_errors
    )


def _check_unanswered(results: Results) -> None:
    for _, partitions in results:
        for result in partitions:
            if result.error_code:
                raise ProtocolError(f"a batch of a request with acks=0 was rejected: {result.message}")
