"""The handlers of this process: their partitions, the thread of each that decides on commands, and metrics.

A consumer group over the topic of commands assigns the partitions to processes. The assignment is only a
hint: a process that does not know yet that it lost a partition can store nothing, because its successor has
fenced it. The group's consumer fetches no records. This process fetches the commands itself, from the offset
that each handler names. So a rebalance cannot move a position, and an unreadable batch is skipped.

A handler opens a `PartitionProcessor`, takes the commands in its queue, decides on them, stores the result in
one step, and returns the replies. Commands that arrive meanwhile are stored in the next step. When the
handler is fenced, or the broker fails, it recovers the partition from the log. Commands without a
reply are sent to the topic, for the current handler of the partition. They may have been executed: their
ids prevent a second effect.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import Counter, deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as Assigned

from headrace.client.bootstrap import SILENT, client_config
from headrace.client.cluster import Cluster
from headrace.client.errors import OffsetOutOfRange, ProducerFenced
from headrace.client.fetch import committed_records, fetch_batches, skip_unreadable
from headrace.client.partition import TopicPartition
from headrace.errors import HeadraceError, Misuse
from headrace.events.commands import Command, set_error, set_reply
from headrace.events.errors import InvalidEvent, UnknownEvent
from headrace.events.partition_processor import CommandEnvelope, PartitionProcessor
from headrace.metrics.families import Histogram, Kind, Metric

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from headrace.client.fetch import FetchedBatches
    from headrace.events.aggregate import AggregateSchema
    from headrace.events.commands import CommandReply
    from headrace.events.dispatcher import CommandDispatcher
    from headrace.events.partition_processor import Limits
    from headrace.events.topics import StoreTopics
    from headrace.metrics.families import Scrape
    from headrace.protocol.records import Record


_AGGREGATE: Final = ("store", "aggregate")

COMMANDS = Metric(
    name="headrace_events_commands_total",
    kind=Kind.COUNTER,
    doc="Commands that this process decided on, by outcome: `done`, `rejected`, `conflict` (the version was "
    "not the expected one), `failed` or `unreadable`.",
    labels=(*_AGGREGATE, "outcome"),
)
LATENCY = Metric(
    name="headrace_events_command_seconds",
    kind=Kind.HISTOGRAM,
    doc="Time from the arrival of a command in this process to its stored reply.",
    labels=_AGGREGATE,
)
PARTITIONS = Metric(
    name="headrace_events_handled_partitions",
    kind=Kind.GAUGE,
    doc="Partitions that this process handles.",
    labels=_AGGREGATE,
)

METRICS: Final = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
"""Every metric of an event store, in the order of the documentation."""

MAX_BATCH_COMMANDS: Final = 500
"""Commands that are stored in one step."""
MAX_QUEUED_COMMANDS: Final = 2_000
"""A handler with more queued commands gets none from the topic for now."""
RETRY_PAUSE_S: Final = 0.5
CONCURRENT_WRITES: Final = 2
"""Writes in flight at once, for one process and one class of aggregates."""
MAX_WRITE_WAIT_S: Final = 0.02
PERMANENT: Final = (Misuse, InvalidEvent, UnknownEvent)
"""Errors of this program: they recur until the program changes."""
POLL_S: Final = 0.05
FETCH_WAIT_MS: Final = 50
"""How long a fetch waits for commands; changes of the assignment are noticed after it."""
FETCH_TIMEOUT_S: Final = 2.0
SESSION_MS: Final = 6_000
"""How long a killed process keeps its partitions; brokers allow no less."""
CLOSE_TIMEOUT_S: Final = 10.0

logger = logging.getLogger(__name__)


class HandlerMetrics:
    """The commands of one class of aggregates, counted by the threads of its handlers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.outcomes: Counter[str] = Counter(done=0, conflict=0)
        self.latency = Histogram()

    def count(self, outcomes: Iterable[str], seconds: Sequence[float]) -> None:
        """Count the commands of one step, with the time that each took."""
        with self._lock:
            self.outcomes.update(outcomes)
            for each in seconds:
                self.latency.observe(each)


class EventMetricsSource:
    """The page of a process that handles commands."""

    def __init__(self, store: str, dispatchers: Callable[[], Sequence[CommandDispatcher]]) -> None:
        self._store = store
        self._dispatchers = dispatchers

    def scrape(self, scrape: Scrape) -> None:
        """Add all samples."""
        scrape.announce(*METRICS)
        for dispatcher in self._dispatchers():
            where = (self._store, dispatcher.topics.aggregate)
            for outcome, count in list(dispatcher.metrics.outcomes.items()):
                scrape.add(COMMANDS, count, *where, outcome)
            scrape.add(LATENCY, dispatcher.metrics.latency, *where)
            scrape.add(PARTITIONS, len(dispatcher.handled_partitions()), *where)

    def faults(self) -> list[str]:
        """Nothing: handlers recover by themselves."""
        return []

    def pending(self) -> list[str]:
        """Why partitions of this process handle no commands."""
        return [error for dispatcher in self._dispatchers() for error in dispatcher.errors()]


class QueuedCommand(NamedTuple):
    """A command in the queue of a handler."""

    envelope: CommandEnvelope
    future: Future[CommandReply] | None = None
    """Gets the reply, if the caller is in this process and sent the command directly."""
    arrived_s: float = 0.0
    """When it arrived, on the clock of `time.perf_counter`."""


class HandlerContext(NamedTuple):
    """What the handlers of one class of aggregates share."""

    broker: str
    topics: StoreTopics
    schema: AggregateSchema
    limits: Limits
    send: Callable[[Command, Future[CommandReply]], None]
    """Sends a command to the topic."""
    on_reply: Callable[[CommandReply], None]
    """Called with each reply to a command from the topic."""
    write_slots: threading.Semaphore
    """Limits the writes in flight."""
    metrics: HandlerMetrics
    on_open: Callable[[PartitionHandler, int, int], None]
    """Called with the handler, the number of its opens, and the offset of the next command."""


class PartitionHandler:
    """The thread that handles the commands of one partition, from `start` to `stop`."""

    def __init__(self, context: HandlerContext, partition: int) -> None:
        self.partition = partition
        self.error: HeadraceError | None = None
        """Why it handles no commands; None if it does, or if the error may pass."""
        self.is_open = False
        """Whether it accepts commands."""
        self._context = context
        self._queue: deque[QueuedCommand] = deque()
        self._changed = threading.Condition()
        self._openings = 0
        self._stopping = False
        name = f"events-{context.topics.aggregate}-{partition}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start to take over the partition."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end after its current step."""
        with self._changed:
            self._stopping = True
            self._changed.notify()

    def join(self, timeout_s: float) -> bool:
        """Whether the thread has ended within that time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def offer(self, command: QueuedCommand, opening: int | None = None) -> bool:
        """Whether the handler accepted the command; it does while it has its partition.

        A command from the topic belongs to one `opening`: after the next one the topic is read again from
        another offset, and no command may be left out.
        """
        with self._changed:
            if not self.is_open or opening not in (None, self._openings):
                return False
            self._queue.append(command)
            self._changed.notify()
            return True

    @property
    def is_full(self) -> bool:
        """Whether it should get no more commands from the topic for now."""
        return len(self._queue) >= MAX_QUEUED_COMMANDS

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._handle_commands()
            except ProducerFenced:
                logger.info("%s: another process has taken over", self._thread.name)
            except PERMANENT as error:
                logger.warning("%s cannot handle commands: %s", self._thread.name, error)
                self.error = error
            except HeadraceError as error:
                logger.warning("%s recovers its partition: %s", self._thread.name, error)
            except Exception as error:  # a supervisor: an unexpected error must not end the thread
                logger.exception("%s cannot handle commands", self._thread.name)
                self.error = InvalidEvent(
                    f"partition {self.partition} of {self._context.topics.events} cannot be handled: "
                    f"{type(error).__name__}: {error}"
                )
            with self._changed:
                self._changed.wait_for(lambda: self._stopping, RETRY_PAUSE_S)

    def _handle_commands(self) -> None:
        broker, topics, schema, limits, *_ = self._context
        with Cluster.of(broker, client_id="headrace-events") as cluster:
            processor = PartitionProcessor.open(cluster, topics, self.partition, schema, limits)
            batch: list[QueuedCommand] = []
            try:
                self._open(processor)
                while self._await_commands():
                    with self._write_slot():
                        batch = self._take_batch()
                        replies = processor.handle([command.envelope for command in batch])
                    self._return_replies(batch, replies)
            finally:
                processor.close()
                self._close(batch)

    def _open(self, processor: PartitionProcessor) -> None:
        self.error = None
        with self._changed:
            self._openings += 1
            self.is_open = not self._stopping
        if self.is_open:
            self._context.on_open(self, self._openings, processor.next_command_offset)

    def _await_commands(self) -> bool:
        """True once there are commands, False once the handler must stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._stopping)
            return not self._stopping

    @contextmanager
    def _write_slot(self) -> Iterator[None]:
        """Wait briefly for other handlers: commands that arrive meanwhile are stored in the same step.

        More writes at once are not faster in one Python process, only smaller. The wait is bounded, so that a
        broker that does not respond delays no writes to others.
        """
        has_slot = self._context.write_slots.acquire(timeout=MAX_WRITE_WAIT_S)
        try:
            yield
        finally:
            if has_slot:
                self._context.write_slots.release()

    def _take_batch(self) -> list[QueuedCommand]:
        with self._changed:
            return [self._queue.popleft() for _ in range(min(len(self._queue), MAX_BATCH_COMMANDS))]

    def _return_replies(self, batch: list[QueuedCommand], replies: list[CommandReply]) -> None:
        now_s = time.perf_counter()
        self._context.metrics.count(
            (reply.kind for reply in replies), [now_s - command.arrived_s for command in batch]
        )
        for command, reply in zip(batch, replies, strict=True):
            if command.future is None:
                self._context.on_reply(reply)
            else:
                set_reply(command.future, reply)
        batch.clear()

    def _close(self, batch: list[QueuedCommand]) -> None:
        """Accept no more commands; send those of this process that have no reply to the topic."""
        with self._changed:
            self.is_open = False
            unanswered = [*batch, *self._queue]
            self._queue.clear()
        for command in unanswered:
            if command.future is not None and not command.future.done():
                try:
                    self._context.send(command.envelope.command, command.future)
                except HeadraceError as error:
                    set_error(command.future, error)


class CommandPosition(NamedTuple):
    """Which handler gets the commands of a partition, and from which offset on."""

    handler: PartitionHandler
    opening: int
    offset: int


class PartitionAssignment:
    """The handlers of this process for one class of aggregates, and the thread that feeds them."""

    def __init__(self, context: HandlerContext) -> None:
        self._topic = context.topics.commands
        self._context = context._replace(on_open=self._on_open)
        self._handlers: dict[int, PartitionHandler] = {}
        self._opened: queue.SimpleQueue[CommandPosition] = queue.SimpleQueue()
        self._positions: dict[int, CommandPosition] = {}
        self._consumer: Consumer | None = None
        self._stopping = threading.Event()
        self._cluster = Cluster.of(context.broker, client_id="headrace-events", timeout_s=FETCH_TIMEOUT_S)
        self._thread = threading.Thread(target=self._run, name=context.topics.group, daemon=True)
        self._thread.start()

    def handler(self, partition: int) -> PartitionHandler | None:
        """The handler of a partition, if it is in this process."""
        return self._handlers.get(partition)

    def handled_partitions(self) -> set[int]:
        """The partitions whose handlers accept commands."""
        return {number for number, handler in list(self._handlers.items()) if handler.is_open}

    def errors(self) -> list[str]:
        """Why handlers of this process handle no commands."""
        return [str(handler.error) for handler in list(self._handlers.values()) if handler.error is not None]

    def close(self) -> None:
        """Finish the current step of each handler, and leave the group, so that others take over at once."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    self._step()
                except Exception as error:  # a supervisor: without this thread no partition has a handler
                    # A rebalance callback may have failed half-way: the assignment is unknown.
                    logger.warning("%s: joins the group again: %s", self._topic, error, exc_info=True)
                    self._leave_group()
                    self._stopping.wait(POLL_S)
        finally:
            self._leave_group()
            self._cluster.close()

    def _join_group(self) -> Consumer:
        consumer = Consumer(
            client_config(
                self._context.broker,
                {
                    "group.id": self._context.topics.group,
                    "client.id": "headrace-events",
                    "partition.assignment.strategy": "cooperative-sticky",
                    "session.timeout.ms": SESSION_MS,
                    "heartbeat.interval.ms": 1_000,
                    "enable.auto.commit": False,
                    "logger": SILENT,
                },
            )
        )
        consumer.subscribe(
            [self._topic], on_assign=self._assign, on_revoke=self._revoke, on_lost=self._revoke
        )
        return consumer

    def _leave_group(self) -> None:
        self._stop_handlers(list(self._handlers))
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            try:
                consumer.close()
            except Exception as error:  # noqa: BLE001  of a callback: the group notices that this member left
                logger.info("%s: %s", self._topic, error)

    def _step(self) -> None:
        """Let the group's consumer work, and pass on the commands that have arrived."""
        if self._consumer is None:
            self._consumer = self._join_group()
        self._add_opened()
        wanted = {
            TopicPartition(self._topic, number): position.offset
            for number, position in self._positions.items()
            if not position.handler.is_full
        }
        self._consumer.poll(0 if wanted else POLL_S)  # runs the callbacks; what it returns is not used
        if not wanted:
            return
        try:
            for fetched in fetch_batches(self._cluster, wanted, max_wait_ms=FETCH_WAIT_MS):
                self._deliver(fetched)
        except OffsetOutOfRange as gone:
            self._move(gone.partition.partition, gone.first)
        except HeadraceError as error:  # the broker is unreachable: it is tried again
            logger.info("%s: %s", self._topic, error)
            self._stopping.wait(POLL_S)

    def _assign(self, consumer: Any, partitions: list[Assigned]) -> None:
        # No command is read before the handler has recovered its partition, and names the offset.
        assigned = [Assigned(self._topic, each.partition, 0) for each in partitions]
        consumer.incremental_assign(assigned)
        consumer.pause(assigned)
        for each in partitions:
            handler = self._handlers[each.partition] = PartitionHandler(self._context, each.partition)
            handler.start()

    def _revoke(self, consumer: Any, partitions: list[Assigned]) -> None:
        self._stop_handlers([each.partition for each in partitions])
        consumer.incremental_unassign(partitions)

    def _stop_handlers(self, partitions: list[int]) -> None:
        stopped = [self._handlers.pop(number) for number in partitions if number in self._handlers]
        for handler in stopped:
            self._positions.pop(handler.partition, None)
            handler.stop()
        for handler in stopped:
            if not handler.join(CLOSE_TIMEOUT_S):
                logger.warning(
                    "the handler of partition %d of %s does not end", handler.partition, self._topic
                )

    def _on_open(self, handler: PartitionHandler, opening: int, offset: int) -> None:
        self._opened.put(CommandPosition(handler, opening, offset))

    def _add_opened(self) -> None:
        """Read commands for the handlers that have opened their partitions."""
        for _ in range(self._opened.qsize()):
            position = self._opened.get()
            if self._handlers.get(position.handler.partition) is position.handler:
                self._positions[position.handler.partition] = position

    def _move(self, partition: int, offset: int) -> None:
        if partition in self._positions:  # a rebalance may have revoked it meanwhile
            self._positions[partition] = self._positions[partition]._replace(offset=offset)

    def _deliver(self, fetched: FetchedBatches) -> None:
        number = fetched.partition.partition
        position = self._positions.get(number)
        if position is None:
            return  # a rebalance has revoked it meanwhile
        for record in skip_unreadable(committed_records(*fetched[:3])):
            if record.offset >= position.offset:
                self._offer(position, record)
        self._move(number, fetched.next_offset)

    def _offer(self, position: CommandPosition, record: Record) -> None:
        number = position.handler.partition
        try:
            command = Command.read(record.value or b"")
            if self._context.topics.partition_of(command.aggregate_id) != number:
                raise ValueError(f"{command.aggregate_id!r} belongs to another partition")
        except ValueError as error:
            message = "skipped offset %d of partition %d of %s, which is no command: %s"
            logger.warning(message, record.offset, number, self._topic, error)
            return
        queued = QueuedCommand(CommandEnvelope(command, record.offset), arrived_s=time.perf_counter())
        position.handler.offer(queued, position.opening)
