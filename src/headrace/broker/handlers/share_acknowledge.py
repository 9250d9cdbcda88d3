"""ShareAcknowledge (key 79), versions 1–2: a member is done with records, or wants more time for them.

All that is said of a partition is done, or none of it: INVALID_RECORD_STATE when the member does not hold a
record that it names. The last epoch (−1) gives back whatever the member still holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

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
    from collections.abc import Awaitable, Generator, Sequence

    from headrace.broker.broker import Broker
    from headrace.broker.shares.partitions import SharePartition
    from headrace.protocol.messages import RequestHeader
    from headrace.protocol.share import (
        AcknowledgedRange,
        ShareAcknowledgeRequest,
        SharePartitionRequest,
    )

__all__ = ["VERSIONS", "acknowledge_steps", "handle"]

PARTITIONS_AT_ONCE: Final = 100
"""Partitions whose acknowledgments are done, and stored together, in one step."""


def handle(
    broker: Broker, frame: memoryview, header: RequestHeader, peer: object
) -> list[object] | Awaitable[list[object]]:
    """What became of each partition's acknowledgements."""
    steps = _steps(broker, frame, header, peer)
    try:
        next(steps)
    except StopIteration as end:
        answer: list[object] = end.value
        return _answer_when_durable(broker, answer) if broker.flusher.waits else answer
    return _answer_in_slices(broker, steps)


async def _answer_in_slices(broker: Broker, steps: Generator[None, None, list[object]]) -> list[object]:
    time_slice = broker.scheduler.time_slice()
    try:
        answer = await time_slice.run(steps)
    finally:
        time_slice.release()
    await broker.shares.durable()
    return answer


def _steps(
    broker: Broker, frame: memoryview, header: RequestHeader, peer: object
) -> Generator[None, None, list[object]]:
    request = yield from share_acknowledge_steps(frame, header.body, header.version)
    error, results = yield from _decide(broker, request, peer)
    lock_ms = broker.shares.config(request.group).lock_duration_ms
    return pack_share_acknowledge(
        header.version, header.correlation_id, error, _MESSAGES.get(error), lock_ms, results
    )


async def _answer_when_durable(broker: Broker, answer: list[object]) -> list[object]:
    await broker.shares.durable()
    return answer


def _decide(
    broker: Broker, request: ShareAcknowledgeRequest, peer: object
) -> Generator[None, None, tuple[ErrorCode, list[ShareResult]]]:
    key = (request.group, request.member)
    if request.epoch == INITIAL_EPOCH:
        return ErrorCode.invalid_share_session_epoch, []
    session = broker.shares.sessions.resume(key, request.epoch, peer)
    if isinstance(session, ErrorCode):
        return session, []
    results = yield from acknowledge_steps(broker, key, request.partitions, renews=request.renews)
    if request.epoch == FINAL_EPOCH:
        broker.shares.close_session(key)
    return ErrorCode.none, results


def acknowledge_steps(
    broker: Broker, key: tuple[str, str], partitions: Sequence[SharePartitionRequest], *, renews: bool
) -> Generator[None, None, list[ShareResult]]:
    """Do what a member says of its records, partition by partition, and store it; yields between steps."""
    results = _acknowledge(broker, key, partitions[:PARTITIONS_AT_ONCE], renews=renews)
    for first in range(PARTITIONS_AT_ONCE, len(partitions), PARTITIONS_AT_ONCE):
        yield
        results += _acknowledge(broker, key, partitions[first : first + PARTITIONS_AT_ONCE], renews=renews)
    return results


def _acknowledge(
    broker: Broker, key: tuple[str, str], partitions: Sequence[SharePartitionRequest], *, renews: bool
) -> list[ShareResult]:
    group, member = key
    now_ms = broker.clock.now_ms()
    changed: list[SharePartition] = []
    results = []
    for asked in partitions:
        share_partition = broker.shares.get(group, asked.topic, asked.partition)
        error = _unknown(broker, asked)
        if share_partition is not None:
            error = _check_renewal(share_partition, asked.acknowledged, renews=renews)
            if error is ErrorCode.none:
                # Expired locks are released even if the timer has not fired yet.
                share_partition.state.expire(now_ms)
                error = share_partition.state.acknowledge(member, asked.acknowledged, now_ms)
                changed.append(share_partition)
        results.append(ShareResult(asked.topic, asked.partition, acknowledge_error=error))
    try:
        broker.shares.store(changed)
    except StorageError:
        return [result._replace(acknowledge_error=ErrorCode.kafka_storage_error) for result in results]
    return results


def _unknown(broker: Broker, asked: SharePartitionRequest) -> ErrorCode:
    if broker.topics.by_id(asked.topic) is None:
        return ErrorCode.unknown_topic_id
    return ErrorCode.unknown_topic_or_partition


def _check_renewal(
    share_partition: SharePartition, ranges: Sequence[AcknowledgedRange], *, renews: bool
) -> ErrorCode:
    if renews and share_partition.state.config.can_renew:
        return ErrorCode.none
    wants_it = any(AcknowledgeType.RENEW in each.types for each in ranges)
    return ErrorCode.invalid_request if wants_it else ErrorCode.none


_MESSAGES = {
    ErrorCode.share_session_not_found: "the share session is not known: open a new one",
    ErrorCode.invalid_share_session_epoch: "the share session is in another epoch: open a new one",
}
