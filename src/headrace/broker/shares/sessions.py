"""Share sessions: a member sends its partitions once, and numbers its requests.

Epoch 0 opens a session, each request increases the epoch, and −1 closes it. When a session is closed, or its
connection ends, the records that the member acquired are released at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
MAX_EPOCH: Final = 2**31 - 1

SessionKey = tuple[str, str]
"""Group and member."""
TopicIdPartition = tuple["UUID", int]


class ShareSession:
    """The share session of one member."""

    __slots__ = ("connection", "epoch", "key", "partitions")

    def __init__(self, key: SessionKey, connection: object) -> None:
        self.key = key
        self.connection = connection
        self.epoch = 1
        self.partitions: dict[TopicIdPartition, None] = {}

    def move_to_end(self, partition: TopicIdPartition) -> None:
        """Move a partition that returned records to the end: the next response begins with the others."""
        if len(self.partitions) > 1 and partition in self.partitions:
            del self.partitions[partition]
            self.partitions[partition] = None


class ShareSessions:
    """The share sessions of all members, each with its connection."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._by_connection: dict[object, set[SessionKey]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self, key: SessionKey, partitions: Iterable[TopicIdPartition], connection: object
    ) -> ShareSession | ErrorCode:
        """A new session; the caller has closed the previous one."""
        if len(self._sessions) >= self._limit:
            return ErrorCode.share_session_limit_reached
        session = ShareSession(key, connection)
        session.partitions = dict.fromkeys(partitions)
        self._sessions[key] = session
        self._by_connection.setdefault(connection, set()).add(key)
        return session

    def resume(self, key: SessionKey, epoch: int, connection: object) -> ShareSession | ErrorCode:
        """The session of a request with this epoch; the next request must have the next epoch.

        Only the connection that opened a session can use it: for any other it does not exist.
        """
        session = self._sessions.get(key)
        if session is None or session.connection is not connection:
            return ErrorCode.share_session_not_found
        if epoch != FINAL_EPOCH:
            if epoch != session.epoch:
                return ErrorCode.invalid_share_session_epoch
            session.epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        return session

    def close(self, key: SessionKey) -> ShareSession | None:
        """Remove a session."""
        session = self._sessions.pop(key, None)
        if session is not None:
            keys = self._by_connection[session.connection]
            keys.discard(key)
            if not keys:
                del self._by_connection[session.connection]
        return session

    def of_connection(self, connection: object) -> tuple[SessionKey, ...]:
        """The sessions of a connection."""
        return tuple(self._by_connection.get(connection, ()))
