"""Takes the messages of a queue from the brokers that lead its partitions. For one thread at a time.

Acknowledgments go out in batches: with the next fetch, or after a tenth of a second, whichever comes first. A
thread sees to the latter, for the worker may be busy with the next message for long.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from kio.schema.errors import ErrorCode

from headrace.client.cluster import Cluster
from headrace.client.errors import BrokerUnreachable, UnknownTopic
from headrace.client.share_groups import group_settings, locate, set_group_settings
from headrace.client.share_messages import RENEW
from headrace.protocol.batch import read_header, split_batches
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import decode_batch
from headrace.queues.leader import Leader
from headrace.queues.membership import Membership
from headrace.queues.message import Message, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from uuid import UUID

    from headrace.client.address import Address
    from headrace.client.share_groups import SharedTopic
    from headrace.client.share_messages import Place, Taken
    from headrace.protocol.records import Record
    from headrace.queues.queue import Queue

log = logging.getLogger(__name__)

RESET: Final = "share.auto.offset.reset"
WAIT_S: Final = 0.5
"""How long one request waits for a message."""
PAUSE_S: Final = 0.1
UNSENT_S: Final = 0.1
"""How long an acknowledgment waits for others to go with it."""
TOPIC_S: Final = 5.0
"""How long a topic may be missing: one that has just been created is not known to every broker at once."""
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
        self._missing_since = NO_PATIENCE
        # The sender and the worker take turns with the connections.
        self._lock = threading.Lock()
        self._has_unsent = threading.Event()
        self._is_closed = threading.Event()
        self._sender: threading.Thread | None = None
        # Half the time after which the loop is to end, so that it ends in time.
        self._wait_s = WAIT_S if queue.idle_s is None else min(WAIT_S, queue.idle_s / 2)

    def _prepare(self) -> None:
        """Let a new group begin where the queue wants it to; one that says otherwise is left as it is."""
        group = self._queue.group
        wanted = dict(self._queue.settings)
        if RESET not in group_settings(self._cluster, group):
            wanted.setdefault(RESET, self._queue.start)
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
                with self._lock:
                    self._ready.extend(self._fetch())
                self._lost_since = NO_PATIENCE
            except BrokerUnreachable:
                self._bear()
        return self._ready.popleft() if self._ready else None

    def finish(self, message: Message, verdict: Verdict) -> None:
        """Acknowledge a message: with the request for the next one, or soon."""
        delay_s = 0.0
        if verdict is Verdict.RELEASE:
            delay_s = self._queue.backoff(message.deliveries) if message.delay_s is None else message.delay_s
        with self._lock:
            leader = self._leader(message.place)
            if leader is None:
                return  # its broker is gone, and with it the lock
            leader.say(message.place, message.offset, verdict, round(1000 * delay_s))
        if self._ready:
            self._send_soon()

    def send(self) -> None:
        """Send what was said of messages, without waiting for an answer."""
        with self._lock:
            self._send()

    def settle(self) -> None:
        """Return when the brokers have heard all that was said."""
        with self._lock:
            for leader in self._leaders.values():
                leader.settle()

    def close(self) -> None:
        """Give back what is held, and leave."""
        self._is_closed.set()
        self._has_unsent.set()
        if self._sender is not None:
            self._sender.join()
        try:
            for leader in self._leaders.values():
                leader.close()
        except BrokerUnreachable:
            self._leaders.clear()  # the broker gives back what is held when the connection ends
        self._cluster.close()
        self._member.leave()

    def _renew(self, message: Message) -> None:
        with self._lock:
            leader = self._leader(message.place)
            if leader is not None:
                leader.say(message.place, message.offset, RENEW)
                self._send()

    def _send(self) -> None:
        try:
            for leader in self._leaders.values():
                leader.acknowledge()
        except BrokerUnreachable:
            self._leaders.clear()

    def _send_soon(self) -> None:
        if self._sender is None:
            name = f"queue-{self._queue.group}-acknowledge"
            self._sender = threading.Thread(target=self._send_regularly, name=name, daemon=True)
            self._sender.start()
        if not self._has_unsent.is_set():
            self._has_unsent.set()

    def _send_regularly(self) -> None:
        while self._has_unsent.wait() and not self._is_closed.wait(UNSENT_S):
            self._has_unsent.clear()
            self.send()

    # ---------------------------------------------------------------- topics

    def check_topics(self) -> None:
        """Raise `UnknownTopic` when one of the queue's topics was not found."""
        if not self._missing_since:
            return
        known = {topic.name for topic in self._topics.values()}
        for name in self._queue.topics:
            if name not in known:
                raise UnknownTopic(name)

    def _bear_missing(self) -> None:
        """Wait for a topic to be known, but not for ever."""
        now = time.monotonic()
        self._missing_since = self._missing_since or now
        if now - self._missing_since > TOPIC_S:
            self.check_topics()
        time.sleep(PAUSE_S)

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
        if len(self._topics) < len(set(self._queue.topics)):
            self._is_stale = True
            self._bear_missing()
        else:
            self._missing_since = NO_PATIENCE
        if not by_leader:
            time.sleep(PAUSE_S)  # a heartbeat will say what to read
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
            for record in self._decode(batch, taken.place, deliveries):
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
                        _on_error=self._queue.on_error,
                    )

    def _decode(self, batch: memoryview, place: Place, deliveries: Mapping[int, int]) -> list[Record]:
        """The records of a batch; one that cannot be read is rejected, and the queue goes on behind it."""
        try:
            return decode_batch(batch)
        except CorruptBatch as fault:
            header, leader = read_header(batch), self._leader(place)
            log.warning(
                "partition %d offsets %d to %d cannot be read and are rejected: %s",
                place[1],
                header.base_offset,
                header.last_offset,
                fault,
            )
            for offset in deliveries:
                if leader is not None and header.base_offset <= offset <= header.last_offset:
                    leader.say(place, offset, Verdict.REJECT)
            return []
