"""Fetch sessions (KIP-227): a consumer names its partitions once, and afterwards only what changes.

The broker remembers what it last said of each partition, and an answer has only those with news. A session
belongs to the connection that opened it, and ends with it: to any other connection it does not exist.
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
    """A session that the broker does not know, or that has moved on; the consumer begins a new one."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class FetchSession:
    """The partitions of one consumer, and what it was last told of each."""

    __slots__ = ("epoch", "id", "partitions", "peer", "told")

    def __init__(self, session_id: int, peer: object = None) -> None:
        self.id = session_id
        self.peer = peer
        """The connection that opened the session."""
        self.epoch = 1
        self.partitions: dict[Key, PartitionFetch] = {}
        self.told: dict[Key, tuple[int, int, int]] = {}

    def update(self, request: FetchRequest) -> None:
        """Take over what the request adds, changes and drops."""
        for topic, indexes in request.forgotten:
            for index in indexes:
                self.partitions.pop((topic, index), None)
                self.told.pop((topic, index), None)
        for topic, partitions in request.topics:
            for partition in partitions:
                self.partitions[topic, partition.partition] = partition

    def has_news(self, key: Key, data: PartitionData) -> bool:
        """Whether the consumer must hear of this partition; remembers what it hears."""
        state = (data.high_watermark, data.last_stable_offset, data.start_offset)
        if data.records_bytes:
            # To the back of the queue: the next answer begins with the partitions that had no turn.
            self.partitions[key] = self.partitions.pop(key)
        elif not data.error_code and self.told.get(key) == state:
            return False
        self.told[key] = state
        return True


class FetchSessions:
    """The sessions of all consumers; when they are too many or too large, the quietest ones go.

    A consumer of more than `partition_limit` partitions gets no session, and names them in every fetch.
    """

    def __init__(self, limit: int = 1000, partition_limit: int = 100_000) -> None:
        self._limit = limit
        self._partition_limit = partition_limit
        # The one that was quiet longest is first.
        self._sessions: dict[int, FetchSession] = {}
        self._by_peer: dict[object, set[int]] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(self, request: FetchRequest, peer: object = None) -> FetchSession | None:
        """The session of a request, brought up to date; None for a fetch without one."""
        if request.session_epoch == FINAL_EPOCH:
            self._take_own(request.session_id, peer)
            return None
        if request.session_epoch == INITIAL_EPOCH:
            self._take_own(request.session_id, peer)
            session = FetchSession(self._new_id(), peer)
            session.update(request)
            return session if self._put_in(session) else None
        session = self._continue(request, peer)
        session.update(request)
        if not self._put_in(session):
            raise FetchSessionError(ErrorCode.fetch_session_id_not_found)
        return session

    def disconnected(self, peer: object) -> None:
        """End the sessions of a connection that has ended."""
        for session_id in tuple(self._by_peer.get(peer, ())):
            self._take_out(session_id)

    def _continue(self, request: FetchRequest, peer: object) -> FetchSession:
        session = self._take_own(request.session_id, peer)
        if session is None:
            raise FetchSessionError(ErrorCode.fetch_session_id_not_found)
        if session.epoch != request.session_epoch:
            self._put_in(session)
            raise FetchSessionError(ErrorCode.invalid_fetch_session_epoch)
        session.epoch = session.epoch + 1 if session.epoch < MAX_EPOCH else 1
        return session

    def _take_own(self, session_id: int, peer: object) -> FetchSession | None:
        """The session, if it is this connection's."""
        session = self._sessions.get(session_id)
        return self._take_out(session_id) if session is not None and session.peer is peer else None

    def _new_id(self) -> int:
        session_id = secrets.randbelow(MAX_EPOCH) + 1
        while session_id in self._sessions:
            session_id = secrets.randbelow(MAX_EPOCH) + 1
        return session_id

    def _take_out(self, session_id: int) -> FetchSession | None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)
            own = self._by_peer[session.peer]
            own.discard(session_id)
            if not own:
                del self._by_peer[session.peer]
        return session

    def _put_in(self, session: FetchSession) -> bool:
        """Remember the session as the latest one, if there can be room for it."""
        size = len(session.partitions)
        if size > self._partition_limit:
            return False
        while len(self._sessions) >= self._limit or self._partitions + size > self._partition_limit:
            self._take_out(next(iter(self._sessions)))
        self._sessions[session.id] = session
        self._by_peer.setdefault(session.peer, set()).add(session.id)
        self._partitions += size
        return True
