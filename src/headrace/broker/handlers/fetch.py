"""Fetch (key 1), versions 4–18: long polls, byte limits, isolation levels and fetch sessions.

Records are sent from the page cache with `sendfile`, and from in-memory logs without a copy. The broker has
no followers: replica fields are ignored.

Records that are only in the archive are downloaded in the background, and the fetch waits for them up to
`max_wait_ms`, like Apache Kafka's DelayedRemoteFetch; other partitions of the fetch are answered as usual.

The right to read is checked for every partition of a session, each time that it is read.

A fetch that would exceed a quota is answered without records, and its session does not change (KIP-219).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from kio.schema.errors import ErrorCode

from headrace.broker.delayed_operation import DelayedOperation, ResponseParts
from headrace.broker.errors import error_code
from headrace.broker.fetch_sessions import INITIAL_EPOCH, NO_SESSION, FetchSessionError
from headrace.broker.security.acls import ResourceType
from headrace.broker.security.requirements import allowed
from headrace.protocol.fetch import (
    STEP_PARTITIONS,
    TOPIC_IDS_FROM,
    VERSIONS,
    FetchResponse,
    PartitionData,
    fetch_steps,
)
from headrace.protocol.wire import run_steps
from headrace.storage.errors import StorageError
from headrace.storage.remote_cache import RemoteReadPending

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine, Generator, Iterator

    from headrace.broker.broker import Broker
    from headrace.broker.connection import Connection
    from headrace.broker.fetch_sessions import FetchSession, Key
    from headrace.broker.security.acls import Access
    from headrace.broker.topics import Partition
    from headrace.protocol.fetch import FetchRequest, PartitionFetch
    from headrace.protocol.requests import RequestHeader
    from headrace.storage.log import Log, Records

__all__ = ["VERSIONS", "handle"]


FETCH: Final = 1
MANY_PARTITIONS: Final = 256
"""A fetch of more partitions is processed in time slices."""


class FetchQuota(Protocol):
    """The quotas of the client that fetches."""

    def admit_fetch(self, records_bytes: int) -> bool:
        """Whether the client may get these bytes now; if so, they count as used."""
        ...


class FetchedPartition(NamedTuple):
    """The response for one partition, and its records."""

    key: Key
    data: PartitionData
    records: Records | None
    log: Log | None = None
    """The log that the records are from."""


def handle(
    broker: Broker,
    frame: memoryview,
    header: RequestHeader,
    peer: Connection,
    quota: FetchQuota | None = None,
) -> (
    ResponseParts
    | asyncio.Future[ResponseParts]
    | Coroutine[Any, Any, ResponseParts | asyncio.Future[ResponseParts]]
):
    """Returns the available records, or a future of the response if the client waits for more."""
    steps = fetch_steps(frame, header.body, header.version)
    try:
        next(steps)
    except StopIteration as end:
        return _serve(broker, end.value, header, peer, quota)
    return _serve_many(broker, steps, header, peer, quota)


async def _serve_many(
    broker: Broker,
    steps: Generator[None, None, FetchRequest],
    header: RequestHeader,
    peer: Connection,
    quota: FetchQuota | None,
) -> ResponseParts | asyncio.Future[ResponseParts]:
    time_slice = broker.scheduler.time_slice()
    try:
        request = await time_slice.run(steps)
    finally:
        time_slice.release()
    return _serve(broker, request, header, peer, quota)


def _serve(
    broker: Broker,
    request: FetchRequest,
    header: RequestHeader,
    peer: Connection,
    quota: FetchQuota | None,
) -> ResponseParts | asyncio.Future[ResponseParts]:
    try:
        session = broker.sessions.resolve(request, peer) if header.version >= 7 else None
    except FetchSessionError as fault:
        response = FetchResponse(header.version, header.correlation_id)
        response.begin(fault.code, NO_SESSION, 0)
        return response.finish()
    fetch = Fetch(broker, request, header, session, peer.access, quota)
    if fetch.is_large:
        # Like a long poll, the task is cancelled when the client disconnects.
        return broker.loop.create_task(fetch.poll_in_slices())
    return fetch.poll() or fetch.wait()


class Fetch:
    """One fetch request."""

    __slots__ = ("_access", "_broker", "_header", "_quota", "_request", "_session")

    def __init__(
        self,
        broker: Broker,
        request: FetchRequest,
        header: RequestHeader,
        session: FetchSession | None,
        access: Access | None,
        quota: FetchQuota | None,
    ) -> None:
        self._access = access
        self._quota = quota
        self._broker = broker
        self._request = request
        self._header = header
        self._session = session

    @property
    def is_large(self) -> bool:
        """Whether the fetch has too many partitions to be processed in one time slice."""
        if self._session is not None:
            return len(self._session.partitions) > MANY_PARTITIONS
        return sum(len(topic.partitions) for topic in self._request.topics) > MANY_PARTITIONS

    async def poll_in_slices(self) -> ResponseParts:
        """Like `poll` and `wait`, in time slices."""
        clock = self._broker.clock
        deadline_ms = clock.now_ms() + self._request.max_wait_ms
        time_slice = self._broker.scheduler.time_slice()
        try:
            while True:
                left_ms = deadline_ms - clock.now_ms()
                results = await time_slice.run(self._collect_steps())
                if self._is_enough(results, is_last=left_ms <= 0):
                    return await time_slice.run(self._pack_steps(results))
                time_slice.release()
                await self._wait_for_records(left_ms)
        finally:
            time_slice.release()

    async def _wait_for_records(self, max_wait_ms: int) -> None:
        """Return when there may be more to read, or after `max_wait_ms`."""
        waiting = DelayedOperation(self._broker, lambda is_last=False: [is_last], max_wait_ms)
        for key, _ in self._targets():
            partition = self._partition(key)
            if partition is not None:
                waiting.watch(partition, waiting.try_soon)
        await waiting.future

    def poll(self, *, is_last: bool = False) -> list[object] | None:
        """The response if enough records are available; on the last call, in any case."""
        results = run_steps(self._collect_steps())
        return run_steps(self._pack_steps(results)) if self._is_enough(results, is_last=is_last) else None

    def _is_enough(self, results: list[FetchedPartition], *, is_last: bool) -> bool:
        size = sum(result.data.records_bytes for result in results)
        has_fault = any(result.data.error_code for result in results)
        is_last = is_last or not results or self._request.max_wait_ms <= 0 or self._broker.is_stopping
        return is_last or has_fault or size >= self._request.min_bytes

    def wait(self) -> asyncio.Future[list[object]]:
        """A future of the response, for when enough records have arrived or `max_wait_ms` have passed."""
        waiting = DelayedOperation(self._broker, self.poll, self._request.max_wait_ms)
        for key, _ in self._targets():
            partition = self._partition(key)
            if partition is not None:
                waiting.watch(partition, waiting.try_soon)
        return waiting.future

    def _targets(self) -> Iterator[tuple[Key, PartitionFetch]]:
        if self._session is not None:
            yield from list(self._session.partitions.items())
            return
        for topic, partitions in self._request.topics:
            for partition in partitions:
                yield (topic, partition.partition), partition

    def _partition(self, key: Key) -> Partition | None:
        topic = self._broker.topics.find(key[0])
        return topic.partition(key[1]) if topic is not None else None

    def _collect_steps(self) -> Generator[None, None, list[FetchedPartition]]:
        found = 0
        results: list[FetchedPartition] = []
        for key, wanted in self._targets():
            if len(results) % STEP_PARTITIONS == STEP_PARTITIONS - 1:
                yield
            if self._access is not None and not self._may_read(self._access, key):
                denied = ErrorCode.topic_authorization_failed
                results.append(FetchedPartition(key, PartitionData(key[1], denied), None))
                continue
            partition = self._partition(key)
            if partition is None:
                results.append(FetchedPartition(key, PartitionData(key[1], self._unknown()), None))
                continue
            limit = max(min(wanted.max_bytes, self._request.max_bytes - found), 0)
            result = self._read(key, wanted, partition, limit, is_first=not found)
            found += result.data.records_bytes
            results.append(result)
        return results

    def _may_read(self, access: Access, key: Key) -> bool:
        """Whether the client may read a partition; an unknown id is unknown to every client."""
        topic = self._broker.topics.find(key[0])
        name = topic.name if topic is not None else key[0]
        return not isinstance(name, str) or allowed(access, FETCH, ResourceType.TOPIC, name)

    def _unknown(self) -> ErrorCode:
        if self._header.version >= TOPIC_IDS_FROM:
            return ErrorCode.unknown_topic_id
        return ErrorCode.unknown_topic_or_partition

    def _read(
        self, key: Key, wanted: PartitionFetch, partition: Partition, max_bytes: int, *, is_first: bool
    ) -> FetchedPartition:
        log = partition.log
        committed = self._request.read_committed
        high, stable = log.high_watermark, log.last_stable_offset
        end = stable if committed else high
        if wanted.leader_epoch > 0:
            return FetchedPartition(key, PartitionData(key[1], ErrorCode.unknown_leader_epoch), None)
        try:
            records = log.read(wanted.offset, max_bytes, end, at_least_one=is_first)
        except RemoteReadPending as pending:
            # The fetch waits like for new records, and is tried again when the download has ended.
            pending.load(partition.notify)
            return FetchedPartition(key, PartitionData(key[1], 0, high, stable, log.start_offset), None)
        except StorageError as fault:
            data = PartitionData(key[1], error_code(fault), high, stable, log.start_offset)
            return FetchedPartition(key, data, None)
        aborted = None
        if committed:
            found = log.aborted.between(wanted.offset, end) if records is not None else ()
            aborted = [(entry.producer_id, entry.first_offset) for entry in found]
        size = records.size if records is not None else 0
        return FetchedPartition(
            key, PartitionData(key[1], 0, high, stable, log.start_offset, aborted, size), records, log
        )

    def _pack_steps(self, results: list[FetchedPartition]) -> Generator[None, None, ResponseParts]:
        session = self._session
        if self._quota is not None:
            size = sum(result.data.records_bytes for result in results)
            if not self._quota.admit_fetch(size):
                return self._throttled()
        if session is not None:
            results = [result for result in results if session.has_changed(result.key, result.data)]
        by_topic: dict[object, list[FetchedPartition]] = {}
        for result in results:
            by_topic.setdefault(result.key[0], []).append(result)
        response = FetchResponse(self._header.version, self._header.correlation_id)
        response.begin(0, NO_SESSION if session is None else session.id, len(by_topic))
        for group in by_topic.values():
            response.begin_topic(group[0].key[0], len(group))
            for number, result in enumerate(group, 1):
                response.add_partition(result.data, result.records)
                if result.log is not None:
                    result.log.sent_bytes += result.data.records_bytes
                elif result.data.error_code:
                    self._broker.requests.failed(FETCH, result.data.error_code)
                if not number % STEP_PARTITIONS:
                    yield
            response.end_topic()
        return response.finish()

    def _throttled(self) -> ResponseParts:
        """A response without partitions; a session that the fetch opened is not kept, as in Apache Kafka."""
        session = self._session
        if session is not None and self._request.session_epoch == INITIAL_EPOCH:
            self._broker.sessions.discard(session)
            session = None
        response = FetchResponse(self._header.version, self._header.correlation_id)
        response.begin(0, NO_SESSION if session is None else session.id, 0)
        return response.finish()
