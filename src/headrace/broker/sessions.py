"""Fetch sessions (KIP-227): a consumer names its partitions once, and afterwards only what changes.

The broker remembers what it last said of each partition, and an answer has only those with news.
"""

from __future__ import annotations

import random
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


class SessionRefused(HeadraceError):
    """A session that the broker does not know, or that has moved on; the consumer begins a new one."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


class FetchSession:
    """The partitions of one consumer, and what it was last told of each."""

    __slots__ = ("epoch", "id", "partitions", "told")

    def __init__(self, session_id: int) -> None:
        self.id = session_id
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
    """The sessions of all consumers; when there are too many, the one that was quiet longest goes."""

    def __init__(self, limit: int = 1000) -> None:
        self._limit = limit
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(self, request: FetchRequest) -> FetchSession | None:
        """The session of a request, brought up to date; None for a fetch without one."""
        if request.session_epoch == FINAL_EPOCH:
            self._sessions.pop(request.session_id, None)
            return None
        if request.session_epoch == INITIAL_EPOCH:
            self._sessions.pop(request.session_id, None)
            session = self._open()
        else:
            session = self._continue(request)
        session.update(request)
        return session

    def _open(self) -> FetchSession:
        while len(self._sessions) >= self._limit:
            del self._sessions[next(iter(self._sessions))]
        session_id = random.randint(1, MAX_EPOCH)
        while session_id in self._sessions:
            session_id = random.randint(1, MAX_EPOCH)
        session = self._sessions[session_id] = FetchSession(session_id)
        return session

    def _continue(self, request: FetchRequest) -> FetchSession:
        session = self._sessions.pop(request.session_id, None)
        if session is None:
            raise SessionRefused(ErrorCode.fetch_session_id_not_found)
        self._sessions[session.id] = session
        if session.epoch != request.session_epoch:
            raise SessionRefused(ErrorCode.invalid_fetch_session_epoch)
        session.epoch = session.epoch + 1 if session.epoch < MAX_EPOCH else 1
        return session
