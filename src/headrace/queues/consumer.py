"""The share consumer of a queue: fetches messages from the leaders of its partitions. Not thread-safe.

Acknowledgments are sent in batches: with the next fetch, or after 0.1 s, whichever comes first. A thread does
the latter, because the worker may be busy with the next message.
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
from headrace.client.share_groups import find_topics, group_settings, set_group_settings
from headrace.protocol.batch import read_header, split_batches
from headrace.protocol.errors import CorruptBatch
from headrace.protocol.records import decode_batch
from headrace.protocol.share import AcknowledgeType
from headrace.queues.membership import ShareGroupMembership
from headrace.queues.message import Message
from headrace.queues.session import BrokerShareSession
from headrace.settings import Settings
from headrace.tracing import open_tracer, traceparent_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from uuid import UUID

    from headrace.client.bootstrap import Address
    from headrace.client.share_groups import SharePartitionResponse, TopicIdPartition, TopicLeaders
    from headrace.protocol.records import Record
    from headrace.queues.queue import Queue
    from headrace.tracing import Span

log = logging.getLogger(__name__)

OFFSET_RESET: Final = "share.auto.offset.reset"
WAIT_S: Final = 0.5
"""How long one fetch waits for a message."""
PAUSE_S: Final = 0.1
ACKNOWLEDGE_DELAY_S: Final = 0.1
"""How long an acknowledgment waits for others."""
TOPIC_TIMEOUT_S: Final = 5.0
"""How long a topic may be missing: a new topic is not known to every broker at once."""
NOT_WAITING: Final = 0.0


class ShareConsumer:
    """A member of a share group with a session for each broker."""

    def __init__(self, queue: Queue, bootstrap: str) -> None:
        self._queue = queue
        self._cluster = Cluster.of(bootstrap)
        try:
            self._prepare()
            self._membership = ShareGroupMembership(bootstrap, queue.group, queue.topics)
        except BaseException:
            self._cluster.close()
            raise
        self._sessions: dict[Address, BrokerShareSession] = {}
        self._topics: dict[UUID, TopicLeaders] = {}
        self._is_stale = True
        self._ready: deque[Message] = deque()
        self._lost_since = NOT_WAITING
        self._missing_since = NOT_WAITING
        # The sender thread and the worker share the connections.
        self._lock = threading.Lock()
        self._has_unsent = threading.Event()
        self._is_closed = threading.Event()
        self._sender: threading.Thread | None = None
        self._tracer = open_tracer(f"headrace-queue-{queue.group}", Settings.read().tracing())
        self._span: Span | None = None
        """The span of the message that the body works on."""
        # Half of the idle timeout, so that the loop ends in time.
        idle_timeout_s = queue.idle_timeout_s
        self._wait_s = WAIT_S if idle_timeout_s is None else min(WAIT_S, idle_timeout_s / 2)

    def _prepare(self) -> None:
        """Set the start and the settings of the group; an existing start is not changed."""
        group = self._queue.group
        wanted = dict(self._queue.settings)
        if OFFSET_RESET not in group_settings(self._cluster, group):
            wanted.setdefault(OFFSET_RESET, self._queue.start)
        if wanted:
            set_group_settings(self._cluster, group, wanted)

    @property
    def is_ready(self) -> bool:
        """Whether a message has been fetched already."""
        return bool(self._ready)

    def poll(self) -> Message | None:
        """The next message, or None if none arrived within a while."""
        if not self._ready:
            try:
                with self._lock:
                    self._ready.extend(self._fetch())
                self._lost_since = NOT_WAITING
            except BrokerUnreachable:
                self._wait_for_broker()
        return self._ready.popleft() if self._ready else None

    def begin(self, message: Message) -> None:
        """The body of the loop begins to work on a message."""
        message.traceparent = traceparent_of(message.headers)
        if self._tracer is None:
            return
        attributes: dict[str, str | int] = {
            "messaging.system": "kafka",
            "messaging.destination.name": message.topic,
            "messaging.consumer.group.name": self._queue.group,
            "messaging.kafka.offset": message.offset,
        }
        self._span = self._tracer.start(
            f"{message.topic} process", "consumer", parent=message.traceparent, attributes=attributes
        )
        message.traceparent = self._span.traceparent

    def acknowledge(self, message: Message, kind: AcknowledgeType) -> None:
        """Acknowledge a message with the next fetch, or soon."""
        if self._span is not None:
            self._span.set(headrace_acknowledgment=kind.name.lower())
            self._span.end(None if kind is AcknowledgeType.ACCEPT else kind.name.lower())
            self._span = None
        delay_s = 0.0
        if kind is AcknowledgeType.RELEASE:
            delay_s = self._queue.delay_s(message.deliveries) if message.delay_s is None else message.delay_s
        with self._lock:
            partition = (message.topic_id, message.partition)
            session = self._session(partition)
            if session is None:
                return  # the session is lost, and with it the lock
            session.add_acknowledgment(partition, message.offset, kind, round(1000 * delay_s))
        if self._ready:
            self._send_soon()

    def send(self) -> None:
        """Send all acknowledgments without waiting for responses."""
        with self._lock:
            self._send()

    def flush(self) -> None:
        """Send all acknowledgments, and wait for the responses."""
        with self._lock:
            for session in self._sessions.values():
                session.flush()

    def close(self) -> None:
        """Release acquired messages and leave the group."""
        self._is_closed.set()
        self._has_unsent.set()
        if self._sender is not None:
            self._sender.join()
        try:
            for session in self._sessions.values():
                session.close()
        except BrokerUnreachable:
            self._sessions.clear()  # the broker releases messages when the connection ends
        self._cluster.close()
        self._membership.leave()
        if self._tracer is not None:
            self._tracer.flush()

    def _renew(self, message: Message) -> None:
        with self._lock:
            partition = (message.topic_id, message.partition)
            session = self._session(partition)
            if session is not None:
                session.add_acknowledgment(partition, message.offset, AcknowledgeType.RENEW)
                self._send()

    def _send(self) -> None:
        try:
            for session in self._sessions.values():
                session.acknowledge()
        except BrokerUnreachable:
            self._sessions.clear()

    def _send_soon(self) -> None:
        if self._sender is None:
            name = f"queue-{self._queue.group}-acknowledge"
            self._sender = threading.Thread(target=self._send_regularly, name=name, daemon=True)
            self._sender.start()
        if not self._has_unsent.is_set():
            self._has_unsent.set()

    def _send_regularly(self) -> None:
        while self._has_unsent.wait():
            # Cleared before the check: `close` sets both events, and a later `clear` would undo its wake-up.
            self._has_unsent.clear()
            if self._is_closed.wait(ACKNOWLEDGE_DELAY_S):
                return
            self.send()

    # ---------------------------------------------------------------- topics

    def check_topics(self) -> None:
        """Raise `UnknownTopic` if one of the queue's topics does not exist."""
        if not self._missing_since:
            return
        known = {topic.name for topic in self._topics.values()}
        for name in self._queue.topics:
            if name not in known:
                raise UnknownTopic(name)

    def _wait_for_topic(self) -> None:
        """Wait for a missing topic, up to a limit."""
        now = time.monotonic()
        self._missing_since = self._missing_since or now
        if now - self._missing_since > TOPIC_TIMEOUT_S:
            self.check_topics()
        time.sleep(PAUSE_S)

    def _wait_for_broker(self) -> None:
        """Wait for an unreachable broker, up to a limit."""
        self._sessions.clear()
        self._is_stale = True
        now = time.monotonic()
        self._lost_since = self._lost_since or now
        if now - self._lost_since > self._queue.patience_s:
            raise BrokerUnreachable(
                f"no broker has responded for {self._queue.patience_s:g} s: start it, then this worker again"
            )
        time.sleep(PAUSE_S)

    # ---------------------------------------------------------------- brokers

    def _fetch(self) -> list[Message]:
        if self._membership.fault is not None:
            raise self._membership.fault
        by_session = self._by_session(self._membership.assignment)
        if len(self._topics) < len(set(self._queue.topics)):
            self._is_stale = True
            self._wait_for_topic()
        else:
            self._missing_since = NOT_WAITING
        if not by_session:
            time.sleep(PAUSE_S)  # the next heartbeat brings the assignment
            return []
        wait_ms = round(1000 * self._wait_s)
        requests = [
            (session, session.send_fetch(partitions, max_records=self._queue.prefetch, max_wait_ms=wait_ms))
            for session, partitions in by_session
        ]
        found = [
            response for session, request_id in requests for response in session.receive_fetch(request_id)
        ]
        messages = [message for response in found for message in self._messages(response)]
        if any(response.error is not ErrorCode.none for response in found):
            self._is_stale = True  # a topic was deleted or has another leader
            time.sleep(0 if messages else PAUSE_S)
        return messages

    def _by_session(
        self, assignment: frozenset[TopicIdPartition]
    ) -> list[tuple[BrokerShareSession, frozenset[TopicIdPartition]]]:
        if self._is_stale or any(topic not in self._topics for topic, _ in assignment):
            self._topics = find_topics(self._cluster, self._queue.topics)
            self._is_stale = False
        by_address: dict[Address, set[TopicIdPartition]] = {address: set() for address in self._sessions}
        for topic, index in assignment:
            address = self._address((topic, index))
            if address is not None:
                by_address.setdefault(address, set()).add((topic, index))
        return [(self._open(address), frozenset(found)) for address, found in by_address.items()]

    def _address(self, partition: TopicIdPartition) -> Address | None:
        topic = self._topics.get(partition[0])
        return None if topic is None else topic.leaders.get(partition[1])

    def _session(self, partition: TopicIdPartition) -> BrokerShareSession | None:
        address = self._address(partition)
        return None if address is None else self._sessions.get(address)

    def _open(self, address: Address) -> BrokerShareSession:
        session = self._sessions.get(address)
        if session is None:
            connection = self._cluster.connection(address)
            session = BrokerShareSession(connection, self._queue.group, self._membership.id)
            self._sessions[address] = session
        return session

    def _messages(self, response: SharePartitionResponse) -> Iterator[Message]:
        deliveries = {
            offset: count for first, last, count in response.acquired for offset in range(first, last + 1)
        }
        name = self._topics[response.partition[0]].name
        for batch in split_batches(response.records):
            for record in self._decode(batch, response.partition, deliveries):
                if record.offset in deliveries:
                    yield Message(
                        topic=name,
                        partition=response.partition[1],
                        offset=record.offset,
                        key=record.key,
                        value=record.value,
                        headers=record.headers,
                        timestamp_ms=record.timestamp,
                        deliveries=deliveries[record.offset],
                        topic_id=response.partition[0],
                        _renew=self._renew,
                        _on_error=self._queue.on_error,
                    )

    def _decode(
        self, batch: memoryview, partition: TopicIdPartition, deliveries: Mapping[int, int]
    ) -> list[Record]:
        """The records of a batch; the messages of one that cannot be decoded are rejected."""
        try:
            return decode_batch(batch)
        except CorruptBatch as fault:
            header, session = read_header(batch), self._session(partition)
            log.warning(
                "Partition %d offsets %d to %d cannot be decoded and are rejected: %s",
                partition[1],
                header.base_offset,
                header.last_offset,
                fault,
            )
            for offset in deliveries:
                if session is not None and header.base_offset <= offset <= header.last_offset:
                    session.add_acknowledgment(partition, offset, AcknowledgeType.REJECT)
            return []
