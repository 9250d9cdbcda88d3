"""Share sessions: a member names its partitions once, and numbers its requests.

Epoch 0 opens a session, each request counts on from there, and −1 ends it. Whoever ends it, or loses its
connection, gives back what it holds: another member need not wait for the locks to run out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

OPEN: Final = 0
FINAL: Final = -1
MAX_EPOCH: Final = 2**31 - 1

SessionKey = tuple[str, str]
"""Group and member."""
Place = tuple["UUID", int]


class ShareSession:
    """The partitions of one member."""

    __slots__ = ("epoch", "key", "peer", "places")

    def __init__(self, key: SessionKey, peer: object) -> None:
        self.key = key
        self.peer = peer
        self.epoch = 1
        self.places: dict[Place, None] = {}

    def turn(self, place: Place) -> None:
        """Put a partition that had records to the back: the next answer begins with the others."""
        if len(self.places) > 1 and place in self.places:
            del self.places[place]
            self.places[place] = None


class ShareSessions:
    """The sessions of all members, with the connection that each came by."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._by_peer: dict[object, set[SessionKey]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, key: SessionKey, places: Iterable[Place], peer: object) -> ShareSession | ErrorCode:
        """A new session; whoever calls has closed the old one."""
        if len(self._sessions) >= self._limit:
            return ErrorCode.share_session_limit_reached
        session = ShareSession(key, peer)
        session.places = dict.fromkeys(places)
        self._sessions[key] = session
        self._by_peer.setdefault(peer, set()).add(key)
        return session

    def go_on(self, key: SessionKey, epoch: int, peer: object) -> ShareSession | ErrorCode:
        """The session of a request with this epoch; the next request has the next one.

        It must come by the connection that opened the session: to any other it does not exist.
        """
        session = self._sessions.get(key)
        if session is None or session.peer is not peer:
            return ErrorCode.share_session_not_found
        if epoch != FINAL:
            if epoch != session.epoch:
                return ErrorCode.invalid_share_session_epoch
            session.epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        return session

    def close(self, key: SessionKey) -> ShareSession | None:
        """Forget a session."""
        session = self._sessions.pop(key, None)
        if session is not None:
            keys = self._by_peer[session.peer]
            keys.discard(key)
            if not keys:
                del self._by_peer[session.peer]
        return session

    def of_peer(self, peer: object) -> tuple[SessionKey, ...]:
        """The sessions that came by a connection."""
        return tuple(self._by_peer.get(peer, ()))
