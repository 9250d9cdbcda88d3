"""Takes the messages of a queue from the brokers that lead its partitions. For one thread at a time."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.client.cluster import Cluster
from headrace.client.errors import BrokerUnreachable
from headrace.client.share_groups import group_settings, locate, set_group_settings
from headrace.client.share_messages import RENEW
from headrace.protocol.batch import split_batches
from headrace.protocol.records import decode_batch
from headrace.queues.leader import Leader
from headrace.queues.membership import Membership
from headrace.queues.message import Message, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from headrace.client.address import Address
    from headrace.client.share_groups import SharedTopic
    from headrace.client.share_messages import Place, Taken
    from headrace.queues.queue import Queue

RESET: Final = "share.auto.offset.reset"
WAIT_S: Final = 0.5
"""How long one request waits for a message."""
PAUSE_S: Final = 0.1
NO_PATIENCE: Final = 0.0


class Receiver:
    """An open queue: its membership, and a session with each broker."""

    def __init__(self, queue: Queue, bootstrap: str) -> None:
        self._queue = queue
        self._cluster = Cluster.of(bootstrap)
        self._prepare()
        self._member = Membership(bootstrap, queue.group, queue.topics)
        self._leaders: dict[Address, Leader] = {}
        self._topics: dict[UUID, SharedTopic] = {}
        self._is_stale = True
        self._ready: deque[Message] = deque()
        self._lost_since = NO_PATIENCE
        # Half the time after which the loop is to end, so that it ends in time.
        self._wait_s = WAIT_S if queue.idle_s is None else min(WAIT_S, queue.idle_s / 2)

    def _prepare(self) -> None:
        """Let a new group begin where the queue wants it to; one that says otherwise is left as it is."""
        group = self._queue.group
        wanted = dict(self._queue.settings)
        if RESET not in group_settings(self._cluster, group):
            wanted[RESET] = self._queue.start
        if wanted:
            set_group_settings(self._cluster, group, wanted)

    @property
    def is_ready(self) -> bool:
        """Whether a message is here already."""
        return bool(self._ready)

    def take(self) -> Message | None:
        """The next message, or None when none came for a while."""
        if not self._ready:
            try:
                self._ready.extend(self._fetch())
                self._lost_since = NO_PATIENCE
            except BrokerUnreachable:
                self._bear()
        return self._ready.popleft() if self._ready else None

    def finish(self, message: Message, verdict: Verdict) -> None:
        """Say what became of a message: at once, or with the request for the next one."""
        leader = self._leader(message.place)
        if leader is None:
            return  # its broker is gone, and with it the lock
        leader.say(message.place, message.offset, verdict)
        if self._ready:
            self._send(leader)

    def send(self) -> None:
        """Send what was said of messages, without waiting for an answer."""
        for leader in self._leaders.values():
            leader.acknowledge()

    def settle(self) -> None:
        """Return when the brokers have heard all that was said."""
        for leader in self._leaders.values():
            leader.settle()

    def close(self) -> None:
        """Give back what is held, and leave."""
        try:
            for leader in self._leaders.values():
                leader.close()
        except BrokerUnreachable:
            self._leaders.clear()  # the broker gives back what is held when the connection ends
        self._cluster.close()
        self._member.leave()

    def _renew(self, message: Message) -> None:
        leader = self._leader(message.place)
        if leader is not None:
            leader.say(message.place, message.offset, RENEW)
            self._send(leader)

    def _send(self, leader: Leader) -> None:
        try:
            leader.acknowledge()
        except BrokerUnreachable:
            self._leaders.clear()

    def _bear(self) -> None:
        """Wait for brokers to come back, but not for ever."""
        self._leaders.clear()
        self._is_stale = True
        now = time.monotonic()
        self._lost_since = self._lost_since or now
        if now - self._lost_since > self._queue.patience_s:
            raise BrokerUnreachable(
                f"no broker has answered for {self._queue.patience_s:g} s: start it, and the queue again"
            )
        time.sleep(PAUSE_S)

    # ---------------------------------------------------------------- brokers

    def _fetch(self) -> list[Message]:
        if self._member.fault is not None:
            raise self._member.fault
        by_leader = self._divide(self._member.assignment)
        if not by_leader:
            time.sleep(PAUSE_S)  # the topic is not there yet: a heartbeat will say when it is
            return []
        wait_ms = round(1000 * self._wait_s)
        tickets = [
            (leader, leader.ask(places, max_records=self._queue.prefetch, max_wait_ms=wait_ms))
            for leader, places in by_leader
        ]
        found = [taken for leader, ticket in tickets for taken in leader.receive(ticket)]
        messages = [message for taken in found for message in self._messages(taken)]
        if any(taken.error is not ErrorCode.none for taken in found):
            self._is_stale = True  # a topic was deleted, or has another leader
            time.sleep(0 if messages else PAUSE_S)
        return messages

    def _divide(self, assignment: frozenset[Place]) -> list[tuple[Leader, frozenset[Place]]]:
        if self._is_stale or any(topic not in self._topics for topic, _ in assignment):
            self._topics = locate(self._cluster, self._queue.topics)
            self._is_stale = False
        by_address: dict[Address, set[Place]] = {address: set() for address in self._leaders}
        for topic, index in assignment:
            address = self._address((topic, index))
            if address is not None:
                by_address.setdefault(address, set()).add((topic, index))
        return [(self._open(address), frozenset(places)) for address, places in by_address.items()]

    def _address(self, place: Place) -> Address | None:
        topic = self._topics.get(place[0])
        return None if topic is None else topic.leaders.get(place[1])

    def _leader(self, place: Place) -> Leader | None:
        address = self._address(place)
        return None if address is None else self._leaders.get(address)

    def _open(self, address: Address) -> Leader:
        leader = self._leaders.get(address)
        if leader is None:
            leader = Leader(self._cluster.connection(address), self._queue.group, self._member.id)
            self._leaders[address] = leader
        return leader

    def _messages(self, taken: Taken) -> Iterator[Message]:
        deliveries = {
            offset: count for first, last, count in taken.acquired for offset in range(first, last + 1)
        }
        name = self._topics[taken.place[0]].name
        for batch in split_batches(taken.records):
            for record in decode_batch(batch):
                if record.offset in deliveries:
                    yield Message(
                        topic=name,
                        partition=taken.place[1],
                        offset=record.offset,
                        key=record.key,
                        value=record.value,
                        headers=record.headers,
                        timestamp_ms=record.timestamp,
                        deliveries=deliveries[record.offset],
                        place=taken.place,
                        _renew=self._renew,
                    )
