"""The share session with one broker: what it leads is taken from it, and told to it when done."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.client.errors import RequestRefused
from headrace.client.share_messages import (
    ACKNOWLEDGE,
    FETCH,
    VERSION,
    Said,
    pack_acknowledge,
    pack_fetch,
    read_acknowledged,
    read_fetched,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.client.connection import Connection
    from headrace.client.share_messages import Answer, Place, Taken

log = logging.getLogger(__name__)

OPEN: Final = 0
FINAL: Final = -1
MAX_EPOCH: Final = 2**31 - 1
MAX_BYTES: Final = 8 << 20
LOST: Final = frozenset({ErrorCode.share_session_not_found, ErrorCode.invalid_share_session_epoch})


class Leader:
    """One broker as a queue sees it. Requests go out without waiting for the answers to those before."""

    def __init__(self, connection: Connection, group: str, member: str) -> None:
        self.connection = connection
        self._group = group
        self._member = member
        self._epoch = OPEN
        self._places: frozenset[Place] = frozenset()
        self._done: dict[Place, dict[int, Said]] = {}
        self._unread: deque[int] = deque()

    def say(self, place: Place, offset: int, kind: int, delay_ms: int = 0) -> None:
        """Keep what is to be said of a message for the next request."""
        self._done.setdefault(place, {})[offset] = Said(kind, delay_ms)

    def acknowledge(self) -> None:
        """Send what was said; the answer is read with the next messages."""
        if self._done and self._epoch != OPEN:
            body = pack_acknowledge(self._group, self._member, self._count(), self._done)
            self._unread.append(self.connection.post(ACKNOWLEDGE, VERSION, body))
        self._done = {}

    def ask(self, places: frozenset[Place], *, max_records: int, max_wait_ms: int) -> int:
        """Ask for messages of these partitions, and send what was said; gives the ticket of the answer."""
        if self._epoch == OPEN:
            self._done = {}
            self._places = frozenset()
        gone = [place for place in self._places - places if place not in self._done]
        body = pack_fetch(
            self._group,
            self._member,
            self._count(),
            max_wait_ms=max_wait_ms,
            max_bytes=MAX_BYTES,
            max_records=max_records,
            places=places - self._places,
            acknowledged=self._done,
            forgotten=gone,
        )
        self._places, self._done = places, {}
        return self.connection.post(FETCH, VERSION, body)

    def receive(self, ticket: int) -> tuple[Taken, ...]:
        """What the broker gave; after a lost session nothing, and the next request opens another one."""
        self._catch_up()
        answer = read_fetched(self.connection.collect(ticket))
        self._heed(answer)
        return answer.partitions

    def settle(self) -> None:
        """Send what was said, and return when the broker has heard it."""
        self.acknowledge()
        self._catch_up()

    def _catch_up(self) -> None:
        while self._unread:
            self._heed(read_acknowledged(self.connection.collect(self._unread.popleft())))

    def close(self) -> None:
        """Say the last word: what is still held goes to others."""
        if self._epoch != OPEN:
            self._epoch = FINAL
            body = pack_acknowledge(self._group, self._member, FINAL, self._done)
            self.connection.collect(self.connection.post(ACKNOWLEDGE, VERSION, body))

    def _count(self) -> int:
        epoch = self._epoch
        self._epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        return epoch

    def _heed(self, answer: Answer) -> None:
        if answer.error in LOST:
            self._epoch = OPEN
        elif answer.error is not ErrorCode.none:
            raise RequestRefused(f"give messages to the share group {self._group!r}", answer.error)
        _tell_lost(answer.partitions)


def _tell_lost(partitions: Iterable[Taken]) -> None:
    for taken in partitions:
        if taken.acknowledge_error is not ErrorCode.none:
            log.warning(
                "partition %d: what was said of a message came too late (%s), and it is delivered again: "
                "give the group a longer share.record.lock.duration.ms, or renew the message",
                taken.place[1],
                taken.acknowledge_error.name,
            )
