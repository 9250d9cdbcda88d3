"""ShareFetch (key 78), versions 1–2: a member takes records, and says what it is done with.

MaxRecords is a strict limit in both modes, and a member acquires at most its part of the record locks at
once, so that all members get records; Apache Kafka exceeds MaxRecords to return whole batches. Records that
cannot be delivered (transaction markers, aborted records) are skipped by the broker. Fetches without
records wait in line.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.broker.delayed import DelayedOperation
from headrace.broker.handlers.share_acknowledge import acknowledge_steps
from headrace.broker.shares.sessions import FINAL_EPOCH, INITIAL_EPOCH
from headrace.protocol.share import VERSIONS, ShareResult, pack_share_fetch, share_fetch_steps
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Generator, Iterator

    from headrace.broker.broker import Broker
    from headrace.broker.delayed import ResponseParts
    from headrace.broker.shares.partitions import SharePartition
    from headrace.broker.shares.sessions import ShareSession, TopicIdPartition
    from headrace.protocol.messages import RequestHeader
    from headrace.protocol.share import ShareFetchRequest

__all__ = ["VERSIONS", "handle"]

LOOK_AT: Final = 250
"""Partitions that a request looks at in one turn of the event loop; the others follow in the next turns."""


def handle(
    broker: Broker, frame: memoryview, header: RequestHeader, peer: object
) -> ResponseParts | Awaitable[ResponseParts | asyncio.Future[ResponseParts]]:
    """Records in the member's hands, or a future of them when it rather waits."""
    steps = _begin_steps(broker, frame, header, peer)
    try:
        next(steps)
    except StopIteration as end:
        begun: ShareFetch | ResponseParts = end.value
        return begun if isinstance(begun, list) else _answer(broker, begun)
    return _answer_in_slices(broker, steps)


async def _answer_in_slices(
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
    broker: Broker, frame: memoryview, header: RequestHeader, peer: object
) -> Generator[None, None, ShareFetch | ResponseParts]:
    """The fetch with its session and its acknowledgments done, or the answer when that is all."""
    request = yield from share_fetch_steps(frame, header.body, header.version)
    fetch = ShareFetch(broker, request, header)
    session = _session(broker, request, peer)
    if isinstance(session, ErrorCode):
        return fetch.refuse(session)
    if request.partitions and request.epoch != INITIAL_EPOCH:
        yield from fetch.acknowledge_steps()
    if request.epoch == FINAL_EPOCH:
        broker.shares.close_session((request.group, request.member))
        return fetch.finish_waiting()
    fetch.session = session
    return fetch


def _answer(broker: Broker, fetch: ShareFetch) -> ResponseParts | Awaitable[ResponseParts]:
    if broker.flusher.waits and fetch.has_partitions:
        return _answer_when_durable(broker, fetch)
    return fetch.poll() or fetch.wait()


async def _answer_when_durable(broker: Broker, fetch: ShareFetch) -> ResponseParts:
    await broker.shares.durable()
    return fetch.poll() or await fetch.wait()


def _session(broker: Broker, request: ShareFetchRequest, peer: object) -> ShareSession | ErrorCode:
    shares, key = broker.shares, (request.group, request.member)
    if request.group not in shares:
        return ErrorCode.group_id_not_found
    if request.epoch == INITIAL_EPOCH:
        if any(asked.acknowledged for asked in request.partitions):
            return ErrorCode.invalid_request
        shares.close_session(key)
        partitions = ((asked.topic, asked.partition) for asked in request.partitions)
        return shares.sessions.open(key, partitions, peer)
    session = shares.sessions.resume(key, request.epoch, peer)
    if not isinstance(session, ErrorCode):
        session.partitions.update(
            dict.fromkeys((asked.topic, asked.partition) for asked in request.partitions)
        )
        for partition in request.forgotten:
            session.partitions.pop(partition, None)
    return session


class ShareFetch:
    """One request, from its arrival to its answer."""

    __slots__ = (
        "_acknowledged",
        "_broker",
        "_header",
        "_request",
        "_unseen",
        "_waiting",
        "_watched",
        "session",
    )

    def __init__(self, broker: Broker, request: ShareFetchRequest, header: RequestHeader) -> None:
        self._broker = broker
        self._request = request
        self._header = header
        self.session: ShareSession | None = None
        self._acknowledged: dict[TopicIdPartition, ShareResult] = {}
        self._unseen = 0
        """How many partitions this round has not looked at yet."""
        self._waiting: DelayedOperation | None = None
        self._watched: set[TopicIdPartition] = set()

    @property
    def has_partitions(self) -> bool:
        """Whether the request names partitions, so that something may have been stored for it."""
        return bool(self._request.partitions)

    def acknowledge_steps(self) -> Generator[None, None, None]:
        """Do what the member says of its records, before it gets others; yields between steps."""
        request = self._request
        asked = [partition for partition in request.partitions if partition.acknowledged]
        key = (request.group, request.member)
        results = yield from acknowledge_steps(self._broker, key, asked, renews=request.renews)
        self._acknowledged = {(result.topic, result.partition): result for result in results}

    def refuse(self, error: ErrorCode) -> ResponseParts:
        """The answer to a request that cannot be served."""
        return pack_share_fetch(self._header.correlation_id, error, error.name, 0, [])

    def poll(self, *, is_last: bool = False) -> ResponseParts | None:
        """The answer, if there is one; on the last call whatever there is."""
        results = dict(self._acknowledged)
        size = 0
        for partition, result in self._take():
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
        self._look_at_the_rest()
        return None

    def finish_waiting(self) -> ResponseParts:
        """The answer without any records."""
        return self._pack(self._acknowledged)

    def _take(self) -> Iterator[tuple[TopicIdPartition, ShareResult]]:
        request, session = self._request, self.session
        if session is None or request.renews:
            return
        records, size = request.max_records, request.max_bytes
        max_acquired = self._broker.shares.max_acquired_per_fetch(request.group)
        for partition in self._next_partitions(session):
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
                taken = share_partition.acquire(request.member, min(records, max_acquired), size)
            except StorageError:
                yield partition, ShareResult(*partition, error=ErrorCode.kafka_storage_error)
                continue
            if taken.delivered:
                session.move_to_end(partition)
                records -= sum(last - first + 1 for first, last, _ in taken.delivered)
                size -= taken.size
                yield partition, ShareResult(*partition, batches=taken.batches, acquired=taken.delivered)

    def _next_partitions(self, session: ShareSession) -> tuple[TopicIdPartition, ...]:
        """The partitions to look at now; of many, those that were not looked at for longest."""
        partitions = tuple(islice(session.partitions, min(self._unseen or len(session.partitions), LOOK_AT)))
        self._unseen = (self._unseen or len(session.partitions)) - len(partitions)
        if len(session.partitions) > LOOK_AT:
            for partition in partitions:
                session.move_to_end(partition)
        return partitions

    def wait(self) -> asyncio.Future[ResponseParts]:
        """A future of the answer: complete when there is something to take, or the time is over."""
        self._waiting = DelayedOperation(self._broker, self.poll, self._request.max_wait_ms)
        assert self.session is not None
        for partition in self.session.partitions:
            share_partition = self._broker.shares.get(self._request.group, *partition)
            if share_partition is not None:
                self._watch(partition, share_partition)
        self._look_at_the_rest()
        return self._waiting.future

    def _watch(self, partition: TopicIdPartition, share_partition: SharePartition) -> None:
        if self._waiting is not None and partition not in self._watched:
            self._watched.add(partition)
            self._waiting.watch(share_partition, self._waiting.try_complete)

    def _look_at_the_rest(self) -> None:
        if self._unseen and self._waiting is not None:
            self._waiting.try_soon()

    def _pack(self, results: dict[TopicIdPartition, ShareResult]) -> ResponseParts:
        lock_ms = self._broker.shares.config(self._request.group).lock_duration_ms
        return pack_share_fetch(self._header.correlation_id, 0, None, lock_ms, results.values())


def _merged(acknowledged: ShareResult, taken: ShareResult) -> ShareResult:
    return acknowledged._replace(error=taken.error, batches=taken.batches, acquired=taken.acquired)
