"""The loop that reads the stream of changes: takes all that is there, then rests, thanks and waits."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Final, Protocol

from headrace.capture.errors import SourceLost
from headrace.capture.postgres.connection import explained

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.capture.postgres.changes import Changes
    from headrace.capture.postgres.connection import ReplicationConnection
    from headrace.capture.source import Sink

THANK_S: Final = 1.0
"""How often the database is told what it need not keep, if that has changed."""
ASK_S: Final = 0.02
"""How often it is asked how far it is, by a capture that is to end there."""
WATCH_S: Final = 10.0
"""How often the log that it holds is looked at."""
TURN_S: Final = 0.25
XLOG: Final = ord("w")
_KEEPALIVE: Final = struct.Struct(">cqqb")


class Owner(Protocol):
    """What the loop asks of the source."""

    stopped: Callable[[], bool]

    @property
    def stored(self) -> int:
        """Up to where all is in the log."""

    def watch(self) -> None:
        """Look at how much log the database holds."""


class Follower:
    """Reads one stream of changes from its start to its end."""

    def __init__(
        self,
        source: Owner,
        replication: ReplicationConnection,
        changes: Changes,
        sink: Sink,
        target: int | None,
    ) -> None:
        self._source = source
        self._replication = replication
        self._changes = changes
        self._sink = sink
        self._target = target
        self._seen = 0
        """Up to where the server has said that it has sent us everything."""
        self._highest = 0
        self._thanked = (0, 0.0)
        self._watched_s = time.monotonic()

    def run(self) -> None:
        """Read until stopped, or until the target is reached."""
        with explained():
            self._read()
        if not self._changes.is_inside:
            self._sink.rest()
        self._thank(self._confirmed(), ask=False, at_once=True)

    def _read(self) -> None:
        while not self._source.stopped():
            self._replication.take_in()
            if not self._read_all() and self._pause():
                return

    def _read_all(self) -> bool:
        """Read all messages that are here; whether there were any."""
        read, change = self._replication.read, self._changes.read
        size, data = read(1)
        if size == 0:
            return False
        while size > 0:
            message = bytes(data)
            if message[0] == XLOG:
                change(message)
            else:
                self._keepalive(message)
            size, data = read(1)
        if size < 0:
            raise SourceLost("the database ended the stream of changes.")
        return True

    def _pause(self) -> bool:
        """There is nothing to read; whether all is done."""
        if not self._changes.is_inside:
            self._sink.rest()
        confirmed = self._confirmed()
        if self._target is not None and confirmed >= self._target:
            return True
        self._thank(confirmed, ask=self._target is not None)
        if time.monotonic() - self._watched_s > WATCH_S:
            self._watched_s = time.monotonic()
            self._source.watch()
        self._replication.wait(TURN_S)
        return False

    def _keepalive(self, message: bytes) -> None:
        _, end, _, wants_reply = _KEEPALIVE.unpack(message)
        if not self._changes.is_inside:
            self._seen = end
        if wants_reply:
            self._thank(self._confirmed(), ask=False, at_once=True)

    def _confirmed(self) -> int:
        """Up to where the database need not keep its log.

        What the server has passed without anything for us counts as well, once all before it is stored:
        that moves the slot on while our tables are quiet and others are not.
        """
        stored = self._source.stored
        if self._changes.end <= stored:
            stored = max(stored, self._seen)
        self._highest = max(self._highest, stored)
        return self._highest

    def _thank(self, position: int, *, ask: bool, at_once: bool = False) -> None:
        last, when_s = self._thanked
        now_s = time.monotonic()
        since_s = now_s - when_s
        is_due = since_s > (ASK_S if ask else THANK_S if position != last else WATCH_S)
        if not (at_once or is_due):
            return
        self._thanked = (position, now_s)
        self._replication.thank(position, ask=ask)
