"""Which partitions this process handles, and the commands that come for them by the topic.

A consumer group over the topic of commands deals the partitions out. That is advice only: a process that does
not know yet that it lost a partition can decide nothing, because its successor has fenced it.

The group's consumer reads nothing. Commands are fetched here, from the offset on that each handler says, so
that a rebalance cannot move a position, and a record batch that cannot be read is passed over.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Assigned

from headrace.client.cluster import Cluster
from headrace.client.errors import OffsetsGone
from headrace.client.follow import fetch_batches
from headrace.client.partition import TopicPartition
from headrace.client.records import committed_records, skip_unreadable
from headrace.errors import HeadraceError
from headrace.events.command import Command
from headrace.events.desk import Letter
from headrace.events.handler import Duty, Handler, Post

if TYPE_CHECKING:
    from headrace.client.follow import FetchedBatches
    from headrace.protocol.records import Record

POLL_S: Final = 0.05
WAIT_MS: Final = 50
"""How long a fetch waits for commands: partitions that come or go meanwhile are noticed after it."""
FETCH_TIMEOUT_S: Final = 2.0
SESSION_MS: Final = 6_000
"""How long a process that was killed still counts as the handler of its partitions; brokers allow no less."""
LEAVE_S: Final = 10.0
_SILENT: Final = logging.Logger("librdkafka", level=logging.CRITICAL + 1)

logger = logging.getLogger(__name__)


class Reading(NamedTuple):
    """Who wants the commands of a partition, and from which offset on."""

    handler: Handler
    opening: int
    offset: int


class Ownership:
    """The handlers of this process for one class of aggregates, and the thread that feeds them."""

    def __init__(self, duty: Duty) -> None:
        self._topic = duty.topics.commands
        self._duty = duty._replace(opened=self._begin_reading)
        self._handlers: dict[int, Handler] = {}
        self._opened: queue.SimpleQueue[Reading] = queue.SimpleQueue()
        self._readings: dict[int, Reading] = {}
        self._stopping = threading.Event()
        self._cluster = Cluster.of(duty.broker, client_id="headrace-events", timeout_s=FETCH_TIMEOUT_S)
        self._consumer = Consumer(
            {
                "bootstrap.servers": duty.broker,
                "group.id": duty.topics.group,
                "client.id": "headrace-events",
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 1_000,
                "enable.auto.commit": False,
                "logger": _SILENT,
            }
        )
        self._thread = threading.Thread(target=self._run, name=f"{duty.topics.group}", daemon=True)
        self._thread.start()

    def handler(self, partition: int) -> Handler | None:
        """The handler of a partition, if it is one of this process."""
        return self._handlers.get(partition)

    def handled(self) -> set[int]:
        """The partitions whose handlers are at work."""
        return {number for number, handler in list(self._handlers.items()) if handler.is_open}

    def close(self) -> None:
        """Finish what is being decided, and leave the group, so that others take over at once."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        self._consumer.subscribe(
            [self._topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke
        )
        try:
            while not self._stopping.is_set():
                self._step()
        finally:
            self._end(list(self._handlers))
            self._consumer.close()
            self._cluster.close()

    def _step(self) -> None:
        """Let the group's consumer work, and hand out commands that have come."""
        self._take_openings()
        wanted = {
            TopicPartition(self._topic, number): reading.offset
            for number, reading in self._readings.items()
            if not reading.handler.is_full
        }
        self._consumer.poll(0 if wanted else POLL_S)  # every partition is paused: it only calls back
        if not wanted:
            return
        try:
            for fetched in fetch_batches(self._cluster, wanted, max_wait_ms=WAIT_MS):
                self._deliver(fetched)
        except OffsetsGone as gone:
            self._move(gone.partition.partition, gone.first)
        except HeadraceError as fault:  # of a broker that is away: it is tried again
            logger.info("%s: %s", self._topic, fault)
            self._stopping.wait(POLL_S)

    def _assign(self, consumer: Any, partitions: list[Assigned]) -> None:
        # Nothing is taken before the handler knows what was answered, and says from where on.
        places = [Assigned(self._topic, each.partition, 0) for each in partitions]
        consumer.incremental_assign(places)
        consumer.pause(places)
        for each in partitions:
            handler = self._handlers[each.partition] = Handler(self._duty, each.partition)
            handler.start()

    def _revoke(self, consumer: Any, partitions: list[Assigned]) -> None:
        self._end([each.partition for each in partitions])
        consumer.incremental_unassign(partitions)

    def _end(self, partitions: list[int]) -> None:
        leaving = [self._handlers.pop(number) for number in partitions if number in self._handlers]
        for handler in leaving:
            self._readings.pop(handler.partition, None)
            handler.stop()
        for handler in leaving:
            if not handler.join(LEAVE_S):
                logger.warning(
                    "the handler of partition %d of %s does not end", handler.partition, self._topic
                )

    def _begin_reading(self, handler: Handler, opening: int, offset: int) -> None:
        self._opened.put(Reading(handler, opening, offset))

    def _take_openings(self) -> None:
        """Read for handlers that have opened their partitions, from where on they want it."""
        for _ in range(self._opened.qsize()):
            reading = self._opened.get()
            if self._handlers.get(reading.handler.partition) is reading.handler:
                self._readings[reading.handler.partition] = reading

    def _move(self, number: int, offset: int) -> None:
        if number in self._readings:  # a rebalance may have taken it away meanwhile
            self._readings[number] = self._readings[number]._replace(offset=offset)

    def _deliver(self, fetched: FetchedBatches) -> None:
        number = fetched.partition.partition
        reading = self._readings[number]
        for record in skip_unreadable(committed_records(*fetched[:3])):
            if record.offset >= reading.offset:
                self._offer(reading, record)
        self._move(number, fetched.next_offset)

    def _offer(self, reading: Reading, record: Record) -> None:
        number = reading.handler.partition
        try:
            command = Command.read(record.value or b"")
            if self._duty.topics.partition_of(command.aggregate_id) != number:
                raise ValueError(f"{command.aggregate_id!r} belongs to another partition")
        except ValueError as fault:
            logger.warning(
                "skipped offset %d of partition %d of %s, which is no command: %s",
                record.offset,
                number,
                self._topic,
                fault,
            )
            return
        reading.handler.offer(Post(Letter(command, record.offset)), reading.opening)
