"""ShareAcknowledge (key 79), versions 1–2: acknowledges records, or renews their locks.

The acknowledgments of a partition are applied completely or not at all: INVALID_RECORD_STATE if the member
has not acquired one of the records. The final epoch (−1) releases all records of the member.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.broker.security.acls import ResourceType
from headrace.broker.security.requirements import allowed
from headrace.broker.shares.sessions import FINAL_EPOCH, INITIAL_EPOCH
from headrace.protocol.share import (
    VERSIONS,
    AcknowledgeType,
    ShareResult,
    pack_share_acknowledge,
    share_acknowledge_steps,
)
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Generator, Iterator, Sequence
    from uuid import UUID

    from headrace.broker.broker import Broker
    from headrace.broker.connection import Connection
    from headrace.broker.security.acls import Access
    from headrace.broker.shares.partitions import SharePartition
    from headrace.protocol.requests import RequestHeader
    from headrace.protocol.share import (
        AcknowledgedRange,
        ShareAcknowledgeRequest,
        SharePartitionRequest,
    )

__all__ = ["VERSIONS", "acknowledge_steps", "handle"]

SHARE_ACKNOWLEDGE: Final = 79
PARTITIONS_AT_ONCE: Final = 100
"""Partitions whose acknowledgments are applied and stored in one step."""
RECORDS_AT_ONCE: Final = 2_000
"""A step ends after the partition in which it has acknowledged that many records."""


def handle(
    broker: Broker, frame: memoryview, header: RequestHeader, peer: Connection
) -> list[object] | Awaitable[list[object]]:
    """Apply the acknowledgments; returns an error code for each partition."""
    steps = _steps(broker, frame, header, peer)
    try:
        next(steps)
    except StopIteration as end:
        response: list[object] = end.value
        return _respond_when_durable(broker, response) if broker.flusher.waits else response
    return _respond_in_slices(broker, steps)


async def _respond_in_slices(broker: Broker, steps: Generator[None, None, list[object]]) -> list[object]:
    time_slice = broker.scheduler.time_slice()
    try:
        response = await time_slice.run(steps)
    finally:
        time_slice.release()
    await broker.shares.durable()
    return response


def _steps(
    broker: Broker, frame: memoryview, header: RequestHeader, peer: Connection
) -> Generator[None, None, list[object]]:
    request = yield from share_acknowledge_steps(frame, header.body, header.version)
    error, results = yield from _decide(broker, request, peer)
    lock_ms = broker.shares.config(request.group).lock_duration_ms
    return pack_share_acknowledge(
        header.version, header.correlation_id, error, _MESSAGES.get(error), lock_ms, results
    )


async def _respond_when_durable(broker: Broker, response: list[object]) -> list[object]:
    await broker.shares.durable()
    return response


def _decide(
    broker: Broker, request: ShareAcknowledgeRequest, peer: Connection
) -> Generator[None, None, tuple[ErrorCode, list[ShareResult]]]:
    key = (request.group, request.member)
    access = peer.access
    if access is not None and not allowed(access, SHARE_ACKNOWLEDGE, ResourceType.GROUP, request.group):
        return ErrorCode.group_authorization_failed, []
    if request.epoch == INITIAL_EPOCH:
        return ErrorCode.invalid_share_session_epoch, []
    session = broker.shares.sessions.resume(key, request.epoch, peer)
    if isinstance(session, ErrorCode):
        return session, []
    results = yield from acknowledge_steps(broker, key, request.partitions, access, renews=request.renews)
    if request.epoch == FINAL_EPOCH:
        broker.shares.close_session(key)
    return ErrorCode.none, results


def acknowledge_steps(
    broker: Broker,
    key: tuple[str, str],
    partitions: Sequence[SharePartitionRequest],
    access: Access | None,
    *,
    renews: bool,
) -> Generator[None, None, list[ShareResult]]:
    """Apply and store the acknowledgments of a member; yields between steps."""
    results: list[ShareResult] = []
    for part in _parts(partitions):
        if results:
            yield
        results += _acknowledge(broker, key, part, access, renews=renews)
    return results


def _parts(partitions: Sequence[SharePartitionRequest]) -> Iterator[Sequence[SharePartitionRequest]]:
    """The partitions of one step after the other."""
    begin = records = 0
    for index, asked in enumerate(partitions, start=1):
        # A range may name more records than there can be.
        records += sum(min(each.last - each.first + 1, RECORDS_AT_ONCE) for each in asked.acknowledged)
        if index - begin == PARTITIONS_AT_ONCE or records >= RECORDS_AT_ONCE:
            yield partitions[begin:index]
            begin, records = index, 0
    if begin < len(partitions):
        yield partitions[begin:]


def may_read(broker: Broker, access: Access | None, topic_id: UUID) -> bool:
    """Whether a client may read a topic; an unknown id is unknown to every client."""
    if access is None:
        return True
    topic = broker.topics.by_id(topic_id)
    return topic is None or allowed(access, SHARE_ACKNOWLEDGE, ResourceType.TOPIC, topic.name)


def _acknowledge(
    broker: Broker,
    key: tuple[str, str],
    partitions: Sequence[SharePartitionRequest],
    access: Access | None,
    *,
    renews: bool,
) -> list[ShareResult]:
    group, member = key
    now_ms = broker.clock.now_ms()
    changed: list[SharePartition] = []
    results = []
    for requested in partitions:
        if not may_read(broker, access, requested.topic):
            denied = ErrorCode.topic_authorization_failed
            results.append(ShareResult(requested.topic, requested.partition, acknowledge_error=denied))
            continue
        share_partition = broker.shares.get(group, requested.topic, requested.partition)
        error = _unknown(broker, requested)
        if share_partition is not None:
            error = _check_renewal(share_partition, requested.acknowledged, renews=renews)
            if error is ErrorCode.none:
                # Expired locks are released even if the timer has not fired yet.
                share_partition.state.expire(now_ms)
                error = share_partition.state.acknowledge(member, requested.acknowledged, now_ms)
                changed.append(share_partition)
        results.append(ShareResult(requested.topic, requested.partition, acknowledge_error=error))
    try:
        broker.shares.store(changed)
    except StorageError:
        return [result._replace(acknowledge_error=ErrorCode.kafka_storage_error) for result in results]
    return results


def _unknown(broker: Broker, requested: SharePartitionRequest) -> ErrorCode:
    if broker.topics.by_id(requested.topic) is None:
        return ErrorCode.unknown_topic_id
    return ErrorCode.unknown_topic_or_partition


def _check_renewal(
    share_partition: SharePartition, ranges: Sequence[AcknowledgedRange], *, renews: bool
) -> ErrorCode:
    if renews and share_partition.state.config.can_renew:
        return ErrorCode.none
    has_renewals = any(AcknowledgeType.RENEW in each.types for each in ranges)
    return ErrorCode.invalid_request if has_renewals else ErrorCode.none


_MESSAGES = {
    ErrorCode.share_session_not_found: "the share session does not exist: open a new one",
    ErrorCode.invalid_share_session_epoch: "the share session has another epoch: open a new one",
}
