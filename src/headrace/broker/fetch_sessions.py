"""Fetch sessions (KIP-227): a consumer sends its partitions once, and then only changes.

The broker stores the last response for each partition, and the next response contains only partitions that
have changed. A session belongs to the connection that opened it, and ends with it; other connections cannot
use it.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.protocol.fetch import FetchRequest, PartitionData, PartitionFetch

NO_SESSION: Final = 0
FINAL_EPOCH: Final = -1
INITIAL_EPOCH: Final = 0
MAX_EPOCH: Final = 2**31 - 1

Key = tuple["str | UUID", int]


class FetchSessionError(HeadraceError):
    """An unknown session or a wrong epoch; the consumer opens a new session."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class FetchSession:
    """The partitions of one consumer, and the state of each in the last response."""

    __slots__ = ("epoch", "id", "last_sent", "partitions", "peer")

    def __init__(self, session_id: int, peer: object = None) -> None:
        self.id = session_id
        self.peer = peer
        """The connection that opened the session."""
        self.epoch = 1
        self.partitions: dict[Key, PartitionFetch] = {}
        self.last_sent: dict[Key, tuple[int, int, int]] = {}

    def update(self, request: FetchRequest) -> None:
        """Apply the added, changed and removed partitions of a request."""
        for topic, indexes in request.forgotten:
            for index in indexes:
                self.partitions.pop((topic, index), None)
                self.last_sent.pop((topic, index), None)
        for topic, partitions in request.topics:
            for partition in partitions:
                self.partitions[topic, partition.partition] = partition

    def has_changed(self, key: Key, data: PartitionData) -> bool:
        """Whether the response must contain this partition; stores its state for the next response."""
        state = (data.high_watermark, data.last_stable_offset, data.start_offset)
        if data.records_bytes:
            # Moved to the end: the next response begins with partitions that returned no records.
            self.partitions[key] = self.partitions.pop(key)
        elif not data.error_code and self.last_sent.get(key) == state:
            return False
        self.last_sent[key] = state
        return True


class FetchSessions:
    """The sessions of all consumers; the least recently used ones are evicted.

    A consumer of more than `partition_limit` partitions gets no session, and sends them with every fetch.
    """

    def __init__(self, limit: int = 1000, partition_limit: int = 100_000) -> None:
        self._limit = limit
        self._partition_limit = partition_limit
        # The least recently used is first.
        self._sessions: dict[int, FetchSession] = {}
        self._by_peer: dict[object, set[int]] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(self, request: FetchRequest, peer: object = None) -> FetchSession | None:
        """The updated session of a request; None for a fetch without a session."""
        if request.session_epoch == FINAL_EPOCH:
            self._remove_own(request.session_id, peer)
            return None
        if request.session_epoch == INITIAL_EPOCH:
            self._remove_own(request.session_id, peer)
            session = FetchSession(self._new_id(), peer)
            session.update(request)
            return session if self._add(session) else None
        session = self._continue(request, peer)
        session.update(request)
        if not self._add(session):
            raise FetchSessionError(ErrorCode.fetch_session_id_not_found)
        return session

    def discard(self, session: FetchSession) -> None:
        """Remove a session, if it is still there."""
        self._remove(session.id)

    def disconnected(self, peer: object) -> None:
        """Remove the sessions of a closed connection."""
        for session_id in tuple(self._by_peer.get(peer, ())):
            self._remove(session_id)

    def _continue(self, request: FetchRequest, peer: object) -> FetchSession:
        session = self._remove_own(request.session_id, peer)
        if session is None:
            raise FetchSessionError(ErrorCode.fetch_session_id_not_found)
        if session.epoch != request.session_epoch:
            self._add(session)
            raise FetchSessionError(ErrorCode.invalid_fetch_session_epoch)
        session.epoch = session.epoch + 1 if session.epoch < MAX_EPOCH else 1
        return session

    def _remove_own(self, session_id: int, peer: object) -> FetchSession | None:
        """Remove and return the session if it belongs to this connection."""
        session = self._sessions.get(session_id)
        return self._remove(session_id) if session is not None and session.peer is peer else None

    def _new_id(self) -> int:
        session_id = secrets.randbelow(MAX_EPOCH) + 1
        while session_id in self._sessions:
            session_id = secrets.randbelow(MAX_EPOCH) + 1
        return session_id

    def _remove(self, session_id: int) -> FetchSession | None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)
            own = self._by_peer[session.peer]
            own.discard(session_id)
            if not own:
                del self._by_peer[session.peer]
        return session

    def _add(self, session: FetchSession) -> bool:
        """Add the session as the most recently used one; False if it is too large."""
        size = len(session.partitions)
        if size > self._partition_limit:
            return False
        while len(self._sessions) >= self._limit or self._partitions + size > self._partition_limit:
            self._remove(next(iter(self._sessions)))
        self._sessions[session.id] = session
        self._by_peer.setdefault(session.peer, set()).add(session.id)
        self._partitions += size
        return True
