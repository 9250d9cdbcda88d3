"""ShareFetch (key 78), versions 1–2: a member takes records, and says what it is done with.

MaxRecords is a strict limit here in both modes, and of the records that may be locked a member takes no more
at once than its share, so that each of many has work; Apache Kafka goes beyond MaxRecords to give out whole
batches. Records that cannot be delivered (ends of transactions, aborted records) are passed over on
this side. A member that finds nothing waits in line, and is served in its turn.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.broker.handlers.share_acknowledge import acknowledge
from headrace.broker.shares.sessions import FINAL, OPEN
from headrace.broker.waiting import WaitingRequest
from headrace.protocol.share import VERSIONS, ShareResult, pack_share_fetch, read_share_fetch
from headrace.storage.errors import StorageError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Iterator

    from headrace.broker.broker import Broker
    from headrace.broker.shares.sessions import Place, ShareSession
    from headrace.broker.shares.share import Share
    from headrace.broker.waiting import Answer
    from headrace.protocol.messages import RequestHeader
    from headrace.protocol.share import ShareFetchRequest

__all__ = ["VERSIONS", "handle"]

LOOK_AT: Final = 250
"""Partitions that a request looks at in one turn of the event loop; the others follow in the next turns."""


def handle(
    broker: Broker, frame: memoryview, header: RequestHeader, peer: object
) -> Answer | Awaitable[Answer]:
    """Records in the member's hands, or a future of them when it rather waits."""
    request = read_share_fetch(frame, header.body, header.version)
    fetch = ShareFetch(broker, request, header)
    session = _session(broker, request, peer)
    if isinstance(session, ErrorCode):
        return fetch.refuse(session)
    if request.partitions and request.epoch != OPEN:
        fetch.acknowledge()
    if request.epoch == FINAL:
        broker.shares.close_session((request.group, request.member))
        return fetch.finish_waiting()
    fetch.session = session
    if broker.flusher.waits and request.partitions:
        return _answer_when_durable(broker, fetch)
    return fetch.poll() or fetch.wait()


async def _answer_when_durable(broker: Broker, fetch: ShareFetch) -> Answer:
    await broker.shares.durable()
    return fetch.poll() or await fetch.wait()


def _session(broker: Broker, request: ShareFetchRequest, peer: object) -> ShareSession | ErrorCode:
    shares, key = broker.shares, (request.group, request.member)
    if request.group not in shares:
        return ErrorCode.group_id_not_found
    if request.epoch == OPEN:
        if any(asked.acknowledged for asked in request.partitions):
            return ErrorCode.invalid_request
        shares.close_session(key)
        places = ((asked.topic, asked.partition) for asked in request.partitions)
        return shares.sessions.open(key, places, peer)
    session = shares.sessions.go_on(key, request.epoch, peer)
    if not isinstance(session, ErrorCode):
        session.places.update(dict.fromkeys((asked.topic, asked.partition) for asked in request.partitions))
        for place in request.forgotten:
            session.places.pop(place, None)
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
        self._acknowledged: dict[Place, ShareResult] = {}
        self._unseen = 0
        """How many partitions this round has not looked at yet."""
        self._waiting: WaitingRequest | None = None
        self._watched: set[Place] = set()

    def acknowledge(self) -> None:
        """Do what the member says of its records, before it gets others."""
        request = self._request
        asked = [partition for partition in request.partitions if partition.acknowledged]
        results = acknowledge(self._broker, (request.group, request.member), asked, renews=request.renews)
        self._acknowledged = {(result.topic, result.partition): result for result in results}

    def refuse(self, error: ErrorCode) -> Answer:
        """The answer to a request that cannot be served."""
        return pack_share_fetch(self._header.correlation_id, error, error.name, 0, [])

    def poll(self, *, is_last: bool = False) -> Answer | None:
        """The answer, if there is one; on the last call whatever there is."""
        results = dict(self._acknowledged)
        size = 0
        for place, result in self._take():
            known = results.get(place)
            results[place] = result if known is None else _merged(known, result)
            size += sum(map(len, result.batches))
        request = self._request
        wants_none = request.renews or min(request.max_wait_ms, request.max_records, request.max_bytes) <= 0
        is_last = is_last or wants_none or self._broker.is_stopping
        has_fault = any(result.error or result.acknowledge_error for result in results.values())
        # Whoever has been acknowledged something waits as well: the answer to that is on the disk already.
        if is_last or has_fault or size or self._acknowledged or not self.session or not self.session.places:
            return self._pack(results)
        self._look_at_the_rest()
        return None

    def finish_waiting(self) -> Answer:
        """The answer without any records."""
        return self._pack(self._acknowledged)

    def _take(self) -> Iterator[tuple[Place, ShareResult]]:
        request, session = self._request, self.session
        if session is None or request.renews:
            return
        records, size = request.max_records, request.max_bytes
        fair_share = self._broker.shares.fair_share(request.group)
        for place in self._next_places(session):
            share = self._broker.shares.open(request.group, *place)
            if share is None:
                continue  # its start offset is being searched
            if isinstance(share, ErrorCode):
                yield place, ShareResult(*place, error=share)
                continue
            self._watch(place, share)
            if records <= 0 or size <= 0:
                return
            try:
                taken = share.acquire(request.member, min(records, fair_share), size)
            except StorageError:
                yield place, ShareResult(*place, error=ErrorCode.kafka_storage_error)
                continue
            if taken.delivered:
                session.turn(place)
                records -= sum(last - first + 1 for first, last, _ in taken.delivered)
                size -= taken.size
                yield place, ShareResult(*place, batches=taken.batches, acquired=taken.delivered)

    def _next_places(self, session: ShareSession) -> tuple[Place, ...]:
        """The partitions to look at now; of many, those that were not looked at for longest."""
        places = tuple(islice(session.places, min(self._unseen or len(session.places), LOOK_AT)))
        self._unseen = (self._unseen or len(session.places)) - len(places)
        if len(session.places) > LOOK_AT:
            for place in places:
                session.turn(place)
        return places

    def wait(self) -> asyncio.Future[Answer]:
        """A future of the answer: complete when there is something to take, or the time is over."""
        self._waiting = WaitingRequest(self._broker, self.poll, self._request.max_wait_ms)
        assert self.session is not None
        for place in self.session.places:
            share = self._broker.shares.get(self._request.group, *place)
            if share is not None:
                self._watch(place, share)
        self._look_at_the_rest()
        return self._waiting.future

    def _watch(self, place: Place, share: Share) -> None:
        if self._waiting is not None and place not in self._watched:
            self._watched.add(place)
            self._waiting.watch(share, self._waiting.look)

    def _look_at_the_rest(self) -> None:
        if self._unseen and self._waiting is not None:
            self._waiting.wake()

    def _pack(self, results: dict[Place, ShareResult]) -> Answer:
        lock_ms = self._broker.shares.config(self._request.group).lock_duration_ms
        return pack_share_fetch(self._header.correlation_id, 0, None, lock_ms, results.values())


def _merged(acknowledged: ShareResult, taken: ShareResult) -> ShareResult:
    return acknowledged._replace(error=taken.error, batches=taken.batches, acquired=taken.acquired)
