"""ShareFetch (key 78), versions 1–2: acquires records for a member, and acknowledges others.

MaxRecords is a strict limit in both modes, and one fetch acquires at most a part of the record locks, so that
all members get records; Apache Kafka exceeds MaxRecords to return whole batches. The broker skips transaction
markers and aborted records. Fetches without records wait in the order in which they arrived.
"""

from __future__ import annotations

from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.broker.delayed_operation import DelayedOperation
from headrace.broker.handlers.share_acknowledge import acknowledge_steps, may_read
from headrace.broker.scheduling import SLICE_SECONDS
from headrace.broker.security.acls import ResourceType
from headrace.broker.security.requirements import allowed
from headrace.broker.shares.sessions import FINAL_EPOCH, INITIAL_EPOCH
from headrace.protocol.share import VERSIONS, ShareResult, pack_share_fetch, share_fetch_steps
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Generator, Iterator

    from headrace.broker.broker import Broker
    from headrace.broker.connection import Connection
    from headrace.broker.delayed_operation import ResponseParts
    from headrace.broker.security.acls import Access
    from headrace.broker.shares.partitions import SharePartition
    from headrace.broker.shares.sessions import ShareSession, TopicIdPartition
    from headrace.protocol.requests import RequestHeader
    from headrace.protocol.share import ShareFetchRequest

__all__ = ["VERSIONS", "handle"]

SHARE_FETCH: Final = 78
PARTITIONS_PER_TURN: Final = 250
"""Partitions that one request reads per iteration of the event loop, if there is time for so many."""


def handle(
    broker: Broker, frame: memoryview, header: RequestHeader, peer: Connection
) -> ResponseParts | Awaitable[ResponseParts | asyncio.Future[ResponseParts]]:
    """Returns acquired records, or a future of the response if the client waits for records."""
    steps = _begin_steps(broker, frame, header, peer)
    try:
        next(steps)
    except StopIteration as end:
        begun: ShareFetch | ResponseParts = end.value
        return begun if isinstance(begun, list) else _respond(broker, begun)
    return _respond_in_slices(broker, steps)


async def _respond_in_slices(
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
        return _respond_when_durable(broker, fetch)
    return fetch.poll() or fetch.wait()


async def _respond_when_durable(broker: Broker, fetch: ShareFetch) -> ResponseParts:
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
