"""Produce (key 0), versions 3–13 (advertised from 0, as librdkafka needs: KAFKA-18659).

Each partition's data is exactly one batch of format 2, stored as it came. Answers wait for the disk only with
`flush=always`. With acks=0 there is no answer, and a failure closes the connection, as in Apache Kafka.
Unlike there, the records inside a batch are not opened, except for keys where the topic is compacted.

The hottest path of the broker: it is given the frame itself, and batches stay views of it until the write.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from headrace.broker.errors import error_code
from headrace.errors import HeadraceError
from headrace.protocol.batch import HEADER_BYTES, LOG_APPEND_TIME, TRANSACTIONAL
from headrace.protocol.errors import ProtocolError
from headrace.protocol.produce import VERSIONS, PartitionResult, pack_produce_response, read_produce

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from uuid import UUID

    from headrace.broker.broker import Broker
    from headrace.broker.partition import Partition
    from headrace.broker.topics import Topic
    from headrace.protocol.messages import RequestHeader
    from headrace.protocol.produce import ProduceRequest

__all__ = ["VERSIONS", "handle"]

# Attributes, producer id, producer epoch and base sequence of a batch header.
_WRITER = struct.Struct(">21xh20xqhi")

Results = list[tuple["str | UUID", list[PartitionResult]]]


def handle(broker: Broker, frame: memoryview, header: RequestHeader) -> bytes | Awaitable[bytes] | None:
    """Store what the request brings."""
    request = read_produce(frame, header.body, header.version)
    now_ms = broker.clock.now_ms()
    results: Results = []
    for name, partitions in request.topics:
        topic = broker.topics.find(name)
        results.append((name, [_append(broker, request, header, topic, i, r, now_ms) for i, r in partitions]))
    if request.acks == 0:
        _check_unanswered(results)
        return None
    if broker.flusher.waits:
        return _answer_when_durable(broker, header, results)
    return pack_produce_response(header.version, header.correlation_id, results)


async def _answer_when_durable(broker: Broker, header: RequestHeader, results: Results) -> bytes:
    await broker.flusher.durable()
    return pack_produce_response(header.version, header.correlation_id, results)


def _check_unanswered(results: Results) -> None:
    for _, partitions in results:
        for result in partitions:
            if result.error_code:
                raise ProtocolError(f"a record that nobody waits for was refused: {result.message}")


def _append(
    broker: Broker,
    request: ProduceRequest,
    header: RequestHeader,
    topic: Topic | None,
    index: int,
    records: memoryview | None,
    now_ms: int,
) -> PartitionResult:
    partition = topic.partition(index) if topic is not None else None
    if partition is None or topic is None:
        unknown = ErrorCode.unknown_topic_id if header.version >= 13 else ErrorCode.unknown_topic_or_partition
        return PartitionResult(index, unknown)
    if records is None or len(records) < HEADER_BYTES:
        return PartitionResult(index, ErrorCode.invalid_record, message="a request without a record batch")
    log = partition.log
    code = _check(broker, request, header, topic, partition, records)
    if code:
        return PartitionResult(index, code)
    try:
        base_offset, append_time_ms, _ = log.append(records, now_ms)
    except HeadraceError as fault:
        return PartitionResult(index, error_code(fault), message=str(fault))
    broker.flusher.appended(partition)
    return PartitionResult(index, 0, base_offset, append_time_ms, log.start_offset)


def _check(
    broker: Broker,
    request: ProduceRequest,
    header: RequestHeader,
    topic: Topic,
    partition: Partition,
    records: memoryview,
) -> int:
    """What forbids the write before the batch itself is looked at; 0 when nothing does."""
    if topic.is_internal:
        return ErrorCode.invalid_topic_exception
    if request.acks not in (-1, 0, 1):
        return ErrorCode.invalid_required_acks
    attributes, producer_id, epoch, sequence = _WRITER.unpack_from(records)
    if attributes & LOG_APPEND_TIME:
        return ErrorCode.invalid_timestamp  # only the broker stamps batches with its time
    if producer_id >= 0 > sequence:
        return ErrorCode.invalid_record  # it could be written twice, and nobody would know
    if not attributes & TRANSACTIONAL or partition.log.producers.has_open(producer_id):
        return 0
    return broker.transactions.check_produce(
        request.transactional_id, producer_id, epoch, topic.name, partition.index, header.version
    )
