"""Which partitions this process handles, and the commands that come for them by the topic.

A consumer group over the topic of commands deals the partitions out. That is advice only: a process that does
not know yet that it lost a partition can decide nothing, because its successor has fenced it.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, Final, cast

from confluent_kafka import Consumer, KafkaException, TopicPartition

from headrace.events.command import Command
from headrace.events.desk import Letter
from headrace.events.handler import Duty, Handler, Post

if TYPE_CHECKING:
    from confluent_kafka import Message

POLL_S: Final = 0.05
SESSION_MS: Final = 6_000
"""How long a process that was killed still counts as the handler of its partitions; brokers allow no less."""
LEAVE_S: Final = 10.0
ASK_S: Final = 5.0
LOOK_S: Final = 2.0
_SILENT: Final = logging.Logger("librdkafka", level=logging.CRITICAL + 1)

logger = logging.getLogger(__name__)


class Ownership:
    """The handlers of this process for one class of aggregates, and the thread that feeds them."""

    def __init__(self, duty: Duty) -> None:
        self._topic = duty.topics.commands
        self._duty = duty._replace(opened=self._opened)
        self._handlers: dict[int, Handler] = {}
        self._opening: queue.SimpleQueue[tuple[Handler, int, int]] = queue.SimpleQueue()
        self._full: set[int] = set()
        self._openings: dict[int, int] = {}
        self._next: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        self._look_at = 0.0
        self._stopping = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": duty.broker,
                "group.id": duty.topics.group,
                "client.id": "headrace-events",
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 1_000,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.error.backoff.ms": 50,
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
                try:
                    self._read()
                except (
                    KafkaException
                ) as fault:  # of a call that a rebalance overtook: without a reader none comes
                    logger.warning("%s: %s", self._topic, fault)
        finally:
            self._end(list(self._handlers))
            self._consumer.close()

    def _read(self) -> None:
        """Take what there is, and wait a little for it."""
        self._begin_reading()
        self._slow_down()
        self._look_for_stalls()
        message = self._consumer.poll(POLL_S)
        while message is not None:
            self._deliver(message)
            message = self._consumer.poll(0)

    def _assign(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        # Nothing is taken before the handler knows what was answered, and says from where on. Were it the end
        # that is looked for until then, librdkafka could find it later, and pass over what came meanwhile.
        places = [TopicPartition(self._topic, each.partition, 0) for each in partitions]
        consumer.incremental_assign(places)
        consumer.pause(places)
        for each in partitions:
            self._openings.pop(each.partition, None)  # what is read before `_begin_reading` is not wanted
            handler = self._handlers[each.partition] = Handler(self._duty, each.partition)
            handler.start()

    def _revoke(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._end([each.partition for each in partitions])
        consumer.incremental_unassign(partitions)

    def _end(self, partitions: list[int]) -> None:
        leaving = [self._handlers.pop(number) for number in partitions if number in self._handlers]
        for handler in leaving:
            handler.stop()
        for handler in leaving:
            if not handler.join(LEAVE_S):
                logger.warning(
                    "the handler of partition %d of %s does not end", handler.partition, self._topic
                )

    def _opened(self, handler: Handler, opening: int, offset: int) -> None:
        self._opening.put((handler, opening, offset))

    def _begin_reading(self) -> None:
        """Read for handlers that have opened their partitions, from where on they want it."""
        for _ in range(self._opening.qsize()):
            handler, opening, offset = self._opening.get()
            if self._handlers.get(handler.partition) is not handler:
                continue
            place = TopicPartition(self._topic, handler.partition, offset)
            try:
                self._consumer.seek(place)
                self._consumer.resume([place])
                self._openings[handler.partition] = opening
                self._next[handler.partition] = offset
                self._full.discard(handler.partition)
            except KafkaException:  # the assignment is not in effect yet
                self._opening.put((handler, opening, offset))

    def _slow_down(self) -> None:
        """Leave commands of handlers that have enough of them in the topic for a while."""
        for number, handler in self._handlers.items():
            place = TopicPartition(self._topic, number)
            if handler.is_full and number not in self._full:
                self._consumer.pause([place])
                self._full.add(number)
            elif number in self._full and not handler.is_full:
                self._consumer.resume([place])
                self._full.remove(number)

    def _look_for_stalls(self) -> None:
        """Now and then: read again where there are commands and none came since the last look.

        Callers wait for what is in the topic; a position that went astray in a rebalance must not let them.
        """
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + LOOK_S
        for number in self._openings.keys() & self._handlers.keys() - self._full:
            wanted = self._next[number]
            place = TopicPartition(self._topic, number, wanted)
            if self._known_end(place) > wanted == self._seen.get(number):
                self._goes_back(place)
            self._seen[number] = wanted

    def _known_end(self, place: TopicPartition) -> int:
        """Where the partition ends, as far as the last answer to a fetch said."""
        try:
            return self._consumer.get_watermark_offsets(place, cached=True)[1]
        except KafkaException:
            return -1

    def _deliver(self, message: Message) -> None:
        if message.error() is not None:
            logger.info("%s: %s", self._topic, message.error())
            return
        number, offset = message.partition() or 0, message.offset() or 0
        handler = self._handlers.get(number)
        if handler is None or number not in self._openings or not self._is_next(number, offset):
            return
        try:
            command = Command.read(message.value() or b"")
        except ValueError as fault:
            logger.warning(
                "offset %d of partition %d of %s is no command: %s", offset, number, self._topic, fault
            )
            return
        handler.offer(Post(Letter(command, offset)), self._openings[number])

    def _is_next(self, number: int, offset: int) -> bool:
        """Whether this is the command to be taken next; if one is left out, go back for it."""
        wanted = self._next[number]
        if offset > wanted and self._goes_back(TopicPartition(self._topic, number, wanted)):
            return False
        self._next[number] = max(wanted, offset + 1)
        return offset >= wanted

    def _goes_back(self, place: TopicPartition) -> bool:
        """Read from that place on again, unless retention took what is there."""
        try:
            known = self._consumer.get_watermark_offsets(place, timeout=ASK_S)
            # Its types do not say so: when time is up, it is None.
            first, _ = cast("tuple[int, int] | None", known) or (0, 0)
            if first > place.offset:
                return False
            self._consumer.seek(place)
        except KafkaException:
            logger.info("%s: offset %d is to be read again", self._topic, place.offset)
        return True
