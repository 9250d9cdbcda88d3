"""Records for members of share groups: ShareFetch and ShareAcknowledge."""

from __future__ import annotations

from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.broker.delayed_operation import DelayedOperation
from headrace.broker.scheduling import SLICE_SECONDS
from headrace.broker.security.acls import ResourceType
from headrace.broker.security.requirements import allowed
from headrace.broker.shares.sessions import FINAL_EPOCH, INITIAL_EPOCH
from headrace.protocol.share import (
    AcknowledgeType,
    ShareResult,
    pack_share_acknowledge,
    pack_share_fetch,
    share_acknowledge_steps,
    share_fetch_steps,
)
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Generator, Iterator, Sequence
    from uuid import UUID

    from headrace.broker.broker import Broker
    from headrace.broker.connection import Connection
    from headrace.broker.delayed_operation import ResponseParts
    from headrace.broker.security.acls import Access
    from headrace.broker.shares.partitions import SharePartition
    from headrace.broker.shares.sessions import ShareSession, TopicIdPartition
    from headrace.protocol.requests import RequestHeader
    from headrace.protocol.share import (
        AcknowledgedRange,
        ShareAcknowledgeRequest,
        ShareFetchRequest,
        SharePartitionRequest,
    )


SHARE_FETCH: Final = 78
PARTITIONS_PER_TURN: Final = 250
"""Partitions that one request reads per iteration of the event loop, if there is time for so many."""

SHARE_ACKNOWLEDGE: Final = 79
PARTITIONS_AT_ONCE: Final = 100
"""Partitions whose acknowledgments are applied and stored in one step."""
RECORDS_AT_ONCE: Final = 2_000
"""A step ends after the partition in which it has acknowledged that many records."""


def share_fetch(
    broker: Broker, frame: memoryview, header: RequestHeader, peer: Connection
) -> ResponseParts | Awaitable[ResponseParts | asyncio.Future[ResponseParts]]:
    """ShareFetch (key 78), versions 1–2: acquires records for a member, and acknowledges others.

    MaxRecords is a strict limit in both modes, and one fetch acquires at most a part of the record locks, so
    that all members get records; Apache Kafka exceeds MaxRecords to return whole batches. The broker skips
    transaction markers and aborted records. Fetches without records wait in the order in which they arrived.
    """
    steps = _begin_steps(broker, frame, header, peer)
    try:
        next(steps)
    except StopIteration as end:
        begun: ShareFetch | ResponseParts = end.value
        return begun if isinstance(begun, list) else _respond(broker, begun)
    return _fetch_in_slices(broker, steps)


async def _fetch_in_slices(
    broker: Broker, steps: Generator[None, None, ShareFetch | ResponseParts]
) -> ResponseParts | asyncio.Future[ResponseParts]:
    time_slice = broker.scheduler.time_slice()
    try:
        begun = await time_slice.run(steps)
    finally:
        time_slice.release()
    if isinstance(begun, list):
        return begun
    await broker.shares.durable()
    return begun.poll() or begun.wait()


def _begin_steps(
    broker: Broker, frame: memoryview, header: RequestHeader, peer: Connection
) -> Generator[None, None, ShareFetch | ResponseParts]:
    """Resolve the session and apply acknowledgments; returns the fetch, or the response if it is complete."""
    request = yield from share_fetch_steps(frame, header.body, header.version)
    fetch = ShareFetch(broker, request, header, peer.access)
    access = peer.access
    if access is not None and not allowed(access, SHARE_FETCH, ResourceType.GROUP, request.group):
        return fetch.refuse(ErrorCode.group_authorization_failed)
    session = _session(broker, request, peer)
    if isinstance(session, ErrorCode):
        return fetch.refuse(session)
    if request.partitions and request.epoch != INITIAL_EPOCH:
        yield from fetch.acknowledge_steps()
    if request.epoch == FINAL_EPOCH:
        broker.shares.close_session((request.group, request.member))
        return fetch.respond_without_records()
    fetch.session = session
    return fetch


def _respond(broker: Broker, fetch: ShareFetch) -> ResponseParts | Awaitable[ResponseParts]:
    if broker.flusher.waits and fetch.has_partitions:
        return _fetch_when_durable(broker, fetch)
    return fetch.poll() or fetch.wait()


async def _fetch_when_durable(broker: Broker, fetch: ShareFetch) -> ResponseParts:
    await broker.shares.durable()
    return fetch.poll() or await fetch.wait()


def _session(broker: Broker, request: ShareFetchRequest, peer: object) -> ShareSession | ErrorCode:
    shares, key = broker.shares, (request.group, request.member)
    if request.group not in shares:
        return ErrorCode.group_id_not_found
    if request.epoch == INITIAL_EPOCH:
        if any(requested.acknowledged for requested in request.partitions):
            return ErrorCode.invalid_request
        shares.close_session(key)
        partitions = ((requested.topic, requested.partition) for requested in request.partitions)
        return shares.sessions.open(key, partitions, peer)
    session = shares.sessions.resume(key, request.epoch, peer)
    if not isinstance(session, ErrorCode):
        session.partitions.update(
            dict.fromkeys((requested.topic, requested.partition) for requested in request.partitions)
        )
        for partition in request.forgotten:
            session.partitions.pop(partition, None)
    return session


class ShareFetch:
    """One share fetch request."""

    __slots__ = (
        "_access",
        "_acknowledged",
        "_broker",
        "_header",
        "_remaining",
        "_request",
        "_waiting",
        "_watched",
        "session",
    )

    def __init__(
        self, broker: Broker, request: ShareFetchRequest, header: RequestHeader, access: Access | None
    ) -> None:
        self._access = access
        self._broker = broker
        self._request = request
        self._header = header
        self.session: ShareSession | None = None
        self._acknowledged: dict[TopicIdPartition, ShareResult] = {}
        self._remaining = 0
        """Partitions of the session that this poll has not read yet."""
        self._waiting: DelayedOperation | None = None
        self._watched: set[TopicIdPartition] = set()

    @property
    def has_partitions(self) -> bool:
        """Whether the request contains partitions, so that state may have been stored for it."""
        return bool(self._request.partitions)

    def acknowledge_steps(self) -> Generator[None, None, None]:
        """Apply the acknowledgments of the request; yields between steps."""
        request = self._request
        requested = [partition for partition in request.partitions if partition.acknowledged]
        key = (request.group, request.member)
        results = yield from acknowledge_steps(
            self._broker, key, requested, self._access, renews=request.renews
        )
        self._acknowledged = {(result.topic, result.partition): result for result in results}

    def refuse(self, error: ErrorCode) -> ResponseParts:
        """The response to an invalid request."""
        return pack_share_fetch(self._header.correlation_id, error, error.name, 0, [])

    def poll(self, *, is_last: bool = False) -> ResponseParts | None:
        """The response if it is complete; on the last call, in any case."""
        results = dict(self._acknowledged)
        size = 0
        for partition, result in self._acquire():
            known = results.get(partition)
            results[partition] = result if known is None else _merged(known, result)
            size += sum(map(len, result.batches))
        request = self._request
        wants_none = request.renews or min(request.max_wait_ms, request.max_records, request.max_bytes) <= 0
        is_last = is_last or wants_none or self._broker.is_stopping
        has_fault = any(result.error or result.acknowledge_error for result in results.values())
        # A request with acknowledgments gets its response at once: they are stored already.
        has_none = not self.session or not self.session.partitions
        if is_last or has_fault or size or self._acknowledged or has_none:
            return self._pack(results)
        self._poll_remaining()
        return None

    def respond_without_records(self) -> ResponseParts:
        """The response with the results of the acknowledgments only."""
        return self._pack(self._acknowledged)

    def _acquire(self) -> Iterator[tuple[TopicIdPartition, ShareResult]]:
        request, session = self._request, self.session
        if session is None or request.renews:
            return
        records, size = request.max_records, request.max_bytes
        max_acquired = self._broker.shares.max_acquired_per_fetch(request.group)
        for partition in self._next_partitions(session):
            if not may_read(self._broker, self._access, partition[0]):
                yield partition, ShareResult(*partition, error=ErrorCode.topic_authorization_failed)
                continue
            share_partition = self._broker.shares.open(request.group, *partition)
            if share_partition is None:
                continue  # its start offset is being searched
            if isinstance(share_partition, ErrorCode):
                yield partition, ShareResult(*partition, error=share_partition)
                continue
            self._watch(partition, share_partition)
            if records <= 0 or size <= 0:
                return
            try:
                acquired = share_partition.acquire(request.member, min(records, max_acquired), size)
            except StorageError:
                yield partition, ShareResult(*partition, error=ErrorCode.kafka_storage_error)
                continue
            if acquired.delivered:
                session.move_to_end(partition)
                records -= sum(last - first + 1 for first, last, _ in acquired.delivered)
                size -= acquired.size
                share_partition.partition.log.sent_bytes += acquired.size
                yield (
                    partition,
                    ShareResult(*partition, batches=acquired.batches, acquired=acquired.delivered),
                )

    def _next_partitions(self, session: ShareSession) -> Iterator[TopicIdPartition]:
        """The next partitions to read, the least recently read ones first, for one time slice."""
        started = perf_counter()
        self._remaining = self._remaining or len(session.partitions)
        for partition in tuple(islice(session.partitions, min(self._remaining, PARTITIONS_PER_TURN))):
            yield partition
            self._remaining -= 1
            session.move_to_end(partition)
            if perf_counter() - started > SLICE_SECONDS:
                return

    def wait(self) -> asyncio.Future[ResponseParts]:
        """A future of the response, for when records are available or `max_wait_ms` have passed."""
        self._waiting = DelayedOperation(self._broker, self.poll, self._request.max_wait_ms)
        assert self.session is not None
        for partition in self.session.partitions:
            share_partition = self._broker.shares.get(self._request.group, *partition)
            if share_partition is not None:
                self._watch(partition, share_partition)
        self._poll_remaining()
        return self._waiting.future

    def _watch(self, partition: TopicIdPartition, share_partition: SharePartition) -> None:
        if self._waiting is not None and partition not in self._watched:
            self._watched.add(partition)
            self._waiting.watch(share_partition, self._waiting.try_complete)

    def _poll_remaining(self) -> None:
        if self._remaining and self._waiting is not None:
            self._waiting.try_soon()

    def _pack(self, results: dict[TopicIdPartition, ShareResult]) -> ResponseParts:
        for result in results.values():
            if result.error or result.acknowledge_error:
                self._broker.requests.failed(SHARE_FETCH, result.error or result.acknowledge_error)
        lock_ms = self._broker.shares.config(self._request.group).lock_duration_ms
        return pack_share_fetch(self._header.correlation_id, 0, None, lock_ms, results.values())


def _merged(acknowledged: ShareResult, acquired: ShareResult) -> ShareResult:
    return acknowledged._replace(error=acquired.error, batches=acquired.batches, acquired=acquired.acquired)


def share_acknowledge(
    broker: Broker, frame: memoryview, header: RequestHeader, peer: Connection
) -> list[object] | Awaitable[list[object]]:
    """ShareAcknowledge (key 79), versions 1–2: acknowledges records, or renews their locks.

    The acknowledgments of a partition are applied completely or not at all: INVALID_RECORD_STATE if the
    member has not acquired one of the records. The final epoch (−1) releases all records of the member.
    """
    steps = _steps(broker, frame, header, peer)
    try:
        next(steps)
    except StopIteration as end:
        response: list[object] = end.value
        return _acknowledge_when_durable(broker, response) if broker.flusher.waits else response
    return _acknowledge_in_slices(broker, steps)


async def _acknowledge_in_slices(broker: Broker, steps: Generator[None, None, list[object]]) -> list[object]:
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


async def _acknowledge_when_durable(broker: Broker, response: list[object]) -> list[object]:
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
    for index, requested in enumerate(partitions, start=1):
        # A range may name more records than there can be.
        records += sum(min(each.last - each.first + 1, RECORDS_AT_ONCE) for each in requested.acknowledged)
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
